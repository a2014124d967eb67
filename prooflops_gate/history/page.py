"""The history as a page, `history.html`, with a graph over commits for each benchmark, and as a badge, `badge.json`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from prooflops_gate.console.tables import engineering, many, visible
from prooflops_gate.history.records import Summary, write_atomically
from prooflops_gate.history.trend import Trend, describe_changes, trends
from prooflops_gate.statistics.change_points import FEWEST

STYLE = Path(__file__).with_name("style.css")
PAGE = Path(__file__).with_name("history.html")  # braces in it are doubled, for str.format
MOST_UNFOLDED = 24  # graphs of a machine; of more, those that changed
WIDTH, HEIGHT, LEFT, TOP = 640, 170, 70, 22  # of a graph; its margins


def write_page(folder: Path, name: str, summaries: Sequence[Summary], address: str) -> list[Path]:
    """Writes the page and the badge into `folder` and returns their paths. `address`: where commits are looked up."""
    found = trends(summaries)
    newest = summaries[-1].fingerprint_id if summaries else ""
    files = {
        folder / "history.html": page(f"Benchmarks of {name}", found, address),
        folder / "badge.json": json.dumps(
            badge([each for each in found if machine(each) == newest])
        )
        + "\n",
    }
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def address_of(root: Path) -> str:
    """The web address of the remote `origin`, without what a password may be in; empty where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return web_address(done.stdout.strip()) if done.returncode == 0 else ""


def web_address(remote: str) -> str:
    """The web address of a git remote.

    >>> web_address("git@github.com:o/r.git"), web_address("https://me:secret@host.org/o/r"), web_address("/srv/r.git")
    ('https://github.com/o/r', 'https://host.org/o/r', '')
    """
    start, port = r"(?:(?:https?|ssh)://)?(?:[^@/]+@)?", r"(?::\d+/|[:/])"
    found = re.fullmatch(rf"{start}([\w.-]+\.\w+){port}([\w./~-]+?)(?:\.git)?/?", remote)
    return f"https://{found[1]}/{found[2]}" if found else ""


def badge(found: Sequence[Trend]) -> dict[str, object]:
    """The endpoint of a badge of shields.io: how many benchmarks of a machine got slower at their last change of level.

    >>> badge([])["message"]
    'too few records'
    """
    last = [trend.changes[-1].ratio for trend in found if trend.changes]
    slower, faster = sum(ratio > 1 for ratio in last), sum(ratio < 1 for ratio in last)
    said = [
        f"{count} of {len(found)} {word}"
        for count, word in ((slower, "slower"), (faster, "faster"))
        if count
    ]
    known = any(len(trend.records) >= 2 * FEWEST for trend in found)
    message = ", ".join(said) or (f"{len(found)} steady" if known else "too few records")
    colour = "red" if slower else "brightgreen" if known else "lightgrey"
    return {"schemaVersion": 1, "label": "benchmarks", "message": message, "color": colour}


def machine(trend: Trend) -> str:
    return trend.records[-1].fingerprint_id


def page(title: str, found: Sequence[Trend], address: str) -> str:
    """The page: a section for each machine, with those benchmarks first whose level changed; many others are folded."""
    ordered = sorted(found, key=lambda trend: not trend.changes)
    sections = []
    for each in dict.fromkeys(map(machine, ordered)):
        own = [trend for trend in ordered if machine(trend) == each]
        name = (
            ", torch ".join(filter(None, [own[0].records[-1].name, own[0].records[-1].torch]))
            or each
        )
        graphs = [article(trend, address) for trend in own]
        shown = len(own) if len(own) <= MOST_UNFOLDED else sum(bool(trend.changes) for trend in own)
        more = (
            f"<details><summary>No change of level: {many(len(own) - shown, 'benchmark')}</summary>"
        )
        more = f"{more}\n{grid(graphs[shown:])}</details>" if graphs[shown:] else ""
        sections.append(f"<section><h2>{escape(name)}</h2>\n{grid(graphs[:shown])}{more}</section>")
    changed = sum(bool(trend.changes) for trend in found)
    lead = f"{many(len(found), 'benchmark')}, of which {changed} changed their level."
    texts = {
        "title": escape(title),
        "lead": lead if found else "No record is stored.",
        "sections": "\n".join(sections),
    }
    return PAGE.read_text(encoding="utf-8").format(style=STYLE.read_text(encoding="utf-8"), **texts)


def grid(graphs: Sequence[str]) -> str:
    return "\n".join(['<div class="trends">', *graphs, "</div>"])


def article(trend: Trend, address: str) -> str:
    """One benchmark: its name, its newest time, its changes, and its times over the records as SVG."""
    name, changes = (
        escape(visible(trend.name)),
        escape(f"changes of level: {describe_changes(trend)}"),
    )
    if trend.verdicts:
        changes += escape(f"; gate: {trend.verdicts[-1][1]} on {trend.verdicts[-1][0][:10]}")
    newest = f"{engineering(trend.times_s[-1], 's')} in the newest of {many(len(trend.records), 'record')}"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{name}: {changes}">'
    head = f"<article><h3>{name}</h3>\n<p>{newest}; {changes}</p>"
    return "\n".join([head, svg, *drawn(trend, address), "</svg></article>"])


def drawn(trend: Trend, address: str) -> Iterator[str]:
    """The parts of a graph: two lines with their times, a line a change of level, a point with a title a record."""
    low, high = min(trend.times_s), max(trend.times_s)
    middle, half = (
        (high + low) / 2,
        max((high - low) / 2, 0.02 * high),
    )  # noise of 1 % does not fill the height
    for edge, time_s in ((TOP, middle + half), (HEIGHT - TOP, middle - half)):
        yield f'<path d="M{LEFT} {edge}H{WIDTH}"/><text x="{LEFT - 8}" y="{edge + 4}">{engineering(time_s, "s")}</text>'
    step = (WIDTH - LEFT - 10) / max(len(trend.times_s) - 1, 1)
    for change in trend.changes:
        x, kind = (
            f"{LEFT + step * (change.index - 0.5):.1f}",
            "slower" if change.ratio > 1 else "faster",
        )
        yield f'<path class="{kind}" d="M{x} {TOP - 4}V{HEIGHT - 8}"/>'
        yield f'<text class="{kind}" x="{x}" y="12">{change.ratio - 1:+.1%}</text>'
    shares = [(middle + half - time_s) / (2 * half) for time_s in trend.times_s]
    places = [
        (f"{LEFT + step * i:.1f}", f"{TOP + share * (HEIGHT - 2 * TOP):.1f}")
        for i, share in enumerate(shares)
    ]
    yield f'<polyline points="{" ".join(map(",".join, places))}"/>'
    for (x, y), time_s, record in zip(places, trend.times_s, trend.records, strict=True):
        title = escape(
            " ".join(
                filter(None, [engineering(time_s, "s"), record.moment[:19], record.commit[:9]])
            )
        )
        point = f'<circle cx="{x}" cy="{y}" r="3.5"><title>{title}</title></circle>'
        linked = address and re.fullmatch("[0-9a-f]{7,64}", record.commit)
        yield f'<a href="{escape(address)}/commit/{record.commit}">{point}</a>' if linked else point
    for moment, said in trend.verdicts:  # half way between the records before and after
        place = min(
            sum(record.moment[:19] <= moment[:19] for record in trend.records) - 0.5,
            len(places) - 1,
        )
        kind, title = "gate alarm" if said.startswith("SLOWER") else "gate", escape(f"gate: {said}")
        yield f'<circle class="{kind}" cx="{LEFT + step * place:.1f}" cy="4" r="3"><title>{title}</title></circle>'
