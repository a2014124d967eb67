"""The rows of a comparison: one quantity of one benchmark or claim, before and after, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prooflops_gate.console.tables import binary, engineering
from prooflops_gate.history.records import PORTABLE
from prooflops_gate.statistics.effects import Effect

TIME, INSTRUCTIONS = "time", "instructions"
MEMORY = ("memory", "CUDA memory")
RESOURCES = (*MEMORY, INSTRUCTIONS)
VERDICTS = (  # the worst first
    "SLOWER", "MORE MEMORY", "CHANGED", "MISSING", "INCONCLUSIVE", "MORE INSTRUCTIONS", "FEWER INSTRUCTIONS", "FASTER",
    "LESS MEMORY", "NEW", "SAME",
)  # fmt: skip
SHOWN_LEVEL = (
    0.0125  # error rate of each printed bound; equals that of SAME at each of the gate's four looks
)
HEAD = ["benchmark", "quantity", "before", "after", "ratio", "interval", "verdict"]


@dataclass(frozen=True)
class Row:
    """One quantity of one benchmark, before and after."""

    name: str
    quantity: str  # "time", "verdict" (of a claim), or the key of an exact or portable figure
    before: Any
    after: Any
    verdict: str
    effect: Effect | None = None  # of a time or a portable ratio; above 1 is worse
    note: str = ""
    by: str = ""  # the quantity that decided, where there were two
    fresh: int = 0  # replicates that confirmed a verdict after it was suspected
    where: str = ""  # the functions that take more than before


def one_sided(name: str, quantity: str, before: Any, after: Any) -> Row:
    """The row of a quantity that only one side has: MISSING or NEW."""
    if after is not None:
        return Row(name, quantity, before, after, "NEW")
    return Row(
        name,
        quantity,
        before,
        after,
        "MISSING",
        note="removed, renamed, not selected, or it did not run",
    )


def with_skips(rows: Iterable[Row], reasons: Mapping[str, str]) -> list[Row]:
    """The rows, with INCONCLUSIVE for MISSING where the test was skipped: `reasons` by test vary from run to run."""
    return [
        replace(row, verdict="INCONCLUSIVE", note=f"skipped this time: {reasons[row.name]}")
        if row.verdict == "MISSING" and row.name in reasons
        else row
        for row in rows
    ]


def table(rows: Sequence[Row]) -> list[list[str]]:
    """HEAD, then the rows as text, without exact quantities that are the SAME."""
    return [
        HEAD,
        *(
            _cells(row)
            for row in rows
            if row.effect or row.quantity == TIME or row.verdict != "SAME"
        ),
    ]


def figures(row: Row) -> list[str]:
    """The figures of a row before and after, as text."""
    before, after = _figure(row, row.before), _figure(row, row.after)
    if row.quantity in RESOURCES and row.before:
        after += f" ({row.after / row.before - 1:+.1%})"
    return [before, after]


def _cells(row: Row) -> list[str]:
    ratio = f"{row.effect.ratio:.3f}" if row.effect else ""
    bounds = interval(row.effect) if row.effect else ""
    verdict = (
        row.verdict + (f" by {row.by}" if row.by else "") + (f": {row.note}" if row.note else "")
    )
    return [row.name, row.quantity, *figures(row), ratio, bounds, verdict]


def interval(effect: Effect) -> str:
    """The bounds of an effect as text. With too few pairs for its level, a lower confidence is named.

    >>> from prooflops_gate.statistics.effects import paired
    >>> interval(paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01)), interval(paired([1.0], [1.1], level=0.01))
    ('1.000 to 1.200, 88%', 'one pair')
    """
    if math.isfinite(effect.high):
        return f"{effect.low:.3f} to {effect.high:.3f}"
    low, high, level = effect.bounds(SHOWN_LEVEL)
    return (
        f"{low:.3f} to {high:.3f}, {math.floor(100 * (1 - level) + 0.5)}%"
        if level < 0.5
        else "one pair"
    )


def _figure(row: Row, value: Any) -> str:
    if value is None:
        return "-"
    if row.quantity == TIME:
        return engineering(float(value), "s")
    if row.quantity in RESOURCES:
        return engineering(float(value), "") if row.quantity == INSTRUCTIONS else binary(value)
    if row.quantity in PORTABLE:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counts(rows: Iterable[Row]) -> str:
    """The number of rows per verdict, the worst first: "1 SLOWER, 3 SAME"; empty without rows."""
    found = [row.verdict for row in rows]
    return ", ".join(
        f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found
    )
