"""Each benchmark's times over many records, and where its level changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prooflops_gate.history.records import Summary
from prooflops_gate.statistics.change_points import FEWEST, Change, change_points

# A trend has at most this number of the newest records.
LONGEST = 300


@dataclass(frozen=True)
class Trend:
    """One benchmark over the records of one fingerprint and one way of measuring, oldest first."""

    name: str
    records: tuple[Summary, ...]
    times_s: tuple[float, ...]
    changes: tuple[Change, ...]


def trends(summaries: Sequence[Summary]) -> list[Trend]:
    """The trend of every benchmark, per fingerprint and way of measuring.

    Records are ordered by their moment.

    Records of different methods or paces are never in one series: their times differ by what was
    done.
    """
    series: dict[tuple[str, ...], list[Summary]] = {}
    for each in sorted(summaries, key=lambda summary: (summary.moment, summary.path.name)):
        for name, timed in each.benchmarks.items():
            key = (name, each.fingerprint_id, str(timed.method), each.pace)
            series.setdefault(key, []).append(each)
    found = []
    for (name, *_), every in series.items():
        kept = tuple(every[-LONGEST:])
        times = tuple(each.benchmarks[name].time_s for each in kept)
        changes = [at_commit(kept, change) for change in change_points(times)]
        found.append(Trend(name, kept, times, tuple(filter(None, changes))))
    return sorted(found, key=lambda trend: (trend.name, trend.records[-1].moment))


def at_commit(records: Sequence[Summary], change: Change) -> Change | None:
    """The change of level where the commit changed.

    None between records of one commit, which differ by the machine.

    Ranks place a change one record beside the commit at times.
    """
    for index in (change.index, change.index + 1, change.index - 1):
        if 0 < index < len(records) and is_other_code(records[index - 1], records[index]):
            return replace(change, index=index)
    return None


def is_other_code(before: Summary, after: Summary) -> bool:
    """True if two records may be of different code; without version control nobody knows."""
    is_known = before.commit and after.commit and not (before.dirty or after.dirty)
    return not is_known or before.commit != after.commit


def record_name(record: Summary) -> str:
    """The commit and the moment of a record: "1a2b3c4 (2026-11-21 05:53)"."""
    moment = record.moment[:16].replace("T", " ")
    return f"{record.short_commit} ({moment})" if record.commit else moment


def describe_changes(trend: Trend) -> str:
    """A trend's changes in words: "+10.0% at 1a2b3c4 (2026-11-21 05:53)"."""
    rows = []
    for change in trend.changes:
        record = trend.records[change.index]
        rows.append(f"{change.ratio - 1:+.1%} at {record_name(record)}")
    return "; ".join(rows) or too_few(len(trend.records)) or "none found"


def too_few(records: int) -> str:
    """That a change of level needs more records; empty where there are enough.

    >>> too_few(3), too_few(8)
    ('too few records: 3 of 8', '')
    """
    return f"too few records: {records} of {2 * FEWEST}" if records < 2 * FEWEST else ""
