"""Who is named among N machines, and how often a healthy fleet has one named."""

import math

import numpy as np
import pytest

from prooflops.statistics.outliers import FEWEST, LEVEL, deviations, tail_freedom, threshold


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.02], []),  # z is infinite, but the share is small
        ([1.0, 1.1, 1.2, 1.3, 1.4], []),  # far apart, but so are all
        ([1.0, 1.01, 0.99, 0.8], [3]),  # a faster one is an outlier too
        ([1.0, 1.0, 2.0], []),  # three are too few
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.5], [3, 7]),
    ],
)
def test_an_outlier_is_far_by_share_and_by_the_deviation_of_all(values: list[float], expected: list[int]) -> None:
    assert [i for i, each in enumerate(deviations(values)) if each.outlier] == expected


@pytest.mark.parametrize("machines", [4, 8, 16, 64, 200])
@pytest.mark.parametrize("freedom", [math.inf, 5.0])
def test_a_healthy_fleet_has_a_machine_named_as_often_as_stated(machines: int, freedom: float) -> None:
    random = np.random.default_rng(7)
    fleets = random.standard_normal((4000, machines)) if freedom == math.inf else random.standard_t(
        freedom, (4000, machines))  # fmt: skip
    far = np.abs(fleets - np.median(fleets, axis=1, keepdims=True))
    beyond = far.max(axis=1) > threshold(machines, LEVEL, freedom) * 1.4826 * np.median(far, axis=1)
    # Of 4,000 at 5 % one standard deviation is 0.35 %; above 64 machines the limit is on the safe side.
    assert 0.015 <= beyond.mean() <= 0.062, beyond.mean()


def test_the_limit_grows_with_the_benchmarks_and_with_the_tails() -> None:
    assert threshold(8, LEVEL / 60) > threshold(8, LEVEL) > 3.5
    assert threshold(64, LEVEL, 5.0) > threshold(64, LEVEL)
    with pytest.raises(ValueError, match="machines must be at least 4, got 3"):
        threshold(FEWEST - 1, LEVEL)


def test_the_tail_is_read_off_the_fast_side_which_bad_machines_do_not_reach() -> None:
    random = np.random.default_rng(3)
    normal, heavy = random.standard_normal(20_000), random.standard_t(3, 20_000)
    slow = normal.copy()
    slow[:1000] += 20
    assert tail_freedom(normal) >= 20
    assert tail_freedom(slow) >= 20
    assert tail_freedom(heavy / (1.4826 * np.median(np.abs(heavy)))) in (2.0, 3.0, 4.0)
    assert tail_freedom(normal[:500]) == 5.0, "of few values nothing is known"


def test_a_machine_says_from_which_share_on_it_would_be_named() -> None:
    times = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.005]
    least = deviations(times)[0].least
    slower = [*times[:-1], 1.0 + 2 * least]  # it widens the scale itself
    assert 0.03 < least < 0.2
    assert deviations(slower)[-1].outlier
    assert not deviations([*times[:-1], 1.0 + 0.9 * least])[-1].outlier
    assert deviations(times[:3])[0].least == math.inf
