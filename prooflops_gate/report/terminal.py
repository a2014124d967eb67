"""A comparison on the terminal: the verdict, the rows that matter, what to do next."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence

from prooflops_gate.console.tables import COLOURS, TerminalLine, aligned, coloured, many
from prooflops_gate.report.result import Result
from prooflops_gate.report.sentences import change, sentence, unchanged
from prooflops_gate.rows import INSTRUCTIONS, SHOWN_LEVEL, VERDICTS, Row, joined, worst_verdicts
from prooflops_gate.rows import table as table_of

MOST_LINES = 20
# At most this many open benchmarks are named.
MOST_NAMED = 3


def rows_that_matter(rows: Sequence[Row]) -> list[Row]:
    """The rows that are not SAME, those of the worst benchmark first.

    Instructions that changed have a row of their own only where time did not.
    """
    worst = worst_verdicts(rows)
    told = {row.name for row in rows if row.is_time and row.effect and row.verdict != "SAME"}
    found = []
    for row in rows:
        is_told = row.quantity == INSTRUCTIONS and row.name in told
        if row.verdict != "SAME" and not is_told:
            found.append(row)
    return sorted(found, key=lambda row: VERDICTS.index(worst[row.name]))


def lines_of_rows(
    rows: Sequence[Row], most: float = MOST_LINES, passing: Container[str] = ()
) -> list[TerminalLine]:
    """A line for each row that matters; one for many that are open, and one for all that are SAME.

    The verdicts in `passing` fail nothing, and their lines say so.

    >>> rows = [Row("t.py::test_a", "flops", 1, 2, "CHANGED"), Row("b", "bytes", 1, 1, "SAME")]
    >>> [line.text for line in lines_of_rows(rows)]
    ['t.py::test_a: flops is 2, but was 1']
    """
    found = rows_that_matter(rows)
    open_ = [row for row in found if row.is_open]
    if len(open_) > MOST_NAMED and math.isfinite(most):
        found = [row for row in found if not row.is_open]
    else:
        open_ = []
    lines = [
        TerminalLine(
            sentence(row) + " (reported only)" * (row.verdict in passing),
            COLOURS.get(row.verdict, ""),
        )
        for row in found
    ]
    if len(lines) > most:
        lines[int(most) :] = [TerminalLine(f"... and {len(lines) - most} more: -v")]
    if open_:
        lines.append(TerminalLine(widest(open_), COLOURS["INCONCLUSIVE"]))
    worst = worst_verdicts(rows)
    known = unchanged([row for row in rows if worst[row.name] == "SAME"])
    return [*lines, TerminalLine(f"SAME: {known}")] if known else lines


def widest(rows: Sequence[Row]) -> str:
    """The number of open benchmarks, and the ones that could hide most."""
    highest = {row.name: row.effect.interval(SHOWN_LEVEL)[1] for row in rows if row.effect}
    first = sorted(highest, key=lambda name: -highest[name])[:MOST_NAMED]
    named = ", ".join(
        f"{name} (up to {change(highest[name])})"
        if math.isfinite(highest[name])
        else f"{name} (too few pairs)"
        for name in first
    )
    return f"{many(len(rows), 'benchmark')} are not decided, the widest: {named}"


def details_of(result: Result) -> list[str]:
    """Details of each row beside its sentence, and of the run."""
    found = []
    for row in result.rows:
        fresh = f"confirmed by {row.fresh} fresh pairs" if row.fresh else ""
        known = joined(fresh, row.note, row.where)
        found += [f"{row.name}: {known}"] * bool(known)
    beside = sum(" processes contended: " in row.note for row in result.rows)
    if beside:
        benchmarks = many(len(worst_verdicts(result.rows)), "benchmark")
        found.append(f"{beside} of {benchmarks} ran beside other work")
    return [*found, *result.details]


def box(result: Result, *, is_verbose: bool) -> Iterator[TerminalLine]:
    """The verdict, the rows that matter, and what to do next."""
    yield TerminalLine(result.verdict, bold=True)
    if result.warning:
        yield TerminalLine(f"warning: {result.warning}", colour="yellow")
    if result.table:
        yield from map(coloured, aligned(result.table))
    else:
        most = math.inf if is_verbose else MOST_LINES
        yield from lines_of_rows(result.rows, most, result.reported_only)
    if result.next_step:
        yield TerminalLine(f"next: {result.next_step}", bold=True)


def below_the_box(result: Result, *, is_verbose: bool) -> Iterator[TerminalLine]:
    """Notes on the run; with -v the figures and all details."""
    yield from map(TerminalLine, result.lines)
    if not is_verbose:
        return
    if result.rows and not result.table:
        yield from map(coloured, ["", *aligned(table_of(result.rows)), ""])
    yield from map(TerminalLine, details_of(result))
