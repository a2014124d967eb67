"""report.md: a short page about a run, as for a pull request. Long parts are folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prooflops.console.tables import markdown_table
from prooflops.history import trend
from prooflops.suite.report import highlights
from prooflops.suite.report.drawing import visible
from prooflops.suite.report.run_report import RunReport, by_topic
from prooflops.suite.report.tables import benchmark_table, best_rates, roofline_table, topic_table
from prooflops.suite.verdicts import Verdict


def markdown(report: RunReport) -> str:
    """The page: result, machine, failures, warnings, rates; claims and benchmarks are folded."""
    lines = [f"# What is true on {plain(str(report.machine.get('name')))}", "", plain(highlights.sentence(report)), ""]
    if report.partial:
        lines += [f"**A part of a run:** {plain(report.partial)}.", ""]
    facts = [*report.headline, f"command: {report.command}, pace {report.pace}, {report.date[:16]} UTC"]
    if report.revision:
        facts.append(f"revision: {report.revision}")
    lines += [*(f"- {plain(line)}" for line in facts), ""]
    if report.red:
        lines += ["## What fails here", "", *claim_table(report.red), ""]
    for title, found in (("Unusual", highlights.unusual(report)), ("What limits it", highlights.limits(report))):
        if found:
            lines += [f"## {title}", "", *(f"- {plain(line)}" for line in found), ""]
    if best := [cells for *_, cells in best_rates(report.benchmarks, report.peaks)]:
        head = ["dtype", "best rate", "of vendor peak", "of own ceiling", "in", "spread"]
        lines += ["## Best rates", "", *table([head, *best]), ""]
    return "\n".join([*lines, *claim_lines(report), *benchmark_lines(report), *trend.markdown(report.trends)])


def plain(text: str) -> str:
    """Escapes HTML markup and joins lines."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table([[plain(cell) for cell in row] for row in rows])


def claim_table(claims: Iterable[Verdict]) -> list[str]:
    """One row per claim: its id, statement and verdict with its reason."""
    return table([["claim", "statement", "verdict"], *([f"`{c.id}`", c.claim.statement, c.line] for c in claims)])


def claim_lines(report: RunReport) -> list[str]:
    """Claims by topic; single claims are folded."""
    if not report.claims:
        return []
    lines = ["## Verdicts", "", *table(topic_table(report.claims)), ""]
    for topic, group in by_topic(report.claims).items():
        lines += folded(f"{topic}: {len(group)} claims", claim_table(group))
    return lines


def folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{plain(title)}</summary>", "", *lines, "", "</details>", ""]


def benchmark_lines(report: RunReport) -> list[str]:
    """Benchmarks and roofline kernels, folded, with an explanation."""
    if not report.benchmarks:
        return []
    lines = ["## Benchmarks", ""]
    lines += folded(f"{len(report.benchmarks)} benchmarks", table(benchmark_table(report.benchmarks, report.peaks)))
    lines += [
        "Of own ceiling: against the best rate of this machine for that dtype in this run. `!` marks a share",
        "above 1, where the ceiling was measured too low.",
        "",
    ]
    if len(rows := roofline_table(report.benchmarks)) > 1:
        lines += folded(f"{len(rows) - 1} kernels under the roofs", table(rows))
        lines += [
            "Attainable: the lower of the products' ceiling and the intensity times the bandwidth measured for the",
            "same share of reads, both of this run. The bound is the place under these roofs: memory below the",
            "ridge, compute above it, launch where dispatching takes half of the time. Where the share is low,",
            "neither roof is what limits the kernel. `*`: counted by another convention, see `counted_otherwise`.",
            "",
        ]
    return lines
