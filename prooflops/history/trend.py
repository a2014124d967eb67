"""How each benchmark's time went over many records, and where its level changed.

A change point splits a series where the ranks before and after differ most: the largest standardised rank sum over all
splits (Pettitt, Applied Statistics 28 (1979) 126, divided by its standard deviation so that recent changes count as
much as old ones), judged against the same figure of shuffled ranks, then repeated within both parts (binary
segmentation: Scott and Knott, Biometrics 30 (1974) 507). Ranks, so that one slow run is no change of level.

A series of unchanged code gets a change point in at most `LEVEL` of cases if its runs are exchangeable. A machine that
drifts really does change its level: a change point says when, not why.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from prooflops.console.tables import engineering, markdown_table
from prooflops.history.records import Summary

LEVEL = 0.01
SHUFFLES = 1999
FEWEST = 4  # records on each side of a change point
SMALLEST = 0.03  # changes of less are not told
LONGEST = 300  # records looked at, the newest ones
BARS = "▁▂▃▄▅▆▇█"
HEAD = ["benchmark", "records", "first", "last", "trend", "changes of level"]


@dataclass(frozen=True)
class Change:
    """A change of level: `index` is the first record at the new one, `ratio` the new median over the old."""

    index: int
    ratio: float


@dataclass(frozen=True)
class Trend:
    """One benchmark over the records of one fingerprint and one method of measuring, oldest first."""

    name: str
    device: str
    records: tuple[Summary, ...]
    times_s: tuple[float, ...]
    changes: tuple[Change, ...]


def change_points(times_s: Sequence[float], *, level: float = LEVEL, smallest: float = SMALLEST) -> list[Change]:
    """Where the level of a series changed, oldest first.

    A part is searched on only where its own split is significant; a split by less than `smallest` is not told. A step
    needs about 9 records to be told with certainty.

    Raises ValueError for a time that isn't positive and finite, or a level beyond (0, 0.5).

    >>> change_points([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.2, 1.21, 1.19, 1.22, 1.2, 1.18])
    [Change(index=6, ratio=1.2)]
    """
    times = np.asarray(times_s, dtype=float)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError(f"times_s should be positive, finite times, but is {times_s!r}")
    if not 0 < level < 0.5:
        raise ValueError(f"level should lie between 0 and 0.5, but is {level!r}")
    splits = sorted(_splits(times, 0, level))
    while True:
        edges = [0, *splits, len(times)]
        medians = [float(np.median(times[first:last])) for first, last in itertools.pairwise(edges)]
        changes = [
            Change(at, round(new / old, 4)) for at, (old, new) in zip(splits, itertools.pairwise(medians), strict=True)
        ]
        least = min(changes, key=lambda change: abs(math.log(change.ratio)), default=None)
        if least is None or abs(math.log(least.ratio)) > math.log1p(smallest):
            return changes
        splits.remove(least.index)  # its two parts count as one level


def _splits(times: NDArray[np.float64], start: int, level: float) -> list[int]:
    size = len(times)
    if size < 2 * FEWEST:
        return []
    statistics = _rank_statistics(_ranks(times)[None, :])[0]
    best = int(statistics.argmax())
    null = _null(size)
    chance = (1 + int((null >= statistics[best] - 1e-12).sum())) / (1 + len(null))
    if chance > level:
        return []
    at = best + FEWEST
    return [start + at, *_splits(times[:at], start, level), *_splits(times[at:], start + at, level)]


def _ranks(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal times sharing their mean rank."""
    _, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = ((2 * last - counts + 1) / 2)[place]
    return ranks


def _rank_statistics(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row and each split with FEWEST on both sides: the rank sum's distance from its mean, standardised."""
    size = ranks.shape[1]
    before = np.arange(FEWEST, size - FEWEST + 1)
    sums = np.cumsum(ranks, axis=1)[:, before - 1]
    deviation = np.sqrt(before * (size - before) * (size + 1) / 12)
    result: NDArray[np.float64] = np.abs(sums - before * (size + 1) / 2) / deviation
    return result


@lru_cache(maxsize=1024)
def _null(size: int) -> NDArray[np.float64]:
    """The largest statistic of each of SHUFFLES shuffled series: it depends on the length alone."""
    shuffle = np.random.default_rng(size)  # seeded, so that a history is always told in the same words
    ranks = shuffle.permuted(np.tile(np.arange(1.0, size + 1), (SHUFFLES, 1)), axis=1)
    largest: NDArray[np.float64] = _rank_statistics(ranks).max(axis=1)
    return largest


def trends(summaries: Sequence[Summary], *, level: float = LEVEL) -> list[Trend]:
    """The trend of every benchmark, per fingerprint; records are ordered by their moment.

    A series ends where the method of measuring changes: its times mean something else then.
    """
    series: dict[tuple[str, str, str], list[Summary]] = {}
    for each in sorted(summaries, key=lambda summary: (summary.moment, summary.path.name)):
        for name, timed in each.benchmarks.items():
            series.setdefault((name, each.fingerprint_id, str(timed.method)), []).append(each)
    found = []
    for (name, _, _), every in series.items():
        kept = tuple(every[-LONGEST:])
        times = tuple(each.benchmarks[name].time_s for each in kept)
        found.append(Trend(name, kept[-1].name, kept, times, tuple(change_points(times, level=level))))
    return sorted(found, key=lambda trend: (trend.name, trend.records[-1].moment))


def sparkline(times_s: Sequence[float], width: int = 24) -> str:
    """A series as a row of bars, the newest `width` records; the full height is the slowest.

    >>> sparkline([1.0, 1.0, 2.0, 1.5])
    '▁▁█▅'
    """
    shown = list(times_s)[-width:]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low * (1 + SMALLEST) else 0.0
    return "".join(BARS[round((each - low) * scale)] for each in shown)


def told(trend: Trend) -> str:
    """A trend's changes in words: "+10.0 % at 20261121T055300 (1a2b3c4)"."""
    rows = []
    for change in trend.changes:
        record = trend.records[change.index]
        commit = f" ({record.commit[:7]})" if record.commit else ""
        rows.append(f"{change.ratio - 1:+.1%} at {record.moment[:19]}{commit}")
    return "; ".join(rows) or "none found" if len(trend.records) >= 2 * FEWEST else "too few records"


def table(found: Sequence[Trend]) -> list[list[str]]:
    """One row per trend, below HEAD."""
    rows = [HEAD]
    for trend in found:
        first, last = (engineering(time, "s") for time in (trend.times_s[0], trend.times_s[-1]))
        rows.append([trend.name, str(len(trend.records)), first, last, sparkline(trend.times_s), told(trend)])
    return rows


def tables(summaries: Sequence[Summary]) -> dict[str, list[list[str]]]:
    """A table for each device, those benchmarks first whose level changed."""
    devices: dict[str, list[Trend]] = {}
    for trend in sorted(trends(summaries), key=lambda trend: not trend.changes):
        devices.setdefault(trend.records[-1].fingerprint_id, []).append(trend)
    return {device: table(found) for device, found in devices.items()}


def markdown(summaries: Sequence[Summary], names: Collection[str]) -> list[str]:
    """The benchmarks of these names that have records enough to tell a change, as lines of Markdown; none without."""
    enough = [found for found in trends(summaries) if found.name in names and len(found.records) >= 2 * FEWEST]
    if not enough:
        return []
    rows = table(sorted(enough, key=lambda trend: not trend.changes))
    return ["## Trend", "", *markdown_table(rows), "", f"Changes of level by more than {SMALLEST:.0%}, by ranks.", ""]
