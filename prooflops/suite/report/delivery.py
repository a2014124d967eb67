"""Does the device deliver? One line a figure: the best measured, its share, and what healthy devices reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accounting.devices.floors import Floor, compared
from prooflops.suite.report.measurement import Measurement


@dataclass(frozen=True)
class Line:
    """One figure of the device; `met` is None where it could not be compared."""

    figure: str
    met: bool | None
    text: str
    best: Mapping[str, Any] = field(default_factory=dict)  # the record's entry of the best row
    causes: tuple[str, ...] = ()  # why it falls short, as this machine shows

    @property
    def word(self) -> str:
        return {True: "delivers", False: "BELOW FLOOR", None: "not checked"}[self.met]

    def as_dict(self) -> dict[str, Any]:
        """The figure for programs: see verdicts.schema.json."""
        found = {key: self.best.get(key) for key in ("value", "unit", "share", "floor")}
        return {
            "figure": self.figure,
            "met": self.met,
            "text": self.text,
            **found,
            "causes": list(self.causes),
        }


def lines(benchmarks: Sequence[Measurement]) -> list[Line]:
    """A line for each figure with a floor, those below it first, then those that could not be compared, by reason."""
    found = figures(benchmarks)
    unknown: dict[str, list[str]] = {}
    for line in found:
        if line.met is None:
            unknown.setdefault(line.text, []).append(line.figure)
    compared = [line for line in found if line.met is not None]
    apart = [Line(", ".join(names), None, reason) for reason, names in unknown.items()]
    return [*sorted(compared, key=lambda line: bool(line.met)), *apart]


def summary(found: Sequence[Line]) -> str:
    """The lines in one sentence.

    >>> summary([Line("bf16", False, ""), Line("fp16", True, ""), Line("launch", None, "")])
    'BELOW FLOOR: bf16; 1 of 2 figures with a known floor is reached.'
    """
    below = [line.figure for line in found if line.met is False]
    known = [line for line in found if line.met is not None]
    if not known:
        return "Whether it delivers is not checked: no floor of its figures is known."
    reached = len(known) - len(below)
    text = f"{reached} of {len(known)} figures with a known floor {'is' if reached == 1 else 'are'} reached."
    return f"BELOW FLOOR: {', '.join(below)}; {text}" if below else f"Delivers: {text}"


def figures(benchmarks: Sequence[Measurement]) -> list[Line]:
    """A line for each figure. Of several rows of a figure the best counts; a row below its floor is named beside it."""
    rows: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for bench in benchmarks:
        entry = bench.info.get("delivers") or {}
        if "value" in entry:
            rows.setdefault(str(entry["figure"]), []).append((bench.name, entry))
    return [_line(figure, entries) for figure, entries in rows.items()]


def _line(figure: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Line:
    known = [(name, entry) for name, entry in rows if entry.get("met") is not None]
    if not known:
        return Line(figure, None, str(rows[0][1].get("unknown", "")), rows[0][1])
    is_time = known[0][1]["unit"] == "s"
    best = (min if is_time else max)(
        (entry for _, entry in known), key=lambda entry: entry["value"]
    )
    below = [(name, entry) for name, entry in known if not entry["met"]]
    floor = Floor(
        **{**best["floor"], "healthy": best["floor"]["healthy"] and tuple(best["floor"]["healthy"])}
    )
    text = f"{compared(best['value'], best['unit'], best['share'], floor)} ({floor})"
    causes = tuple(dict.fromkeys(cause for _, entry in below for cause in entry.get("causes", ())))
    if below:
        text += f"; below in {', '.join(name for name, _ in below)}: {', '.join(causes) or 'no cause is shown'}"
    return Line(figure, not below, text, best, causes)
