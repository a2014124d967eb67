"""Reports the result on the terminal and as the reports of the tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from prooflops_gate.console.tables import aligned, write_coloured
from prooflops_gate.decide import BUDGET, NOISE, PAIRS
from prooflops_gate.history.rows import VERDICTS, Row
from prooflops_gate.history.rows import table as table_of
from prooflops_gate.process import Replicate
from prooflops_gate.wording import reason, sentence, unchanged

REMEDIES = {
    NOISE: "longer rounds, more --gate-replicates or a larger --gate-min-effect decide it",
    PAIRS: "more of them decide it",
    BUDGET: "a larger one or fewer benchmarks decide it",
}
MOST_LINES = 20  # of a verdict, without -v
FINISHED = "finished"

Location = tuple[str, int | None, str]


@dataclass(frozen=True)
class Result:
    """What a comparison found, or why it did not end."""

    title: str
    rows: Sequence[Row] = ()  # the worst first
    failing: Sequence[Row] = ()
    warning: str = ""  # that this run passes although it left open too much
    lines: Sequence[str] = ()  # below the rows
    details: Sequence[str] = ()  # below these, under -v
    last: str = ""  # the whole run in one line
    table: Sequence[Sequence[str]] = ()  # printed in place of the rows, unless empty
    status: str = FINISHED
    reason: str = ""  # why it is not FINISHED
    failed_tests: Sequence[str] = ()  # that failed by themselves


def properties_of(row: Row) -> list[tuple[str, object]]:
    """A row as JUnit properties of its test: gate.time = SLOWER, gate.time.ratio = 1.1, its bounds, its noise."""
    found: dict[str, object] = {"": row.verdict, ".before": row.before, ".after": row.after}
    if row.effect:
        found |= {f".{key}": getattr(row.effect, key) for key in ("ratio", "low", "high", "noise")}
    found |= {".note": row.note or None, ".where": row.where or None}
    return [
        (f"gate.{row.quantity}{key}", value) for key, value in found.items() if value is not None
    ]


def sections(rows: Sequence[Row], most: float = MOST_LINES) -> list[tuple[str, list[str]]]:
    """The rows by verdict, the worst first: a heading, and a sentence for each row that is not SAME.

    >>> sections([Row("t.py::test_a", "flops", 1, 2, "CHANGED"), Row("b", "bytes", 1, 1, "SAME")])
    [('CHANGED (1)', ['t.py::test_a: flops is 2, but was 1, and is an exact quantity']), ('SAME (1)', [])]
    """
    found = []
    for verdict in VERDICTS:
        group = [row for row in rows if row.verdict == verdict]
        said = [f"{sentence(row)}{why(row)}" for row in group] if verdict != "SAME" else []
        if len(said) > most:
            said[int(most) :] = [f"... and {len(said) - most} more: -v"]
        if group:
            known = unchanged(group) if verdict == "SAME" else ""
            found.append((f"{verdict} ({len(group)})" + (f": {known}" if known else ""), said))
    return found


def why(row: Row) -> str:
    """Why an open benchmark is open, and where the work went: a failure's own text names all functions."""
    if row.where:
        return f"; {row.where.partition(', ')[0] if row.verdict == 'SLOWER' else row.where}"
    reasons = row.note.split("; ") if row.verdict == "INCONCLUSIVE" and row.effect else ()
    return "".join(f": {reason}" for reason in REMEDIES if reason in reasons)


def remedies(rows: Sequence[Row]) -> list[str]:
    """What decides the benchmarks that are open, and what ran beside them; each once."""
    notes = [note for row in rows for note in row.note.split("; ")]
    is_open = {
        note for row in rows if row.verdict == "INCONCLUSIVE" for note in row.note.split("; ")
    }
    lines = [f"{reason}: {remedy}" for reason, remedy in REMEDIES.items() if reason in is_open]
    if beside := [note for note in notes if " processes contended: " in note]:
        lines.append(
            f"{len(beside)} of {len(rows)} ran beside other work ({beside[-1].partition(': ')[2]})"
        )
    return lines


def write_terminal(terminal: pytest.TerminalReporter, result: Result) -> None:
    """Prints a sentence for each row that is not SAME under its verdict, and one last line; with -v all there is."""
    terminal.section(f"gate: {result.title}")
    verbose, lines = terminal.verbosity > 0, [*result.lines]
    if result.warning:
        terminal.write_line(f"warning: {result.warning}", yellow=True)
    if result.table:
        write_coloured(terminal, aligned(result.table))
    for heading, said in (
        [] if result.table else sections(result.rows, math.inf if verbose else MOST_LINES)
    ):
        write_coloured(terminal, [heading], bold=True)
        for line in said:
            terminal.write_line(f"  {line}")
    if verbose and result.rows and not result.table:
        # The notes are longer than all other cells: below the table.
        write_coloured(
            terminal, ["", *aligned(table_of([replace(row, note="") for row in result.rows])), ""]
        )
        lines = [*(f"{row.name}: {row.note}" for row in result.rows if row.note), *lines]
    elif not result.table:
        lines = [*remedies(result.rows), *lines]
    for line in [*lines, *(result.details if verbose else [])]:
        terminal.write_line(line)
    if result.last:
        terminal.write_line(result.last, bold=True)


class Reports:
    """The reports of each test, of all processes of this side."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_test: dict[str, list[pytest.TestReport]] = {}
        self.failed = set[str]()  # the tests that failed in any process; `emit` adds none

    def __iter__(self) -> Iterator[pytest.TestReport]:
        return (report for reports in self.by_test.values() for report in reports)

    def add(self, done: Replicate) -> None:
        """Keeps each test's newest reports; a failure in any process stays."""
        grouped: dict[str, list[pytest.TestReport]] = {}
        for data in done.reports:
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(
                    report.longrepr
                )  # of a skip: pytest's reports insist on a tuple, JSON has none
            grouped.setdefault(report.nodeid, []).append(report)
        self.by_test |= {
            name: reports for name, reports in grouped.items() if name not in self.failed
        }
        self.failed = {report.nodeid for report in self if report.failed}

    def emit(
        self, items: Sequence[pytest.Item], rows: Sequence[Row], failing: Sequence[Row], broken: str
    ) -> None:
        """Reports each test once; `failing` rows fail theirs, and `broken` (no record, why) all without a report."""
        missing = (
            broken
            or "this test was collected here, but a fresh process of this side did not run it"
        )
        properties: dict[str, list[tuple[str, object]]] = {}
        for row in rows:
            properties.setdefault(row.name, []).extend(properties_of(row))
        why: dict[str, str] = {}
        for row in failing:
            why[row.name] = "\n".join(filter(None, [why.get(row.name), reason(row)]))
        for item in items:
            reports = (
                self.by_test.get(item.nodeid) or failure(item.nodeid, item.location, missing)[1:2]
            )
            for report in reports:
                report.user_properties = [*report.user_properties, *properties.get(item.nodeid, [])]
                if item.nodeid in why and (
                    report.skipped or (report.when == "call" and report.passed)
                ):
                    report.outcome, report.longrepr = "failed", why[item.nodeid]
            self._log(item.nodeid, item.location, reports)
        collected = {item.nodeid for item in items}
        for name in (name for name in why if name not in collected):
            location = (name.partition("::")[0], None, name.partition("::")[2] or name)
            self._log(name, location, failure(name, location, why[name], properties[name]))

    def _log(self, name: str, location: Location, reports: Sequence[pytest.TestReport]) -> None:
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=name, location=location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=name, location=location)


def failure(
    name: str, location: Location, why: str, properties: Sequence[tuple[str, object]] = ()
) -> list[pytest.TestReport]:
    """The reports of a test that failed for this reason: set-up, call and teardown."""
    phases: dict[Any, Any] = {
        "setup": ("passed", None),
        "call": ("failed", why),
        "teardown": ("passed", None),
    }
    return [
        pytest.TestReport(name, location, {}, outcome, longrepr, when, user_properties=properties)
        for when, (outcome, longrepr) in phases.items()
    ]
