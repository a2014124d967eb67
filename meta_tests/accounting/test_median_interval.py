"""The interval of a median that rounds, ratios of times and checks of a cache have in common, and their order."""

import math
import random
from itertools import islice

import pytest
from scipy import stats

from accounting.measured import alternating, median_interval

FEWEST = {0.95: 6, 0.99: 8}  # values that have an interval


@pytest.mark.skipif(not hasattr(stats, "quantile_test"), reason="SciPy before 1.12 has no test of quantiles")
@pytest.mark.parametrize("confidence", [*FEWEST, 0.5, 0.999])
def test_the_interval_is_that_of_scipys_quantile_test(confidence: float) -> None:
    generator = random.Random(7)
    for size in (*range(2, 40), 61, 100, 101, 999, 1000):
        values = [generator.lognormvariate(0, 1) for _ in range(size)]
        expected = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
        found = median_interval(values, confidence)
        assert found == (None if math.isnan(expected.low) else (expected.low, expected.high)), f"{size=}"


@pytest.mark.prove(sample=3)
@pytest.mark.parametrize("confidence", FEWEST)
@pytest.mark.parametrize("more", [0, 1, 12, 53, 93])
def test_the_interval_covers_the_median_as_often_as_it_says(confidence: float, more: int) -> None:
    """Of 4000 intervals of a skewed distribution, 1 - confidence may miss it, and four standard errors more."""
    size = FEWEST[confidence] + more
    generator, missed = random.Random(size), 0
    for _ in range(4000):
        interval = median_interval([generator.expovariate(1.0) for _ in range(size)], confidence)
        assert interval is not None
        missed += not interval[0] <= math.log(2) <= interval[1]
    allowed = (1 - confidence) + 4 * ((1 - confidence) * confidence / 4000) ** 0.5
    assert missed / 4000 <= allowed, (
        f"{missed / 4000:.3f} of the intervals miss the median, but at most {allowed:.3f} may"
    )


@pytest.mark.parametrize("confidence", FEWEST)
def test_too_few_values_have_no_interval(confidence: float) -> None:
    assert median_interval([1.0] * (FEWEST[confidence] - 1), confidence) is None
    assert median_interval([1.0] * FEWEST[confidence], confidence) == (1.0, 1.0)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 95.0, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, got"):
        median_interval([1.0] * 9, confidence)


def test_two_sides_take_turns_and_neither_always_comes_first() -> None:
    order: list[str] = []

    def side(name: str, figure: float) -> float:
        order.append(name)
        return figure

    pairs = alternating(lambda: side("A", 1.0), lambda: side("B", 2.0))
    assert list(islice(pairs, 4)) == [(1.0, 2.0)] * 4
    assert "".join(order) == "ABBAABBA"
