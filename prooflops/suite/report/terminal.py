"""Prints the end of a run: benchmarks, verdicts by topic, failed and unchecked claims, path of the report."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence

import pytest

from prooflops.console.tables import aligned, fitted
from prooflops.suite.report.delivery import lines
from prooflops.suite.report.tables import benchmark_table, topic_table
from prooflops.suite.report.writing import FinishedRun
from prooflops.suite.verdicts import RED, Verdict

COLOURS = {"FAILS": "red", "error": "red", "not checked": "yellow", "corrected": "cyan"}
LEAST_WIDTH = 40
NOTHING = {"-", "no peak on record"}


def width_of(isatty: bool) -> int | None:
    """The terminal's columns, or COLUMNS; None for a file, whose lines are not wrapped."""
    if isatty or os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size().columns, LEAST_WIDTH)
    return None


class Printer:
    """Prints lines and tables that fit the terminal."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._width = width_of(bool(terminal.isatty))

    def section(self, title: str) -> None:
        self._terminal.section(title)

    def line(self, text: str, indent: str = "  ", **markup: bool) -> None:
        for each in wrapped(text, self._width, indent):
            self._terminal.write_line(each, **markup)

    def table(self, rows: Sequence[Sequence[str]], notes: str = "") -> None:
        """Prints a table; a narrow terminal loses the empty columns, then the column `notes`."""
        shown = narrowed(rows, self._width, notes)
        for line in fitted(shown, self._width):
            self._terminal.write_line(line)
        if len(shown[0]) < len(rows[0]):
            left = ", ".join(head for head in rows[0] if head not in shown[0])
            self.line(f"left out, as the terminal is narrow, and in the report: {left}")


def narrowed(rows: Sequence[Sequence[str]], width: int | None, notes: str) -> list[list[str]]:
    """Drops empty columns from rows that are too wide, then, if still too wide, the column `notes`.

    >>> narrowed([["name", "peak", "notes"], ["a", "-", "x" * 9], ["b", "-", ""]], 16, "notes")
    [['name', 'notes'], ['a', 'xxxxxxxxx'], ['b', '']]
    """
    kept = [*zip(*rows, strict=True)]
    for leave_out in (lambda column: {*column[1:]} <= NOTHING, lambda column: column[0] == notes):
        if width is None or max(map(len, aligned([*zip(*kept, strict=True)]))) <= width:
            break
        kept = [column for column in kept if column is kept[0] or not leave_out(column)]
    return [[*row] for row in zip(*kept, strict=True)]


def wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """Wraps a text to `width` columns; None means no wrapping."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def print_summary(terminal: pytest.TerminalReporter, finished: FinishedRun, known: Collection[str]) -> None:
    """Prints the tables at the end of a run: per topic, and in full with -v."""
    printer, report = Printer(terminal), finished.report
    if delivered := lines(report.benchmarks):
        printer.section("does it deliver?")
        width = max((len(each.figure) for each in delivered if each.met is not None), default=0)
        for each in delivered:
            word = {True: "delivers", False: "BELOW FLOOR", None: ""}[each.met]
            printer.line(f"{word:<11}  {each.figure:<{width}}  {each.text}", "    ", red=each.met is False)
    if report.benchmarks:
        printer.section("benchmarks")
        printer.table(benchmark_table(report.benchmarks, report.peaks), notes="measured")
    if report.claims:
        printer.section("verdicts")
        printer.table(topic_table(report.claims))
        verbose = terminal.config.get_verbosity() > 0
        shown = [claim for claim in report.claims if verbose or claim.verdict in RED]
        width = max((len(claim.id) for claim in shown), default=0)
        for claim in shown:
            colour = COLOURS.get(claim.verdict, "green")
            printer.line(f"{claim.id:<{width}}  {claim.line}", indent="    ", **{colour: True})
        for line in () if verbose else unchecked(report.claims):
            printer.line(line, yellow=True)
        settled = {claim.id for claim in report.claims if claim.verdict not in (*RED, "not checked")}
        for listed in sorted({*known} & settled):
            printer.line(f"{listed} is listed in --known-failures but now holds: remove it there", yellow=True)
    if finished.stopped:
        printer.line(f"part of a run: {finished.stopped}; no baseline, and the last whole report stays", red=True)
    elif report.partial and finished.folder:
        printer.line(f"part of a run: {report.partial}; the last whole report stays")
    if finished.unwritten:
        printer.line(finished.unwritten, red=True)
    if finished.folder:
        printer.line(f"report: {finished.folder}/report.html  and report.md, verdicts.json beside it")
    if finished.record:
        printer.line(f"record: {finished.record}")


def unchecked(claims: Sequence[Verdict]) -> Iterator[str]:
    """One line per reason for unchecked claims."""
    reasons: dict[str, list[str]] = {}
    for claim in claims:
        if claim.verdict == "not checked":
            reasons.setdefault(claim.reason, []).append(claim.id)
    for reason, ids in reasons.items():
        yield f"not checked, {reason}: {', '.join(ids)}"
