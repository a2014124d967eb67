"""Effects: their intervals cover as often as they say, and outliers and drift do not move them.

Simulations have fixed seeds. A bound on a simulated rate is the rate that should hold plus what
chance adds in so many runs with a probability of one in a thousand (`most`), so another seed would
pass as well.
"""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from meta_tests.prooflops_gate.statistics.simulated import most, pairs_of
from prooflops_gate.statistics.effects import paired


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
    assert max(above, below) <= allowed


@pytest.mark.parametrize("n", [5, 9, 16, 33, 48])
def test_p_values_of_pairs_are_scipys_and_their_noise_is_their_spread(n):
    logs = np.random.default_rng(n).normal(0.01, 0.03, n)
    effect = paired(*pairs_of(list(logs)), level=0.01)
    assert 0.5 < effect.noise / logs.std() < 2
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(effect, side)
        expected = wilcoxon(logs, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9)
