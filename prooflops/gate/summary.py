"""What the gate found: on the terminal, in JUnit's properties, and as Markdown for a CI's summary page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table, write_coloured
from prooflops.history import comparison as compare

SHOWN = 3  # names that bear a note, on the terminal
EXPLAIN = "if it is meant, store a new baseline: --gate-record NAME"


def sentence(row: compare.Row) -> str:
    """Why the gate stops for this row.

    >>> print(sentence(compare.Row("t.py::test_a", "flops", 1, 2, "CHANGED"))[:88], "...")
    CHANGED: t.py::test_a: flops is 2, but was 1, and is an exact quantity; if it is meant, ...
    """
    name = f"{row.verdict}: {row.name}"
    if row.quantity == compare.TIME and row.verdict in ("SLOWER", "FASTER") and row.effect:
        bounds = f" [{compare.interval(row.effect)}]"
        times = f"{engineering(row.after, 's')}, before {engineering(row.before, 's')}"
        return f"{name} takes {row.effect.ratio:.3f} times as long{bounds}: {times}, confirmed by a fresh batch"
    if row.verdict == "MISSING":
        return f"{name}: {row.quantity} was {row.before} before, and is gone ({row.note}); {EXPLAIN}"
    if row.verdict == "CHANGED":
        return f"{name}: {row.quantity} is {row.after}, but was {row.before}, and is an exact quantity; {EXPLAIN}"
    return f"{name}: {row.quantity}: {row.note}"


def properties(rows: Sequence[compare.Row]) -> list[tuple[str, object]]:
    """A test's rows as JUnit properties: gate.time = SLOWER, gate.time.ratio = 1.1 and its bounds."""
    found: list[tuple[str, object]] = []
    for row in rows:
        found.append((f"gate.{row.quantity}", row.verdict))
        figures: dict[str, object] = {"before": row.before, "after": row.after}
        if row.effect:
            figures |= {"ratio": row.effect.ratio, "low": row.effect.low, "high": row.effect.high}
        found += [(f"gate.{row.quantity}.{key}", value) for key, value in figures.items() if value is not None]
        if row.note:
            found.append((f"gate.{row.quantity}.note", row.note))
    return found


def counts(rows: Sequence[compare.Row]) -> str:
    """How many rows have which verdict, in words."""
    return ", ".join(f"{count} {verdict}" for verdict, count in compare.counts(rows).items()) or "nothing compared"


def notes(rows: Sequence[compare.Row]) -> list[str]:
    """The notes of the rows as lines: one for each that several bear, and one for each row with all of its own.

    >>> rows = [compare.Row(name, "time", 1.0, 1.0, "SAME", note="contended") for name in ("a", "b")]
    >>> notes([*rows, compare.Row("c", "time", 1.0, 1.0, "INCONCLUSIVE", note="noise 9%; 53 would decide")])
    ['contended: a, b', 'c: noise 9%; 53 would decide']
    """
    bearers: dict[str, list[str]] = {}
    for row in rows:
        for note in filter(None, row.note.split("; ")):
            bearers.setdefault(note, []).append(row.name)
    lines, own = [], dict[str, list[str]]()
    for note, names in bearers.items():
        if len(names) == 1:
            own.setdefault(names[0], []).append(note)
        else:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"{note}: {', '.join(names[:SHOWN])}{more}")
    return lines + [f"{name}: {'; '.join(told)}" for name, told in own.items()]


def write_terminal(
    terminal: pytest.TerminalReporter,
    title: str,
    rows: Sequence[compare.Row],
    lines: Sequence[str],
    table: Sequence[Sequence[str]] = (),
) -> None:
    """The table of the rows (or the one given), their notes below it, and what else is to be said."""
    terminal.section(f"gate: {title}")
    if table or rows:
        # The notes are longer than all other cells: below the table, once for all rows that share one.
        write_coloured(terminal, aligned(table or compare.table([replace(row, note="") for row in rows])))
    if rows and not table:
        terminal.write_line(counts(rows))
        for line in notes(rows):
            terminal.write_line(line)
    for line in lines:
        terminal.write_line(line)


def write_step_summary(
    title: str,
    rows: Sequence[compare.Row],
    lines: Sequence[str],
    failing: Sequence[compare.Row],
    table: Sequence[Sequence[str]] = (),
) -> None:
    """Appends Markdown to the file that $GITHUB_STEP_SUMMARY names; nothing where it is not set."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    text = [f"### Gate: {title}", ""]
    text += [f"**{len(failing)} stop the gate**", "", *(f"- {sentence(row)}" for row in failing), ""] if failing else []
    if table or rows:
        text += ["" if table else f"{counts(rows)}.", "", *markdown_table(table or compare.table(rows)), ""]
    text += [f"{line}  " for line in lines]
    try:
        with open(target, "a", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n\n")
    except OSError as error:
        print(f"gate: the summary could not be written: {error}")
