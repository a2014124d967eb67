"""Exact quantities of the benchmarks, compared by equality: one process a side is enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prooflops_gate.history.records import Timed
from prooflops_gate.rows import Row, one_sided

# One benchmark's processes, before and after.
Sides = tuple[Sequence[Timed], Sequence[Timed]]


def exact_rows(both: Mapping[str, Sides]) -> list[Row]:
    """The exact quantities of these benchmarks; none of one that only a side has.

    It is NEW or MISSING as a whole.
    """
    rows = []
    for name, (before, after) in both.items():
        if not (before and after):
            continue
        for key in dict.fromkeys(key for timed in (*after, *before) for key in timed.exact):
            old = [timed.exact[key] for timed in before if key in timed.exact]
            new = [timed.exact[key] for timed in after if key in timed.exact]
            rows.append(_exact_row(name, key, _different(old), _different(new)))
    return rows


def _different(given: Iterable[Any]) -> list[Any]:
    """The different values, in order.

    1 and 1.0 are one, True and 1 are not, NaN is like any other NaN.
    """
    found: list[Any] = []
    for value in given:
        if not any(_is_same(value, known) for known in found):
            found.append(value)
    return found


def _is_same(value: Any, known: Any) -> bool:
    if isinstance(value, float) and isinstance(known, float):
        return value == known or (math.isnan(value) and math.isnan(known))
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)


def _exact_row(name: str, key: str, before: list[Any], after: list[Any]) -> Row:
    first, second = _shown(before), _shown(after)
    if not before or not after:
        return one_sided(name, key, first, second)
    if len(before) > 1 or len(after) > 1:
        # A figure that differs between runs of one side is not exact, so its change means nothing.
        new = [value for value in after if value not in before]
        note = "differs from process to process: not an exact quantity"
        return Row(name, key, first, second, "CHANGED" if new else "SAME", note=note)
    return Row(name, key, first, second, "SAME" if _is_same(first, second) else "CHANGED")


def _shown(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values) or None
