"""report.md: a short page about a run, as for a pull request, whose comments take 65,536 characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prooflops.suite.report import delivery, highlights
from prooflops.suite.report.run_report import RunReport, unchecked
from prooflops.suite.report.tables import RATES_HEAD, best_rates, topic_table
from prooflops.suite.verdicts import Verdict
from prooflops_gate.console.tables import markdown_table, visible
from prooflops_gate.history import trend

LARGEST_BYTES = 20_000
LONGEST_CELL, REASONS = 300, 7_000  # characters of a reason, and of all together
CUT = "**Cut here:** report.html and verdicts.json beside this page have the rest."


def markdown(report: RunReport) -> str:
    """The page: does it deliver, failures, limits, warnings, rates, verdicts by topic; at most LARGEST_BYTES."""
    kept: list[str] = []
    room = LARGEST_BYTES - len(CUT) - 4
    for line in [*head_lines(report), *trend.markdown(report.trends)]:
        room -= len(line.encode()) + 1
        if room < 0:
            return "\n".join([*kept, "", CUT, ""])
        kept.append(line)
    return "\n".join(kept)


def head_lines(report: RunReport) -> list[str]:
    """The lines of the page, without the histories."""
    delivered = delivery.lines(report.benchmarks)
    lines = [
        f"# {plain(str(report.machine.get('name')))}{': does it deliver?' if delivered else ''}",
        "",
    ]
    if delivered:
        rows = [f"- {'**BELOW FLOOR**' if each.met is False else each.word}: {plain(each.figure)} {plain(each.text)}"
                for each in delivered]  # fmt: skip
        lines += [plain(delivery.summary(delivered)), "", *rows, ""]
    if report.partial:
        lines += [f"**A part of a run:** {plain(report.partial)}.", ""]
    for title, found in (
        ("What limits it", highlights.limits(report)),
        ("Unusual", highlights.unusual(report)),
    ):
        if found:
            lines += [f"## {title}", "", *(f"- {plain(line)}" for line in found), ""]
    if best := [cells for *_, cells in best_rates(report.benchmarks, report.peaks)]:
        lines += ["## Best rate of each dtype", "", *table([RATES_HEAD, *best]), ""]
    if report.claims:
        lines += ["## Claims", "", plain(highlights.sentence(report)), ""]
        if red := report.red:
            lines += [*claim_table(red, min(LONGEST_CELL, REASONS // len(red))), ""]
        lines += [
            f"- not checked, {plain(reason)}: {', '.join(ids)}"
            for reason, ids in unchecked(report.claims)
        ]
        lines += ["", *table(topic_table(report.claims)), ""]
    facts = [
        *report.headline,
        f"command: {report.command}, pace {report.pace}, {report.date[:16]} UTC",
    ]
    if report.revision:
        facts.append(f"revision: {report.revision}")
    return [*lines, "## Machine and run", "", *(f"- {plain(line)}" for line in facts), ""]


def plain(text: str) -> str:
    """Escapes HTML markup and joins lines."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table([[plain(cell) for cell in row] for row in rows])


def claim_table(claims: Iterable[Verdict], longest: int | None = None) -> list[str]:
    """One row per claim: its id, statement and verdict with its reason."""
    return table([
        ["claim", "statement", "verdict"], *([f"`{c.id}`", c.claim.statement, c.line[:longest]] for c in claims)
    ])  # fmt: skip
