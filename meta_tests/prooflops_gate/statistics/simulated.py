"""What the tests of the statistics share.

Simulated sides, and how often an event may occur among simulated runs.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from prooflops_gate.statistics.effects import Effect, paired


def most(rate: float, runs: int) -> int:
    """The events that so many runs at `rate` exceed once in a thousand times."""
    return int(binom.isf(0.001, runs, rate))


def least(rate: float, runs: int) -> int:
    """The events that so many runs at `rate` fall short of once in a thousand times."""
    return int(binom.ppf(0.001, runs, rate))


def pairs_of(logs: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sides whose pairs have these log ratios."""
    return [1.0] * len(logs), [math.exp(log) for log in logs]


def effect_of(ratio: float, spread: float, n: int = 32, level: float = 0.001) -> Effect:
    logs = math.log(ratio) + spread * np.linspace(-1, 1, n)
    return paired(*pairs_of(list(logs)), level=level)


def times(*levels: tuple[float, int], noise: float = 0.02, seed: int = 0) -> list[float]:
    """Log-normal times at one level after the other, so many records each."""
    draw = np.random.default_rng(seed)
    return [
        level * float(np.exp(draw.normal(0, noise)))
        for level, count in levels
        for _ in range(count)
    ]
