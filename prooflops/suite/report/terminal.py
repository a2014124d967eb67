"""Prints the end of a run: benchmarks, verdicts by topic, failed and unchecked claims, path of the report."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Collection

import pytest

from prooflops.suite.report.delivery import lines
from prooflops.suite.report.run_report import unchecked
from prooflops.suite.report.tables import benchmark_table, topic_table
from prooflops.suite.report.writing import FinishedRun
from prooflops.suite.verdicts import RED
from prooflops_gate.console.tables import fitted

COLOURS = {"FAILS": "red", "error": "red", "not checked": "yellow", "corrected": "cyan"}
LEAST_WIDTH = 40


def width_of(isatty: bool) -> int | None:
    """The terminal's columns, or COLUMNS; None for a file, whose lines are not wrapped."""
    if isatty or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size().columns, LEAST_WIDTH)
    return None


def wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """Wraps a text to `width` columns; None means no wrapping."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def print_summary(
    terminal: pytest.TerminalReporter, finished: FinishedRun, known: Collection[str]
) -> None:
    """Prints the tables at the end of a run: per topic, and in full with -v."""
    report, columns = finished.report, width_of(bool(terminal.isatty))

    def line(text: str, indent: str = "  ", **markup: bool) -> None:
        for each in wrapped(text, columns, indent):
            terminal.write_line(each, **markup)

    if delivered := lines(report.benchmarks):
        terminal.section("does it deliver?")
        width = max((len(each.figure) for each in delivered if each.met is not None), default=0)
        for each in delivered:
            line(
                f"{each.word:<11}  {each.figure:<{width}}  {each.text}",
                "    ",
                red=each.met is False,
            )
    for title, rows in {
        "benchmarks": benchmark_table(report.benchmarks, report.peaks) if report.benchmarks else [],
        "verdicts": topic_table(report.claims) if report.claims else [],
    }.items():
        if rows:
            terminal.section(title)
            terminal.write_line("\n".join(fitted(rows, columns)))
    if report.claims:
        verbose = terminal.config.get_verbosity() > 0
        shown = [claim for claim in report.claims if verbose or claim.verdict in RED]
        width = max((len(claim.id) for claim in shown), default=0)
        for claim in shown:
            colour = COLOURS.get(claim.verdict, "green")
            line(f"{claim.id:<{width}}  {claim.line}", indent="    ", **{colour: True})
        for reason, ids in () if verbose else unchecked(report.claims):
            line(f"not checked, {reason}: {', '.join(ids)}", yellow=True)
        settled = {
            claim.id for claim in report.claims if claim.verdict not in (*RED, "not checked")
        }
        for listed in sorted({*known} & settled):
            line(
                f"{listed} is listed in --known-failures but now holds: remove it there",
                yellow=True,
            )
    if finished.stopped:
        line(
            f"part of a run: {finished.stopped}; no baseline, and the last whole report stays",
            red=True,
        )
    elif report.partial and finished.folder:
        line(f"part of a run: {report.partial}; the last whole report stays")
    if finished.unwritten:
        line(finished.unwritten, red=True)
    if finished.folder:
        line(f"report: {finished.folder}/report.html  and report.md, verdicts.json beside it")
    if finished.record:
        line(f"record: {finished.record}")
