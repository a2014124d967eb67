"""The null distributions are exact: by enumeration, and beside scipy."""

import itertools

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, wilcoxon

from meta_tests.prooflops.statistics.simulated import pairs_of
from prooflops.statistics.effects import paired, unpaired
from prooflops.statistics.rank_tests import (
    EFFICIENCY,
    positive_times,
    rank_sum_null,
    signed_rank_null,
    upper_normal_quantile,
)


@pytest.mark.parametrize("sizes", [(3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0, 8.0), (0.1, 90.0, 2.0, 0.3, 5.0, 4.0, 60.0)])
def test_under_every_exchange_of_sides_a_p_value_is_as_rare_as_it_says(sizes: tuple[float, ...]) -> None:
    levels = [0.01, 0.05, 0.1, 0.25, 0.5]
    signs = list(itertools.product((-1, 1), repeat=len(sizes)))
    p = [paired(*pairs_of([s * 0.01 * x for s, x in zip(sign, sizes, strict=True)]), level=0.1) for sign in signs]
    for level in levels:
        for side in ("p_slower", "p_faster"):
            share = sum(getattr(effect, side) <= level for effect in p) / len(signs)
            assert share <= level, (
                f"{side} <= {level} in {share:.4f} of all exchanges, but should be in {level} at most"
            )
    attained = {effect.p_slower for effect in p}
    for level in attained:
        share = sum(effect.p_slower <= level for effect in p) / len(signs)
        assert share == pytest.approx(level), f"p_slower <= {level} in {share} of all exchanges, but should be exact"


def test_under_every_division_of_the_processes_a_p_value_is_as_rare_as_it_says() -> None:
    times = [1.0, 1.01, 1.03, 1.07, 1.2, 1.31, 1.42, 3.0, 9.0]
    divisions = list(itertools.combinations(range(9), 4))
    effects = [
        unpaired([times[i] for i in mine], [times[i] for i in range(9) if i not in mine], level=0.1, floor=0.0)
        for mine in divisions
    ]
    for level in {effect.p_slower for effect in effects}:
        share = sum(effect.p_slower <= level for effect in effects) / len(divisions)
        assert share == pytest.approx(level), f"p_slower <= {level} in {share} of all divisions, but should be exact"


@pytest.mark.parametrize("n", [5, 9, 16, 33, 48])
def test_p_values_of_pairs_are_scipys(n: int) -> None:
    logs = np.random.default_rng(n).normal(0.01, 0.03, n)
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(paired(*pairs_of(list(logs)), level=0.01), side)
        expected = wilcoxon(logs, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9), f"{side}={got}, but scipy has {expected} [{n=}]"


@pytest.mark.parametrize(("n", "m"), [(3, 5), (7, 7), (10, 12), (25, 20)])
def test_p_values_of_groups_are_scipys(n: int, m: int) -> None:
    draw = np.random.default_rng(n)
    before, after = draw.lognormal(0, 0.05, n), draw.lognormal(0.02, 0.05, m)
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(unpaired(list(before), list(after), level=0.01, floor=0.0), side)
        expected = mannwhitneyu(after, before, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9), f"{side}={got}, but scipy has {expected} [{n=}, {m=}]"


def test_the_normal_figures_are_those_of_the_tables() -> None:
    assert upper_normal_quantile(0.025) == pytest.approx(1.959964, abs=1e-6)
    assert pytest.approx(0.954930, abs=1e-6) == EFFICIENCY


@pytest.mark.parametrize("null", [signed_rank_null(48), rank_sum_null(25, 20), rank_sum_null(1, 1)], ids=len)
def test_a_null_distribution_rises_to_exactly_1(null: np.ndarray) -> None:
    assert null[-1] == 1.0
    assert (np.diff(null) >= 0).all()
    assert (null > 0).all()


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, 0.0], [1.0, -1.0], [np.nan, 1.0], [1.0, np.inf]])
def test_what_is_no_sequence_of_times_is_refused(values: list[float]) -> None:
    wrong = "a non-empty sequence" if np.ndim(values) != 1 or not values else f"but holds {values[values[0] == 1.0]}"
    with pytest.raises(ValueError, match=wrong):
        positive_times(values, "times")
    assert list(positive_times([5e-324, 1.0], "times")) == [5e-324, 1.0]
