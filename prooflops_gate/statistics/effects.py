"""How many times longer one side takes than the other, and how sure that is: Wilcoxon's and Mann and Whitney's tests.

The replicate is a process: each contributes one figure per benchmark, its fastest round, as rounds within a process
share its memory layout and its moment. Two sides are compared in pairs of processes in ABBA order (`paired`), or as two
groups taken at different times (`unpaired`). Both tests are exact and assume no distribution: signed ranks need the
sides of a pair to be exchangeable without a change, rank sums the two groups; drift breaks that, so `unpaired` takes a
floor. Times are positive and finite: `history.records` reads no others. scipy.stats lacks the null distributions that
intervals and floors need, and its import takes half a second.

Sources: Wilcoxon, Biometrics Bulletin 1 (1945) 80; Mann and Whitney, Annals of Mathematical Statistics 18 (1947) 50;
Hodges and Lehmann, ibid. 34 (1963) 598; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.1-3.3 and
4.1-4.3 (the intervals).
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

EFFICIENCY = 3 / math.pi  # of signed ranks and rank sums relative to the mean, for normal noise
UNKNOWN_FLOOR = 0.02  # assumed drift between two sessions where too few are stored to know it


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
    return _cumulated(chances)


@lru_cache(maxsize=256)
def rank_sum_null(n: int, m: int) -> Floats:
    """P(U <= u) for u = 0, 1, ..., nm: U counts the pairs with one of n above one of m, all exchangeable."""
    # The largest of n + m exchangeable values is one of the n with chance n / (n + m), and then above all m.
    row: list[Floats] = [np.ones(1) for _ in range(m + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            chances = np.zeros(i * j + 1)
            chances[j:] += row[j] * (i / (i + j))
            chances[: i * (j - 1) + 1] += row[j - 1] * (j / (i + j))
            row[j] = chances
    return _cumulated(row[m])


def _cumulated(chances: Floats) -> Floats:
    total = np.minimum(np.cumsum(chances), 1.0)
    total[-1] = 1.0  # the sum misses it by rounding
    return total


@dataclass(frozen=True)
class Effect:
    """How many times longer `after` takes than `before`, and how sure that is."""

    ratio: float  # the Hodges-Lehmann estimate: after / before
    low: float  # each bound errs with a chance of at most `level`; 0 and inf where too few pairs allow none
    high: float
    p_slower: float  # the chance of at least this evidence for "slower" (beyond the floor, if any) without a change
    p_faster: float
    pairs: int  # or the smaller group's processes
    noise: float  # standard deviation of a pair's log ratio, as signed ranks see it: 0.03 is 3 %
    level: float
    floor: float  # possible effect of drift between sessions alone
    common: float  # shift that all benchmarks share
    _differences: Floats = field(repr=False, compare=False)
    _null: Floats = field(repr=False, compare=False)

    @property
    def in_every_pair(self) -> bool:
        """Whether every pair shows the change, the rarest outcome of this number of pairs."""
        return min(self.p_slower, self.p_faster) <= 0.5**self.pairs

    def interval(self, level: float, *, drift: bool = True) -> tuple[float, float]:
        """The bounds of the ratio; each errs with a chance of at most `level`.

        With drift=False they ignore drift between sessions: they are those of the two groups as taken.
        """
        low, high = _log_bounds(self._differences, self._null, level)
        down, up = _margins(self.floor, self.common) if drift else (0.0, 0.0)
        return math.exp(low - down), math.exp(high + up)

    def bounds(self, level: float) -> tuple[float, float, float]:
        """The bounds at `level`, or at the least level that the number of pairs allows, and that level.

        Never infinite: the extremes of three pairs, say, err with a chance of 1/8 each.

        >>> paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01).bounds(0.01)[1:]
        (1.2, 0.125)
        """
        reached = max(level, float(self._null[0]))
        return (*self.interval(reached), reached)


def _log_bounds(ordered: Floats, null: Floats, level: float) -> tuple[float, float]:
    # The k-th smallest difference is above the truth with chance P(count <= k - 1).
    k = int(np.searchsorted(null, level, side="right"))
    return (float(ordered[k - 1]), float(ordered[len(ordered) - k])) if k else (-math.inf, math.inf)


def _margins(floor: float, common: float) -> tuple[float, float]:
    """How far the logarithm of a ratio must lie above 0, and below, to be a change of its own."""
    return math.log1p(floor) + max(0.0, math.log(common)), math.log1p(floor) + max(
        0.0, -math.log(common)
    )


def _effect(
    differences: Floats,
    null: Floats,
    pairs: int,
    information: float,
    level: float,
    floor: float,
    common: float,
) -> Effect:
    ordered, (down, up) = np.sort(differences), _margins(floor, common)
    # A difference of exactly 0 counts against both directions: ties only make the test more careful.
    against_slower = int(np.searchsorted(ordered, down, side="right"))
    against_faster = len(ordered) - int(np.searchsorted(ordered, -up, side="left"))
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    low, high = _log_bounds(ordered, null, float(ndtr(-1.0)))  # one standard error to each side
    noise = (high - low) / 2 * math.sqrt(information * EFFICIENCY)
    low, high = _log_bounds(ordered, null, level)
    p_slower, p_faster = (
        float(null[k]) if k < len(null) else 1.0 for k in (against_slower, against_faster)
    )
    bounds = math.exp(low - down), math.exp(high + up)
    ratio = math.exp(float(median))
    return Effect(
        ratio, *bounds, p_slower, p_faster, pairs, noise, level, floor, common, ordered, null
    )


_every_two = lru_cache(maxsize=64)(np.triu_indices)


def paired(before: Sequence[float], after: Sequence[float], *, level: float) -> Effect:
    """The effect from pairs of processes, before[i] beside after[i]: Wilcoxon's signed ranks of the log ratios.

    The order within the pairs should alternate: a drift then enters successive pairs with opposite signs, and changes
    neither estimate nor test. Up to 29 % of the pairs may be arbitrarily wrong before the estimate follows them.

    >>> effect = paired([1.0] * 9, [1.10, 1.11, 1.09, 1.10, 1.12, 1.08, 1.10, 1.10, 9.9], level=0.01)
    >>> round(effect.ratio, 3), round(effect.p_slower, 4)
    (1.1, 0.002)
    """
    logs = np.log(np.divide(after, before))
    rows, columns = _every_two(len(logs))
    walsh = (logs[rows] + logs[columns]) / 2  # the mean of every two pairs, and of each with itself
    return _effect(walsh, signed_rank_null(len(logs)), len(logs), len(logs), level, 0.0, 1.0)


def unpaired(
    before: Sequence[float],
    after: Sequence[float],
    *,
    level: float,
    floor: float | None = None,
    common: float = 1.0,
) -> Effect:
    """The effect between two groups of processes taken at different times: the rank sums of Mann and Whitney.

    `floor`: the drift of unchanged code between sessions, as a fraction (`noise.noise_floor`); None is UNKNOWN_FLOOR.
    The interval is widened by it, and "slower" means by more than it: exact as long as drift stays within the floor.
    `common`: the shift that all benchmarks share (`noise.common_shift`). "Slower" must hold with it and without it, and
    the interval covers both readings.

    >>> effect = unpaired([1.00, 1.01, 0.99, 1.02, 1.0], [1.10, 1.11, 1.09, 1.12, 1.1], level=0.01, floor=0.02)
    >>> round(effect.ratio, 2), round(effect.p_slower, 4)
    (1.1, 0.004)
    """
    m, n = len(before), len(after)
    differences = (np.log(after)[:, None] - np.log(before)[None, :]).ravel()
    information = 2 * m * n / (m + n)  # the equivalent number of pairs of independent processes
    margin = UNKNOWN_FLOOR if floor is None else floor
    return _effect(differences, rank_sum_null(n, m), min(m, n), information, level, margin, common)
