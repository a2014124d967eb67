"""Does the device deliver? One line a figure: the best measured, its share, and what healthy devices reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounting.devices.floors import NOMINAL, Floor, shown
from prooflops.suite.report.measurement import Measurement


@dataclass(frozen=True)
class Line:
    """One figure of the device; `met` is None where it could not be compared."""

    figure: str
    met: bool | None
    text: str


def lines(benchmarks: Sequence[Measurement]) -> list[Line]:
    """A line for each figure with a floor, those below it first, then those that could not be compared.

    Of several rows of a figure the best counts, and a row below its floor is named beside it.
    """
    rows: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for bench in benchmarks:
        entry = bench.info.get("delivers") or {}
        if "value" in entry:
            rows.setdefault(str(entry["figure"]), []).append((bench.name, entry))
    found = [_line(figure, entries) for figure, entries in rows.items()]
    unknown: dict[str, list[str]] = {}
    for line in found:
        if line.met is None:
            unknown.setdefault(line.text, []).append(line.figure)
    compared = [line for line in found if line.met is not None]
    apart = [Line(", ".join(names), None, f"not checked: {reason}") for reason, names in unknown.items()]
    return [*sorted(compared, key=lambda line: bool(line.met)), *apart]


def _line(figure: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Line:
    known = [(name, entry) for name, entry in rows if entry.get("met") is not None]
    if not known:
        return Line(figure, None, str(next(iter(rows))[1].get("unknown", "")))
    is_time = known[0][1]["unit"] == "s"
    best = (min if is_time else max)((entry for _, entry in known), key=lambda entry: entry["value"])
    below = [(name, entry) for name, entry in known if not entry["met"]]
    floor = Floor(**{**best["floor"], "healthy": best["floor"]["healthy"] and tuple(best["floor"]["healthy"])})
    share = f", {shown(best['share'], floor.of)}" if floor.of in NOMINAL else ""
    text = f"{shown(best['value'], best['unit'])}{share} ({floor})"
    if below:
        causes = dict.fromkeys(cause for _, entry in below for cause in entry.get("causes", ()))
        text += f"; below in {', '.join(name for name, _ in below)}: {', '.join(causes) or 'no cause is shown'}"
    return Line(figure, not below, text)
