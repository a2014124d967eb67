"""The history as a page, `history.html`: a plot for each benchmark."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from prooflops_gate import git
from prooflops_gate.console.tables import engineering, many
from prooflops_gate.history.records import Summary, write_atomically
from prooflops_gate.history.trend import (
    Trend,
    describe_changes,
    record_name,
    trends,
)
from prooflops_gate.page.html import html
from prooflops_gate.page.plot import Axis, Line, Plot, Point, Rule
from prooflops_gate.page.section import Page, Section

PLOT_HEIGHT = 230.0
# Smaller noise does not fill the height of a plot.
LEAST_HEIGHT_SHARE = 0.02
COMMITS_ON_AXIS = 6
LEVEL_SERIES = 1
FOOT = (
    "A point is a record, and links to its commit where the remote's address is known. A dashed "
    "line marks a change of level, found by ranks, and names its first commit. Level lines are "
    "medians. A zigzag marks an axis that does not begin at 0."
)


def write_page(folder: Path, name: str, summaries: Sequence[Summary], address: str) -> Path:
    """Writes the page into `folder`, and returns its path.

    `address`: where commits are looked up.
    """
    by_machine: dict[str, list[Trend]] = {}
    for trend in sorted(trends(summaries), key=newest_moment, reverse=True):
        by_machine.setdefault(trend.records[-1].fingerprint_id, []).append(trend)
    machines = [sorted(own, key=lambda trend: trend.name) for own in by_machine.values()]
    path = folder / "history.html"
    write_atomically(path, html(page(f"Benchmarks of {name}", machines, address)))
    return path


def newest_moment(trend: Trend) -> str:
    return trend.records[-1].moment


def address_of(root: Path) -> str:
    """The web address of the remote `origin`, without what a password may be in; else empty."""
    return web_address(git.output(root, "remote", "get-url", "origin") or "")


def web_address(remote: str) -> str:
    """The web address of a git remote.

    >>> web_address("git@github.com:o/r.git"), web_address("https://me:secret@host.org/o/r")
    ('https://github.com/o/r', 'https://host.org/o/r')
    >>> web_address("/srv/r.git")
    ''
    """
    start, port = r"(?:(?:https?|ssh)://)?(?:[^@/]+@)?", r"(?::\d+/|[:/])"
    found = re.fullmatch(rf"{start}([\w.-]+\.\w+){port}([\w./~-]+?)(?:\.git)?/?", remote)
    return f"https://{found[1]}/{found[2]}" if found else ""


def page(title: str, machines: Sequence[Sequence[Trend]], address: str) -> Page:
    """The newest machine's benchmarks, those first whose level changed; other machines' folded.

    A machine with other versions of its packages is another one.
    """
    if not machines:
        return Page(title, "prooflops · history", [], lead=["No record is stored."])
    own, *others = machines
    names = {trend.name for trend in own}
    changed = {trend.name for trend in own if trend.changes}
    lead = f"{many(len(names), 'benchmark')}, of which {len(changed)} changed their level."
    newest = own[0].records[-1]
    changed_first = sorted(own, key=lambda trend: not trend.changes)
    sections = [Section(newest.machine, parts=trend_sections(changed_first, address))]
    for other in others:
        last = other[0].records[-1]
        title_of_other = f"{last.machine}, until {last.moment[:10]}"
        answer = f"Other than on the newest machine: {differing_facts(last, newest)}."
        parts = trend_sections(other, address)
        sections.append(Section(title_of_other, parts=parts, answer=answer, is_folded=True))
    return Page(title, "prooflops · history", sections, lead=[lead], foot=FOOT)


def differing_facts(record: Summary, newest: Summary) -> str:
    differing = sorted(record.facts.items() - newest.facts.items())
    return ", ".join(f"{name} {fact}" for name, fact in differing)


def trend_sections(found: Sequence[Trend], address: str) -> list[Section]:
    """A section a benchmark: its newest time, its changes, and its times over the records."""
    times_named = Counter(trend.name for trend in found)
    return [trend_section(trend, address, times_named[trend.name] > 1) for trend in found]


def trend_section(trend: Trend, address: str, is_named_twice: bool) -> Section:
    newest = engineering(trend.times_s[-1], "s")
    answer = f"{newest} in the newest of {many(len(trend.records), 'record')}; changes of level: "
    answer += describe_changes(trend)
    if is_named_twice:
        last = trend.records[-1]
        method = last.benchmarks[trend.name].method
        answer += f"; a series of its own: pace {last.pace or 'default'}, method {method}"
    return Section(trend.name, plot=plot(trend, address), answer=answer)


def plot(trend: Trend, address: str) -> Plot:
    """A point a record, the levels, and the commits that changed them."""
    points = []
    for place, (time_s, record) in enumerate(zip(trend.times_s, trend.records, strict=True)):
        title = f"{engineering(time_s, 's')} at {record_name(record)}"
        points.append(Point(place, time_s, title, link=commit_link(record, address)))
    joined = Line([(point.x, point.y) for point in points])
    return Plot(
        title=f"{trend.name}: changes of level: {describe_changes(trend)}",
        x=commit_axis(trend.records),
        y=time_axis(trend.times_s),
        points=points,
        lines=[joined, *levels(trend)],
        rules=list(changes_of_level(trend, address)),
        height=PLOT_HEIGHT,
    )


def time_axis(times_s: Sequence[float]) -> Axis:
    """The range of the times, broken above 0, which the drawing marks."""
    low, high = min(times_s), max(times_s)
    middle = (high + low) / 2
    half = max((high - low) / 2, LEAST_HEIGHT_SHARE * high)
    return Axis(unit="s", low=middle - half, high=middle + half, is_broken=True)


def commit_axis(records: Sequence[Summary]) -> Axis:
    """Commits and their dates, evenly spaced."""
    last = len(records) - 1
    steps = min(last, COMMITS_ON_AXIS - 1)
    places = {round(last * step / max(steps, 1)) for step in range(steps + 1)}
    ticks: dict[float, str] = {}
    for place in sorted(places):
        words = [records[place].short_commit, records[place].moment[:10]]
        ticks[place] = "\n".join(filter(None, words))
    return Axis(ticks=ticks)


def commit_link(record: Summary, address: str) -> str:
    return f"{address}/commit/{record.commit}" if address and record.commit else ""


def levels(trend: Trend) -> Iterator[Line]:
    """The medians between changes of level."""
    edges = [0, *(change.index for change in trend.changes), len(trend.records)]
    for first, after in itertools.pairwise(edges):
        level_s = median(trend.times_s[first:after])
        left, right = max(first - 0.5, 0.0), min(after - 0.5, len(trend.records) - 1.0)
        title = f"{engineering(level_s, 's')}, the median of {many(after - first, 'record')}"
        yield Line([(left, level_s), (right, level_s)], LEVEL_SERIES, title)


def changes_of_level(trend: Trend, address: str) -> Iterator[Rule]:
    """A vertical line before the first record of each new level, named by its commit."""
    for change in trend.changes:
        record = trend.records[change.index]
        label = f"{record.short_commit or record.moment[:16]} {change.ratio - 1:+.1%}"
        tone = "bad" if change.ratio > 1 else "good"
        yield Rule(change.index - 0.5, label, tone=tone, link=commit_link(record, address))
