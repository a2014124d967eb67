"""The history as a page, `history.html`, a plot for each benchmark, and a badge, `badge.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from prooflops_gate import git
from prooflops_gate.console.tables import engineering, many
from prooflops_gate.history.records import Summary, write_atomically
from prooflops_gate.history.trend import Trend, describe_changes, too_few, trends
from prooflops_gate.page.html import html
from prooflops_gate.page.plot import Axis, Line, Plot, Point, Rule
from prooflops_gate.page.section import Page, Section

# Where a machine has more plots, those that did not change are folded.
MOST_UNFOLDED = 24
PLOT_HEIGHT = 170.0
# Smaller noise does not fill the height of a plot.
LEAST_HEIGHT_SHARE = 0.02
FOOT = (
    "Points are records, oldest first, linked by commit where the remote's address is known. A "
    "dashed line marks a change of level, by ranks; a dot on top is a run of the gate, red where "
    "it said SLOWER."
)


def write_page(folder: Path, name: str, summaries: Sequence[Summary], address: str) -> list[Path]:
    """Writes the page and the badge into `folder`, and returns their paths.

    `address`: where commits are looked up.
    """
    found = trends(summaries)
    newest = summaries[-1].fingerprint_id if summaries else ""
    own = [each for each in found if machine(each) == newest]
    files = {
        folder / "history.html": html(page(f"Benchmarks of {name}", found, address)),
        folder / "badge.json": json.dumps(badge(own)) + "\n",
    }
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


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


def badge(found: Sequence[Trend]) -> dict[str, object]:
    """The endpoint of a badge of shields.io: how many benchmarks got slower at their last change.

    >>> badge([])["message"]
    'too few records: 0 of 8'
    """
    last = [trend.changes[-1].ratio for trend in found if trend.changes]
    slower, faster = sum(ratio > 1 for ratio in last), sum(ratio < 1 for ratio in last)
    counts = {"slower": slower, "faster": faster}
    said = [f"{count} of {len(found)} {word}" for word, count in counts.items() if count]
    unknown = too_few(max((len(trend.records) for trend in found), default=0))
    steady = unknown or f"{len(found)} steady"
    colour = "lightgrey" if unknown else "brightgreen"
    return {
        "schemaVersion": 1,
        "label": "benchmarks",
        "message": ", ".join(said) or steady,
        "color": "red" if slower else colour,
    }


def machine(trend: Trend) -> str:
    return trend.records[-1].fingerprint_id


def page(title: str, found: Sequence[Trend], address: str) -> Page:
    """A section a machine, with those benchmarks first whose level changed."""
    changed = sum(bool(trend.changes) for trend in found)
    lead = f"{many(len(found), 'benchmark')}, of which {changed} changed their level."
    machines = [machine(trend) for trend in sorted(found, key=lambda trend: not trend.changes)]
    sections = [
        section
        for each in dict.fromkeys(machines)
        for section in machine_sections([t for t in found if machine(t) == each], address)
    ]
    lead = lead if found else "No record is stored."
    return Page(title, "prooflops · history", sections, lead=[lead], foot=FOOT)


def machine_sections(own: Sequence[Trend], address: str) -> list[Section]:
    """The plots of one machine; of many, those without a change are folded."""
    newest = own[0].records[-1]
    name = ", torch ".join(filter(None, [newest.name, newest.torch])) or newest.fingerprint_id
    ordered = sorted(own, key=lambda trend: not trend.changes)
    changed = [trend for trend in own if trend.changes]
    if len(own) <= MOST_UNFOLDED:
        return [Section(name, parts=trend_sections(ordered, address))]
    level = [trend for trend in own if not trend.changes]
    count = many(len(level), "benchmark")
    return [
        Section(name, parts=trend_sections(changed, address), absent="No change of level."),
        Section(
            f"{name}: no change of level, {count}",
            parts=trend_sections(level, address),
            is_folded=True,
        ),
    ]


def trend_sections(found: Sequence[Trend], address: str) -> list[Section]:
    """A section a benchmark: its newest time, its changes, and its times over the records."""
    return [trend_section(trend, address) for trend in found]


def trend_section(trend: Trend, address: str) -> Section:
    newest = engineering(trend.times_s[-1], "s")
    answer = f"{newest} in the newest of {many(len(trend.records), 'record')}; changes of level: "
    answer += describe_changes(trend)
    if trend.verdicts:
        answer += f"; gate: {trend.verdicts[-1][1]} on {trend.verdicts[-1][0][:10]}"
    return Section(trend.name, plot=plot(trend, address), answer=answer)


def plot(trend: Trend, address: str) -> Plot:
    """A point a record, a line a change of level, a dot a run of the gate."""
    low, high = min(trend.times_s), max(trend.times_s)
    middle = (high + low) / 2
    half = max((high - low) / 2, LEAST_HEIGHT_SHARE * high)
    points = []
    for place, (time_s, record) in enumerate(zip(trend.times_s, trend.records, strict=True)):
        words = [engineering(time_s, "s"), record.moment[:19], record.commit[:9]]
        is_linked = address and re.fullmatch("[0-9a-f]{7,64}", record.commit)
        link = f"{address}/commit/{record.commit}" if is_linked else ""
        points.append(Point(place, time_s, " ".join(filter(None, words)), link=link))
    rules = []
    for change in trend.changes:
        tone = "bad" if change.ratio > 1 else "good"
        rules.append(Rule(change.index - 0.5, f"{change.ratio - 1:+.1%}", tone=tone))
    for moment, said in trend.verdicts:
        # Half way between the records before and after.
        before = sum(record.moment[:19] <= moment[:19] for record in trend.records)
        between = min(before - 0.5, len(points) - 1.0)
        tone = "bad" if said.startswith("SLOWER") else ""
        rules.append(Rule(between, title=f"gate: {said}", tone=tone, is_dot=True))
    return Plot(
        title=f"{trend.name}: changes of level: {describe_changes(trend)}",
        x=Axis(),
        y=Axis(
            unit="s", ticks=(middle - half, middle + half), low=middle - half, high=middle + half
        ),
        points=points,
        lines=[Line([(point.x, point.y) for point in points], None)],
        rules=rules,
        height=PLOT_HEIGHT,
    )
