"""What a comparison says on the terminal.

A sentence for each row that is not SAME, and one last line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from prooflops_gate.console.tables import TerminalLine, aligned, coloured, many
from prooflops_gate.instruments.pace import TOO_LONG
from prooflops_gate.instruments.time_rule import BUDGET, NOISE, PAIRS, excluded
from prooflops_gate.report.result import Result
from prooflops_gate.report.sentences import sentence, unchanged
from prooflops_gate.rows import SHOWN_LEVEL, VERDICTS, Row
from prooflops_gate.rows import table as table_of

REMEDIES = {
    NOISE: "longer rounds, more --gate-replicates or a larger --gate-min-effect decide it",
    PAIRS: "more of them decide it",
    BUDGET: "a larger one or fewer benchmarks decide it",
    TOO_LONG: "a larger one (--gate-budget) or shorter rounds decide it",
}
MOST_LINES_OF_A_VERDICT = 20
# So many open benchmarks with one reason are named.
MOST_NAMED = 3


def sections(
    rows: Sequence[Row], most: float = MOST_LINES_OF_A_VERDICT
) -> list[tuple[str, list[str]]]:
    """The rows by verdict, the worst first: a heading, and what is said of those that are not SAME.

    >>> rows = [Row("t.py::test_a", "flops", 1, 2, "CHANGED"), Row("b", "bytes", 1, 1, "SAME")]
    >>> changed, same = sections(rows)
    >>> changed
    ('CHANGED (1)', ['t.py::test_a: flops is 2, but was 1, and is an exact quantity'])
    """
    found = []
    for verdict in VERDICTS:
        group = [row for row in rows if row.verdict == verdict]
        if not group:
            continue
        heading, said = f"{verdict} ({len(group)})", []
        if verdict == "SAME":
            known = unchanged(group)
            heading += f": {known}" if known else ""
        elif verdict == "INCONCLUSIVE" and len(group) > MOST_NAMED and math.isfinite(most):
            said = open_groups(group)
        else:
            said = [f"{sentence(row)}{why(row)}" for row in group]
        if len(said) > most:
            said[int(most) :] = [f"... and {len(said) - most} more: -v"]
        found.append((heading, said))
    return found


def open_groups(rows: Sequence[Row]) -> list[str]:
    """A line for each reason why benchmarks are open, which names those that could hide most."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(reason_of(row), []).append(row)
    lines = []
    for reason, group in groups.items():
        if not reason:
            lines += [sentence(row) for row in group]
            continue
        widest = sorted(group, key=widest_s, reverse=True)[:MOST_NAMED]
        named = ", ".join(f"{row.name} ({excluded(row.effect)})" for row in widest if row.effect)
        others = len(group) - len(widest)
        more = f", and {others} less wide" if others else ""
        lines.append(f"{many(len(group), 'benchmark')}: {reason}; the widest: {named}{more}")
    return lines


def widest_s(row: Row) -> float:
    """The largest ratio that a row does not exclude."""
    return row.effect.bounds(SHOWN_LEVEL)[1] if row.effect else 0.0


def reason_of(row: Row) -> str:
    """Why an open benchmark is open; empty where its own sentence says it."""
    if row.verdict != "INCONCLUSIVE" or not row.effect:
        return ""
    reasons = row.note.split("; ")
    return next((reason for reason in REMEDIES if reason in reasons), "")


def why(row: Row) -> str:
    """Why an open benchmark is open, and where the work went.

    A failure's own text names all functions.
    """
    if row.where:
        return f"; {row.where.partition(', ')[0] if row.verdict == 'SLOWER' else row.where}"
    reason = reason_of(row)
    return f": {reason}" if reason else ""


def remedies(rows: Sequence[Row]) -> list[str]:
    """What decides the benchmarks that are open, and what ran beside them; each once."""
    open_ = Counter(reason_of(row) for row in rows)
    lines = [f"{reason}: {REMEDIES[reason]}" for reason in REMEDIES if open_[reason]]
    notes = [note for row in rows for note in row.note.split("; ")]
    beside = [note for note in notes if " processes contended: " in note]
    if beside:
        what = beside[-1].partition(": ")[2]
        lines.append(f"{len(beside)} of {len(rows)} ran beside other work ({what})")
    return lines


def lines_of(result: Result, *, is_verbose: bool) -> Iterator[TerminalLine]:
    """A sentence for each row that is not SAME under its verdict, and one last line.

    With -v all there is.
    """
    if result.warning:
        yield TerminalLine(f"warning: {result.warning}", colour="yellow")
    if result.table:
        yield from map(coloured, aligned(result.table))
    else:
        yield from _row_lines(result.rows, is_verbose=is_verbose)
    details = result.details if is_verbose else ()
    yield from map(TerminalLine, (*result.lines, *details))
    if result.last:
        yield TerminalLine(result.last, bold=True)


def _row_lines(rows: Sequence[Row], *, is_verbose: bool) -> Iterator[TerminalLine]:
    for heading, said in sections(rows, math.inf if is_verbose else MOST_LINES_OF_A_VERDICT):
        yield coloured(heading)._replace(bold=True)
        for line in said:
            yield TerminalLine(f"  {line}")
    if not is_verbose:
        yield from map(TerminalLine, remedies(rows))
    elif rows:
        # The notes are longer than all other cells: below the table.
        plain = [replace(row, note="") for row in rows]
        yield from map(coloured, ["", *aligned(table_of(plain)), ""])
        for row in rows:
            if row.note:
                yield TerminalLine(f"{row.name}: {row.note}")
