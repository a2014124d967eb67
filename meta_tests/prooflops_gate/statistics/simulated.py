"""What the tests of the statistics share.

Simulated sides, and how often an event may occur among simulated runs.
"""

import math

import numpy as np
from scipy.stats import binom

from prooflops_gate.statistics.effects import paired


def most(rate, runs):
    """The events that so many runs at `rate` exceed once in a thousand times."""
    return int(binom.isf(0.001, runs, rate))


def least(rate, runs):
    """The events that so many runs at `rate` fall short of once in a thousand times."""
    return int(binom.ppf(0.001, runs, rate))


def pairs_of(logs):
    """Sides whose pairs have these log ratios."""
    return [1.0] * len(logs), [math.exp(log) for log in logs]


def effect_of(ratio, spread):
    logs = math.log(ratio) + spread * np.linspace(-1, 1, 32)
    return paired(*pairs_of(list(logs)), level=0.001)


def times(*levels, noise=0.02, seed=0):
    """Log-normal times at one level after the other, so many records each."""
    draw = np.random.default_rng(seed)
    return [
        level * float(np.exp(draw.normal(0, noise)))
        for level, count in levels
        for _ in range(count)
    ]
