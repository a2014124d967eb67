"""The rows of a comparison.

One quantity of one benchmark, before and after, and the table of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prooflops_gate.console.tables import binary, engineering
from prooflops_gate.statistics.effects import Effect

TIME, INSTRUCTIONS = "time", "instructions"
MEMORY = ("memory", "CUDA memory")
# This decides if no process opened a file that differs.
FILES = "files"
RESOURCES = (*MEMORY, INSTRUCTIONS)
# The worst first.
VERDICTS = (
    "SLOWER",
    "MORE MEMORY",
    "CHANGED",
    "MISSING",
    "INCONCLUSIVE",
    "MORE INSTRUCTIONS",
    "FEWER INSTRUCTIONS",
    "FASTER",
    "LESS MEMORY",
    "GONE",
    "NEW",
    "SAME",
)
# Error rate of each printed bound; it equals SAME's at each of the gate's four looks.
SHOWN_LEVEL = 0.0125
HEAD = ["benchmark", "quantity", "before", "after", "ratio", "interval", "verdict"]


@dataclass(frozen=True)
class Row:
    """One quantity of one benchmark, before and after.

    `quantity` is "time", "instructions", "memory", or the key of an exact figure. `effect` is that
    of a time, above 1 is worse. `by` is the quantity that decided, where there were two. `fresh`
    pairs confirmed a verdict after it was suspected. `instructions` is the ratio of a time's
    instructions, 1 where they are the same. `where` names the functions that take more than before,
    or says why none is named; `test` the test that measured it, where that has another name.
    """

    name: str
    quantity: str
    before: Any
    after: Any
    verdict: str
    effect: Effect | None = None
    note: str = ""
    by: str = ""
    fresh: int = 0
    instructions: float | None = None
    where: str = ""
    test: str = ""

    @property
    def is_time(self) -> bool:
        return self.quantity == TIME

    @property
    def is_open(self) -> bool:
        """True if a time that was measured on both sides is not decided."""
        return self.is_time and self.verdict == "INCONCLUSIVE" and self.after is not None


def one_sided(name: str, quantity: str, before: Any, after: Any) -> Row:
    """The row of a quantity that only one side has: MISSING or NEW."""
    if after is not None:
        return Row(name, quantity, before, after, "NEW")
    note = "it did not run" if quantity == TIME else "it no longer reports this"
    return Row(name, quantity, before, after, "MISSING", note=note)


def with_skips(rows: Iterable[Row], reasons: Mapping[str, str]) -> list[Row]:
    """The rows, with INCONCLUSIVE for MISSING where the test was skipped.

    `reasons` by test vary from run to run.
    """
    found = []
    for row in rows:
        if row.verdict == "MISSING" and row.name in reasons:
            note = f"skipped this time: {reasons[row.name]}"
            found.append(replace(row, verdict="INCONCLUSIVE", note=note))
        else:
            found.append(row)
    return found


def joined(*notes: str) -> str:
    """The notes that are not empty, as one."""
    return "; ".join(filter(None, notes))


def table(rows: Sequence[Row]) -> list[list[str]]:
    """HEAD, then the rows as text, without exact quantities that are the SAME."""
    shown = [row for row in rows if row.is_time or row.verdict != "SAME"]
    return [HEAD, *map(_cells, shown)]


def figures(row: Row) -> list[str]:
    """The figures of a row before and after, as text.

    >>> figures(Row("test_a", "flops", 1000, True, "CHANGED"))
    ['1,000', 'True']
    """
    return [_figure(row, row.before), _figure(row, row.after)]


def _cells(row: Row) -> list[str]:
    ratio, bounds = "", ""
    if row.effect:
        ratio, bounds = f"{row.effect.ratio:.3f}", interval(row.effect)
    elif (row.is_time or row.quantity in RESOURCES) and row.before and row.after:
        ratio = f"{row.after / row.before:.3f}"
    verdict = row.verdict + (f" by {row.by}" if row.by else "")
    return [row.name, row.quantity, *figures(row), ratio, bounds, verdict]


def interval(effect: Effect) -> str:
    """The bounds of an effect as text, at one level everywhere, whichever look decided.

    With too few pairs for it, a lower confidence is named.

    >>> from prooflops_gate.statistics.effects import paired
    >>> interval(paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01))
    '1.000 to 1.200, 88%'
    >>> interval(paired([1.0], [1.1], level=0.01))
    'one pair'
    >>> after = [1 + number / 100 for number in range(13)]
    >>> [interval(paired([1.0] * 13, after, level=level)) for level in (0.01, 0.0002)]
    ['1.030 to 1.090', '1.030 to 1.090']
    """
    low, high, level = effect.bounds(SHOWN_LEVEL)
    if level >= 0.5:
        return "one pair"
    sure = f", {1 - level:.0%}" if level > SHOWN_LEVEL else ""
    return f"{low:.3f} to {high:.3f}{sure}"


def _figure(row: Row, value: Any) -> str:
    if value is None:
        return "-"
    if row.is_time:
        return engineering(float(value), "s")
    if row.quantity in RESOURCES:
        return engineering(float(value), "") if row.quantity == INSTRUCTIONS else binary(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """The number of benchmarks by their worst verdict, the worst first.

    >>> rows = [Row("a", "flops", 1, 2, "CHANGED"), Row("a", "time", 1, 2, "SLOWER")]
    >>> counts([Row("b", "time", 1, 1, "SAME"), *rows])
    {'SLOWER': 1, 'SAME': 1}
    """
    return dict(Counter(worst_verdicts(rows).values()))


def worst_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: VERDICTS.index(row.verdict))


def worst_verdicts(rows: Iterable[Row]) -> dict[str, str]:
    """The worst verdict on each benchmark, by its name, the worst first."""
    worst: dict[str, str] = {}
    for row in worst_first(rows):
        worst.setdefault(row.name, row.verdict)
    return worst
