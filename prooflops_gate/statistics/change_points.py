"""Finds the changes of level in a series of times.

A change point splits a series where the ranks before and after differ most. The largest
standardised rank sum over all splits (Pettitt, Applied Statistics 28 (1979) 126) is compared with
that of shuffled ranks. Both parts are then split likewise (Scott and Knott, Biometrics 30 (1974)
507). One slow run is no change of level. A series of unchanged code gets a change point in at most
`LEVEL` of cases if its runs are exchangeable. A machine that drifts does change its level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.01
SHUFFLES = 1999
# Each side of a change point has at least this number of records.
FEWEST = 4
# Smaller changes are not reported.
SMALLEST = 0.03


@dataclass(frozen=True)
class Change:
    """A change of level.

    `index` is the first record at the new one, `ratio` the new median over the old.
    """

    index: int
    ratio: float


def change_points(times_s: Sequence[float]) -> list[Change]:
    """The changes of level in a series, oldest first.

    A part is searched on only where its own split is significant; a split by less than SMALLEST is
    not reported. A step needs about 9 records to be found reliably.

    >>> change_points([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.2, 1.21, 1.19, 1.22, 1.2, 1.18])
    [Change(index=6, ratio=1.2)]
    """
    times = np.asarray(times_s, dtype=float)
    splits = sorted(_splits(times, 0))
    while True:
        edges = [0, *splits, len(times)]
        medians = [float(np.median(times[first:last])) for first, last in itertools.pairwise(edges)]
        changes = [
            Change(at, round(new / old, 4))
            for at, (old, new) in zip(splits, itertools.pairwise(medians), strict=True)
        ]
        least = min(changes, key=lambda change: abs(math.log(change.ratio)), default=None)
        if least is None or abs(math.log(least.ratio)) > math.log1p(SMALLEST):
            return changes
        # Its two parts count as one level.
        splits.remove(least.index)


def _splits(times: Floats, start: int) -> list[int]:
    size = len(times)
    if size < 2 * FEWEST:
        return []
    statistics = _rank_statistics(_ranks(times)[None, :])[0]
    best = int(statistics.argmax())
    null = _null(size)
    chance = (1 + int((null >= statistics[best] - 1e-12).sum())) / (1 + len(null))
    if chance > LEVEL:
        return []
    at = best + FEWEST
    return [start + at, *_splits(times[:at], start), *_splits(times[at:], start + at)]


def _ranks(times: Floats) -> Floats:
    """Ranks from 1, equal times sharing their mean rank."""
    _, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = ((2 * last - counts + 1) / 2)[place]
    return ranks


def _rank_statistics(ranks: Floats) -> Floats:
    """For each row and each split with FEWEST on both sides.

    The rank sum's distance from its mean, standardised.
    """
    size = ranks.shape[1]
    before = np.arange(FEWEST, size - FEWEST + 1)
    sums = np.cumsum(ranks, axis=1)[:, before - 1]
    deviation = np.sqrt(before * (size - before) * (size + 1) / 12)
    result: Floats = np.abs(sums - before * (size + 1) / 2) / deviation
    return result


@lru_cache(maxsize=1024)
def _null(size: int) -> Floats:
    """The largest statistic of each of SHUFFLES shuffled series: it depends on the length alone."""
    # Seeded, so that the same history always has the same changes.
    shuffle = np.random.default_rng(size)
    ranks = shuffle.permuted(np.tile(np.arange(1.0, size + 1), (SHUFFLES, 1)), axis=1)
    largest: Floats = _rank_statistics(ranks).max(axis=1)
    return largest
