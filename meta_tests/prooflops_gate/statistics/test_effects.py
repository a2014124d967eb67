"""Effects: their intervals cover as often as they say, and outliers and drift do not move them.

Simulations have fixed seeds. A bound on a simulated rate is the rate that should hold plus what
chance adds in so many runs with a probability of one in a thousand (`most`), so another seed would
pass as well.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import wilcoxon

from meta_tests.prooflops_gate.statistics.simulated import most, pairs_of
from prooflops_gate.statistics.effects import paired


@pytest.mark.parametrize("level", [0.2, 0.05, 0.01, 0.0005])
def test_an_interval_excludes_1_exactly_where_the_p_value_says_so(level):
    draw = np.random.default_rng(2)
    for shift in np.linspace(-0.1, 0.1, 41):
        effect = paired(*pairs_of(list(draw.normal(shift, 0.05, 14))), level=level)
        excluded = (effect.low > 1, effect.high < 1)
        significant = (effect.p_slower <= level, effect.p_faster <= level)
        assert excluded == significant, (
            f"the interval excludes {excluded}, but p-values say {significant} [{effect}]"
        )


def normal(draw, size):
    return draw.normal(0, 0.03, size)


def outliers(draw, size):
    astray = draw.random(size) < 0.1
    return normal(draw, size) + astray * draw.exponential(2, size)


def bimodal(draw, size):
    return draw.normal(0, 0.01, size) + 0.3 * draw.integers(2, size=size)


def skewed(draw, size):
    return draw.exponential(0.05, size)


@pytest.mark.parametrize("noise", [normal, outliers, bimodal, skewed])
def test_intervals_of_pairs_cover_the_truth_as_often_as_they_say(noise):
    draw = np.random.default_rng(3)
    runs = 600
    level = 0.05
    above = below = 0
    for _ in range(runs):
        before = np.exp(noise(draw, 16))
        after = 1.05 * np.exp(noise(draw, 16))
        effect = paired(list(before), list(after), level=level)
        above += effect.low > 1.05
        below += effect.high < 1.05
    allowed = most(level, runs)
    assert max(above, below) <= allowed, (
        f"the bounds erred {above} and {below} times, but should at most {allowed}"
    )


def test_the_estimate_stays_where_a_quarter_of_the_pairs_goes_astray():
    draw = np.random.default_rng(4)
    logs = list(draw.normal(math.log(1.05), 0.02, 24))
    for i in range(6):
        logs[i] = draw.uniform(1, 3)
    ratio, mean = paired(*pairs_of(logs), level=0.01).ratio, math.exp(float(np.mean(logs)))
    assert 1.03 < ratio < 1.09, f"the estimate went to {ratio:.3f}, but should stay near 1.05"
    assert mean > 1.4, (
        f"the mean should have gone astray, or this test shows nothing: it is {mean:.3f}"
    )


def test_drift_cancels_within_abba_and_not_without():
    # Each process takes 1 % longer than the one before.
    drift = 0.01 * np.arange(64)
    quads = np.arange(64).reshape(-1, 4)
    abba = (drift[quads[:, [0, 3]]].ravel(), drift[quads[:, [1, 2]]].ravel())
    abab = (drift[quads[:, [0, 2]]].ravel(), drift[quads[:, [1, 3]]].ravel())
    ratios = [paired(list(np.exp(b)), list(np.exp(a)), level=0.01) for b, a in (abba, abab)]
    assert ratios[0].ratio == pytest.approx(1), f"ABBA should cancel the drift, but has {ratios[0]}"
    assert ratios[1].p_slower < 1e-6, (
        f"ABAB should take drift for a slowdown, or this test shows nothing: {ratios[1]}"
    )


@pytest.mark.parametrize(
    "sizes", [(3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0, 8.0), (0.1, 90.0, 2.0, 0.3, 5.0, 4.0, 60.0)]
)
def test_under_every_exchange_of_sides_a_p_value_is_as_rare_as_it_says(
    sizes,
):
    levels = [0.01, 0.05, 0.1, 0.25, 0.5]
    signs = np.array(list(itertools.product((-1, 1), repeat=len(sizes))))
    exchanges = 0.01 * signs * sizes
    p = [paired(*pairs_of(list(logs)), level=0.1) for logs in exchanges]
    for level in levels:
        for side in ("p_slower", "p_faster"):
            share = sum(getattr(effect, side) <= level for effect in p) / len(signs)
            assert share <= level, (
                f"{side} <= {level} in {share:.4f} of all exchanges, but may be in {level}"
            )
    attained = {effect.p_slower for effect in p}
    for level in attained:
        share = sum(effect.p_slower <= level for effect in p) / len(signs)
        assert share == pytest.approx(level), (
            f"p_slower <= {level} in {share} of all exchanges, but should be exact"
        )


@pytest.mark.parametrize("n", [5, 9, 16, 33, 48])
def test_p_values_of_pairs_are_scipys(n):
    logs = np.random.default_rng(n).normal(0.01, 0.03, n)
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(paired(*pairs_of(list(logs)), level=0.01), side)
        expected = wilcoxon(logs, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9), (
            f"{side}={got}, but scipy has {expected} [{n=}]"
        )
