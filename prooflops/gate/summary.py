"""Prints what the gate found: on the terminal, in JUnit's properties, and as Markdown for a CI's summary page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table, write_coloured
from prooflops.history import rows as comparison
from prooflops.history.rows import TIME, Row

SHOWN = 3  # names printed after a note that several rows have
EXPLAIN = "if this is intended, store a new baseline: --gate-record NAME"


def sentence(row: Row) -> str:
    """Why the gate stops for this row.

    >>> print(sentence(Row("t.py::test_a", "flops", 1, 2, "CHANGED"))[:82], "...")
    CHANGED: t.py::test_a: flops is 2, but was 1, and is an exact quantity; if this is ...
    """
    name = f"{row.verdict}: {row.name}"
    if row.quantity == TIME and row.verdict in ("SLOWER", "FASTER") and row.effect:
        bounds = f" [{comparison.interval(row.effect)}]"
        times = f"{engineering(row.after, 's')}, before {engineering(row.before, 's')}"
        return f"{name} takes {row.effect.ratio:.3f} times as long{bounds}: {times}, confirmed by a fresh batch"
    if row.verdict == "MISSING":
        return f"{name}: {row.quantity} was {row.before} before, and is gone ({row.note}); {EXPLAIN}"
    if row.verdict == "CHANGED":
        return f"{name}: {row.quantity} is {row.after}, but was {row.before}, and is an exact quantity; {EXPLAIN}"
    return f"{name}: {row.quantity}: {row.note}"


def properties(row: Row) -> list[tuple[str, object]]:
    """A row as JUnit properties of its test: gate.time = SLOWER, gate.time.ratio = 1.1 and its bounds."""
    figures: dict[str, object] = {"before": row.before, "after": row.after}
    if row.effect:
        figures |= {"ratio": row.effect.ratio, "low": row.effect.low, "high": row.effect.high}
    found: list[tuple[str, object]] = [(f"gate.{row.quantity}", row.verdict)]
    found += [(f"gate.{row.quantity}.{key}", value) for key, value in figures.items() if value is not None]
    return found + ([(f"gate.{row.quantity}.note", row.note)] if row.note else [])


def counts(rows: Iterable[Row]) -> str:
    """How many rows have which verdict, in words."""
    return comparison.counts(rows) or "nothing compared"


def notes(rows: Sequence[Row]) -> list[str]:
    """The notes of the rows as lines: one for each note that several rows have, then one for each row with its own.

    >>> rows = [Row(name, "time", 1.0, 1.0, "SAME", note="contended") for name in ("a", "b")]
    >>> notes([*rows, Row("c", "time", 1.0, 1.0, "INCONCLUSIVE", note="noise 9%; 53 would decide")])
    ['contended: a, b', 'c: noise 9%; 53 would decide']
    """
    names_by_note: dict[str, list[str]] = {}
    for row in rows:
        for note in filter(None, row.note.split("; ")):
            names_by_note.setdefault(note, []).append(row.name)
    lines, own = [], dict[str, list[str]]()
    for note, names in names_by_note.items():
        if len(names) == 1:
            own.setdefault(names[0], []).append(note)
        else:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"{note}: {', '.join(names[:SHOWN])}{more}")
    return lines + [f"{name}: {'; '.join(each)}" for name, each in own.items()]


def write_terminal(
    terminal: pytest.TerminalReporter,
    title: str,
    rows: Sequence[Row],
    lines: Sequence[str],
    table: Sequence[Sequence[str]] = (),
) -> None:
    """Prints the table of the rows (or the one given), their notes below it, and the further lines."""
    terminal.section(f"gate: {title}")
    if table or rows:
        # The notes are longer than all other cells: below the table, once for all rows that share one.
        write_coloured(terminal, aligned(table or comparison.table([replace(row, note="") for row in rows])))
    if rows and not table:
        lines = [counts(rows), *notes(rows), *lines]
    for line in lines:
        terminal.write_line(line)


def write_step_summary(
    title: str,
    rows: Sequence[Row],
    lines: Sequence[str],
    failing: Sequence[Row],
    table: Sequence[Sequence[str]] = (),
) -> None:
    """Appends Markdown to the file that $GITHUB_STEP_SUMMARY names; nothing where it is not set."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    text = [f"### Gate: {title}", ""]
    text += [f"**{len(failing)} stop the gate**", "", *(f"- {sentence(row)}" for row in failing), ""] if failing else []
    if table or rows:
        text += ["" if table else f"{counts(rows)}.", "", *markdown_table(table or comparison.table(rows)), ""]
    text += [f"{line}  " for line in lines]
    try:
        with open(target, "a", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n\n")
    except OSError as error:
        print(f"gate: the summary could not be written: {error}")
