"""Reports the result: on the terminal, as the reports of the tests, and as Markdown for a CI's summary page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table, write_coloured
from prooflops.gate.decide import BUDGET, NOISE, PAIRS
from prooflops.gate.process import Replicate
from prooflops.history.rows import INSTRUCTIONS, SHOWN_LEVEL, TIME, Row, counts, figures, interval
from prooflops.history.rows import table as table_of

NARROW, WIDE = 80, 100  # columns
SHORTEST_NAME = 18
REMEDIES = {
    NOISE: "longer rounds, more --gate-replicates or a larger --gate-min-effect decide it",
    PAIRS: "more of them decide it",
    BUDGET: "a larger one or fewer benchmarks decide it",
}

Location = tuple[str, int | None, str]
Table = Sequence[Sequence[str]]
EXPLAIN = "if this is intended, store a new baseline: --gate-record NAME"


def sentence(row: Row) -> str:
    """Why the gate stops for this row.

    >>> print(sentence(Row("t.py::test_a", "flops", 1, 2, "CHANGED"))[:82], "...")
    CHANGED: t.py::test_a: flops is 2, but was 1, and is an exact quantity; if this is ...
    """
    name = f"{row.verdict}: {row.name}"
    if row.by == INSTRUCTIONS:
        return f"{name} by instructions, where time leaves it open: {row.note}"
    if row.quantity == TIME and row.verdict in ("SLOWER", "FASTER") and row.effect:
        bounds = f" [{interval(row.effect)}]"
        times = f"{engineering(row.after, 's')}, before {engineering(row.before, 's')}"
        note = f"; {row.note}" if row.note else ""
        return f"{name} takes {row.effect.ratio:.3f} times as long{bounds}: {times}, confirmed by a fresh batch{note}"
    if row.verdict == "MISSING":
        return f"{name}: {row.quantity} was {row.before} before, and is gone ({row.note}); {EXPLAIN}"
    if row.verdict == "MORE MEMORY":
        before, after = figures(row)
        held = f"{row.quantity} of a call is {after} at most, before {before}"
        return f"{name}: {held}; if this is intended, the ini setting gate_memory = show reports it without failing"
    if row.verdict == "MORE INSTRUCTIONS":
        before, after = figures(row)
        return f"{name}: a call takes {after} instructions, before {before}; gate_instructions = report lets it pass"
    if row.verdict == "CHANGED":
        return f"{name}: {row.quantity} is {row.after}, but was {row.before}, and is an exact quantity; {EXPLAIN}"
    return f"{name}: {row.quantity}: {row.note}"


def properties_of(row: Row) -> list[tuple[str, object]]:
    """A row as JUnit properties of its test: gate.time = SLOWER, gate.time.ratio = 1.1, its bounds, its noise."""
    found: dict[str, object] = {"": row.verdict, ".before": row.before, ".after": row.after}
    if row.effect:
        found |= {f".{key}": getattr(row.effect, key) for key in ("ratio", "low", "high", "noise")}
    found[".note"] = row.note or None
    return [(f"gate.{row.quantity}{key}", value) for key, value in found.items() if value is not None]


def short_lines(rows: Sequence[Row], most: int) -> list[str]:
    """A line for each row that is not SAME: verdict, ratio and interval, figures, name; the rest in one.

    >>> for line in short_lines([Row("t.py::test_a", "flops", 1, 2, "CHANGED"), Row("b", "bytes", 1, 1, "SAME")], 80):
    ...     print(line)
    CHANGED  flops: 1 -> 2  t.py::test_a
    1 CHANGED, 1 SAME
    """
    changed = [row for row in rows if row.verdict != "SAME"]
    cells = []
    for row in changed:
        ratio = f"{row.effect.ratio:.3f} ({interval(row.effect)})" if row.effect else ""
        named = row.quantity == TIME or row.verdict.endswith(f" {row.quantity.upper()}")
        cells.append([row.verdict, ratio, ("" if named else f"{row.quantity}: ") + " -> ".join(figures(row))])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row, three in zip(changed, cells, strict=True):
        start = "".join(cell.ljust(width) + "  " for cell, width in zip(three, widths, strict=True) if width)
        room = max(most - len(start), SHORTEST_NAME)
        lines.append(start + (row.name if len(row.name) <= room else "…" + row.name[1 - room :]))  # its end tells it
        if row.note and row.verdict in ("MISSING", "INCONCLUSIVE") and not row.effect:
            lines.append("  " + row.note)
    return [*lines, *one_line(rows)]


def one_line(rows: Sequence[Row]) -> list[str]:
    """The number of rows by verdict and the widest SAME; then, in one line, why others are open."""
    text = counts(rows) or "nothing compared"
    same = [row.effect.bounds(SHOWN_LEVEL) for row in rows if row.verdict == "SAME" and row.effect]
    if widest := max((max(high - 1, 1 / low - 1) for low, high, _ in same), default=0.0):
        text += f", the widest within {widest:.1%}"
    notes = [note for row in rows for note in row.note.split("; ")]
    ended = [f"{notes.count(reason)}: {reason}, {remedy}" for reason, remedy in REMEDIES.items() if reason in notes]
    beside = [note for note in notes if " replicates contended: " in note]
    if beside:
        ended.append(f"{len(beside)} of {len(rows)} ran beside other work ({beside[-1].partition(': ')[2]})")
    if any(reason in notes for reason in REMEDIES):
        ended.append("-v says it for each")
    return [text, *(["; ".join(ended)] if ended else [])]


def write_terminal(
    terminal: pytest.TerminalReporter, title: str, rows: Sequence[Row], lines: Sequence[str], table: Table, warning: str
) -> None:
    """Prints the warning, the rows that are not SAME, or with -v a table of all with notes (or `table`), the lines."""
    terminal.section(f"gate: {title}")
    if warning:
        terminal.write_line(f"warning: {warning}", yellow=True)
    if table:
        write_coloured(terminal, aligned(table))
    elif rows and terminal.verbosity > 0:
        # The notes are longer than all other cells: below the table.
        write_coloured(terminal, aligned(table_of([replace(row, note="") for row in rows])))
        lines = [*one_line(rows)[:1], *(f"{row.name}: {row.note}" for row in rows if row.note), *lines]
    elif rows:
        width = min(max(shutil.get_terminal_size().columns, NARROW), WIDE)
        write_coloured(terminal, short_lines(rows, width))
    for line in lines:
        terminal.write_line(line)


def write_step_summary(
    title: str, rows: Sequence[Row], lines: Sequence[str], failing: Sequence[Row], table: Table, warning: str
) -> None:
    """Appends Markdown to the file that $GITHUB_STEP_SUMMARY names; nothing where it is not set."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    text = [f"### Gate: {title}", "", *([f"**Warning: {warning}**", ""] if warning else [])]
    text += [f"**{len(failing)} stop the gate**", "", *(f"- {sentence(row)}" for row in failing), ""] if failing else []
    if table or rows:
        shown = table or table_of([row for row in rows if row.verdict != "SAME"])
        text += [f"{'. '.join(one_line(rows))}.", ""] if not table else []
        text += [*markdown_table(shown), ""] if len(shown) > 1 else []
    text += [f"{line}  " for line in lines]
    try:
        with open(target, "ab") as file:
            file.write(("\n".join(text) + "\n\n").encode())
    except OSError as error:
        print(f"gate: the summary could not be written: {error}")


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
                report.longrepr = tuple(report.longrepr)  # of a skip: pytest's reports insist on a tuple, JSON has none
            grouped.setdefault(report.nodeid, []).append(report)
        self.by_test |= {name: reports for name, reports in grouped.items() if name not in self.failed}
        self.failed = {report.nodeid for report in self if report.failed}

    def emit(self, items: Sequence[pytest.Item], rows: Sequence[Row], failing: Sequence[Row], broken: str) -> None:
        """Reports each test once; `failing` rows fail theirs, and `broken` (no record, why) all without a report."""
        missing = broken or "this test was collected here, but a fresh process of this side did not run it"
        properties: dict[str, list[tuple[str, object]]] = {}
        for row in rows:
            properties.setdefault(row.name, []).extend(properties_of(row))
        why: dict[str, str] = {}
        for row in failing:
            why[row.name] = "\n".join(filter(None, [why.get(row.name), sentence(row)]))
        for item in items:
            reports = self.by_test.get(item.nodeid) or failure(item.nodeid, item.location, missing)[1:2]
            for report in reports:
                report.user_properties = [*report.user_properties, *properties.get(item.nodeid, [])]
                if item.nodeid in why and (report.skipped or (report.when == "call" and report.passed)):
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
    phases: dict[Any, Any] = {"setup": ("passed", None), "call": ("failed", why), "teardown": ("passed", None)}
    return [
        pytest.TestReport(name, location, {}, outcome, longrepr, when, user_properties=properties)
        for when, (outcome, longrepr) in phases.items()
    ]
