"""The exact null distributions of signed ranks and rank sums, and what their tests and intervals share.

scipy.stats has the p-values of both tests publicly, but not the distributions, which intervals and floors need; its
import takes half a second besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

EFFICIENCY = 3 / math.pi  # of signed ranks and rank sums relative to the mean, for normal noise


def upper_normal_quantile(tail: float) -> float:
    """What a standard normal exceeds with chance `tail`."""
    return -float(ndtri(tail))


def positive_times(values: Sequence[float], name: str) -> Floats:
    times = np.asarray(values, dtype=float)
    if times.ndim != 1 or not times.size:
        raise ValueError(f"{name} should be a non-empty sequence of times, but is {values!r}")
    if not (np.isfinite(times).all() and (times > 0).all()):
        wrong = times[~(np.isfinite(times) & (times > 0))][0]
        raise ValueError(f"{name} should hold positive, finite times, but holds {float(wrong)!r}")
    return times


def _distribution(chances: Floats) -> Floats:
    total = np.minimum(np.cumsum(chances), 1.0)
    total[-1] = 1.0  # which the sum misses by rounding
    return total


@lru_cache(maxsize=256)
def signed_rank_null(n: int) -> Floats:
    """P(T <= t) for t = 0, 1, ..., where T sums those ranks of 1..n whose fair coin shows heads."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return _distribution(chances)


@lru_cache(maxsize=256)
def rank_sum_null(n: int, m: int) -> Floats:
    """P(U <= u) for u = 0, 1, ..., nm: U counts the pairs with one of n above one of m, all exchangeable."""
    # Of n + m exchangeable values the largest is one of the n with chance n / (n + m), and then above all m.
    row: list[Floats] = [np.ones(1) for _ in range(m + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            chances = np.zeros(i * j + 1)
            chances[j:] += row[j] * (i / (i + j))
            chances[: i * (j - 1) + 1] += row[j - 1] * (j / (i + j))
            row[j] = chances
    return _distribution(row[m])
