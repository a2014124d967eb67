"""The ratio of the times of two sides, and its confidence.

Wilcoxon's signed ranks.

The replicate is a process. Each contributes one figure per benchmark, its fastest round, because
rounds within a process share its memory layout and its moment. Two sides are compared in pairs of
processes in ABBA order. The test is exact and assumes no distribution, only that the sides of a
pair are exchangeable without a change. Times are positive and finite: `history.records` reads no
others. scipy.stats lacks the null distribution that intervals need, and its import takes half a
second.

Sources: Wilcoxon, Biometrics Bulletin 1 (1945) 80; Hodges and Lehmann, Annals of Mathematical
Statistics 34 (1963) 598; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.1-3.3
(the intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]

# Signed ranks use this share of what a mean does, for normal noise.
EFFICIENCY = 3 / math.pi


def upper_normal_quantile(tail: float) -> float:
    """The value that a standard normal variable exceeds with chance `tail`."""
    return -float(ndtri(tail))


@lru_cache(maxsize=256)
def signed_rank_null(n: int) -> Floats:
    """P(T <= t) for t = 0, 1, ..., where T sums those ranks of 1..n whose fair coin shows heads."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    total = np.minimum(np.cumsum(chances), 1.0)
    # The sum misses 1 by rounding.
    total[-1] = 1.0
    return total


@dataclass(frozen=True)
class Effect:
    """The ratio of the times `after` and `before`, and its confidence.

    `ratio` is the Hodges-Lehmann estimate of after / before. Each bound errs with a chance of at
    most `level`; `low` is 0 and `high` inf where too few pairs allow none. `p_slower` is the chance
    of at least this evidence for "slower" without a change. `noise` is the standard deviation of a
    pair's log ratio, as signed ranks see it: 0.03 is 3 %.
    """

    ratio: float
    low: float
    high: float
    p_slower: float
    p_faster: float
    pairs: int
    noise: float
    level: float
    _differences: Floats = field(repr=False, compare=False)
    _null: Floats = field(repr=False, compare=False)

    @property
    def in_every_pair(self) -> bool:
        """True if every pair shows the change, the rarest outcome of this number of pairs."""
        return min(self.p_slower, self.p_faster) <= 0.5**self.pairs

    def interval(self, level: float) -> tuple[float, float]:
        """The bounds of the ratio; each errs with a chance of at most `level`."""
        low, high = _log_bounds(self._differences, self._null, level)
        return math.exp(low), math.exp(high)

    def bounds(self, level: float) -> tuple[float, float, float]:
        """The bounds at `level`, or at the least level that the pairs allow, and that level.

        Never infinite: the extremes of three pairs, say, err with a chance of 1/8 each.

        >>> paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01).bounds(0.01)[1:]
        (1.2, 0.125)
        """
        reached = max(level, float(self._null[0]))
        return (*self.interval(reached), reached)


def _log_bounds(ordered: Floats, null: Floats, level: float) -> tuple[float, float]:
    # The k-th smallest difference is above the truth with chance P(count <= k - 1).
    k = int(np.searchsorted(null, level, side="right"))
    if not k:
        return -math.inf, math.inf
    return float(ordered[k - 1]), float(ordered[len(ordered) - k])


_every_two = lru_cache(maxsize=64)(np.triu_indices)


def paired(before: Sequence[float], after: Sequence[float], *, level: float) -> Effect:
    """The effect from pairs of processes, before[i] beside after[i].

    Wilcoxon's signed ranks of the log ratios.

    The order within the pairs should alternate: a drift then enters successive pairs with opposite
    signs, and changes neither estimate nor test. Up to 29 % of the pairs may be arbitrarily wrong
    before the estimate follows them.

    >>> after = [1.10, 1.11, 1.09, 1.10, 1.12, 1.08, 1.10, 1.10, 9.9]
    >>> effect = paired([1.0] * 9, after, level=0.01)
    >>> round(effect.ratio, 3), round(effect.p_slower, 4)
    (1.1, 0.002)
    """
    logs = np.log(np.divide(after, before))
    pairs, null = len(logs), signed_rank_null(len(logs))
    # The mean of every two pairs, and of each with itself: Walsh's averages.
    rows, columns = _every_two(pairs)
    ordered = np.sort((logs[rows] + logs[columns]) / 2)
    # An average of exactly 0 counts against both directions: ties only make the test more careful.
    against_slower = int(np.searchsorted(ordered, 0.0, side="right"))
    against_faster = len(ordered) - int(np.searchsorted(ordered, 0.0, side="left"))
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    one_error = float(ndtr(-1.0))
    low, high = _log_bounds(ordered, null, one_error)
    noise = (high - low) / 2 * math.sqrt(pairs * EFFICIENCY)
    low, high = _log_bounds(ordered, null, level)
    return Effect(
        ratio=math.exp(float(median)),
        low=math.exp(low),
        high=math.exp(high),
        p_slower=_chance(null, against_slower),
        p_faster=_chance(null, against_faster),
        pairs=pairs,
        noise=noise,
        level=level,
        _differences=ordered,
        _null=null,
    )


def _chance(null: Floats, count: int) -> float:
    return float(null[count]) if count < len(null) else 1.0
