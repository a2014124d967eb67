"""The floors of this run: from --floor, a reference record, or `accounting.devices.floors`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from accounting.devices import bandwidth_bytes_per_s
from accounting.devices.floors import (
    FIGURES,
    GROUPS,
    MARGIN,
    MARGIN_OF_ONE,
    NOMINAL,
    Floor,
    floor_of,
    pcie_bytes_per_s,
)
from prooflops.machine import device as machine
from prooflops.machine import health
from prooflops.suite.options import named_number
from prooflops.suite.peaks import Peaks
from prooflops_gate.console.tables import engineering

# Units of figures whose floor may be no share.
ABSOLUTE = {"launch": "s", "to-device": "B/s", "to-host": "B/s", "peer": "B/s", "all-reduce": "B/s"}
VALID = (*FIGURES, *GROUPS)
# The bounds of a floor in that unit, and how it is written: beyond them the unit is wrong.
BOUNDS = {
    "s": (1e-7, 1e-3, "in seconds, 8 µs is launch=8e-6"),
    "B/s": (1e8, 1e14, "in bytes per second, 52 GB/s is link=52e9; or a share, as in link=0.6"),
}


def stated_floors(texts: Sequence[str]) -> dict[str, float]:
    """Floors as --floor states them.

    Raises ValueError for an unknown figure or an impossible value.

    >>> stated_floors(["bf16=0.7", "link=0.5"])
    {'bf16': 0.7, 'to-device': 0.5, 'to-host': 0.5}
    >>> stated_floors(["bf17=0.7"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --floor bf17=0.7: the figure must be one of bf16, fp16, ..., memory, link, mfu, ...
    >>> stated_floors(["bf16=70"])
    Traceback (most recent call last):
    ValueError: --floor bf16=70: a share of the nominal rate is at most 1; 70 % is bf16=0.7
    >>> stated_floors(["launch=8"])
    Traceback (most recent call last):
    ValueError: --floor launch=8: 8.00 s is impossible; in seconds, 8 µs is launch=8e-6
    """
    floors: dict[str, float] = {}
    for text in texts:
        name, value = named_number(text, "--floor", "figure", VALID)
        figures = GROUPS.get(name, (name,))
        unit = ABSOLUTE.get(figures[0], "")
        is_share = unit != "s" and value <= 1
        if not unit and not is_share:
            hint = f"; {value:g} % is {name}={value / 100:g}" if value <= 100 else ""
            raise ValueError(f"--floor {text}: a share of the nominal rate is at most 1{hint}")
        if not is_share:
            least, most, form = BOUNDS[unit]
            if not least <= value <= most:
                raise ValueError(
                    f"--floor {text}: {engineering(value, unit)} is impossible; {form}"
                )
        floors |= dict.fromkeys(figures, value)
    return floors


def reference_floors(file: str | Path, margin: float = MARGIN) -> dict[str, Floor]:
    """The floor of each benchmark of a healthy machine: its figure less its spread and a margin.

    `file`: a run record, or a file of `make evidence`. Raises ValueError for another, or where no
    benchmark has a figure with a floor.
    """
    try:
        benchmarks = [bench for row in _rows(Path(file)) for bench in row.get("benchmarks", ())]
        floors = {
            bench["fullname"]: _reference_floor(bench, str(file), margin)
            for bench in benchmarks
            if _figure(bench)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"--reference {file} must be a run record or a file of make evidence: {reason}"
        ) from error
    if not floors:
        raise ValueError(
            f"--reference {file}: none of its {len(benchmarks)} benchmarks has a figure with a "
            f"floor"
        )
    return floors


def refuse_another_machine(file: str | Path, device: torch.device) -> None:
    """Raises ValueError where a reference is the record of another kind of device, naming both.

    A file that names no device is left to `reference_floors`.
    """
    here = f"{machine.name(device)} ({device.type})"
    there = recorded_device(Path(file))
    if there not in ("", here):
        raise ValueError(
            f"--reference {file} is the record of a {there}, and this device is a {here}: name the "
            "record of a healthy machine of this kind"
        )


def recorded_device(file: Path) -> str:
    """The device of a run record or of a run's file, as "name (kind)"; empty if none is named."""
    try:
        for row in islice(_rows(file), 5):
            facts = row.get("prooflops", row).get("fingerprint")
            if facts:
                return f"{facts['name']} ({facts['device']})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # No record, or a part of one.
        pass
    return ""


def _rows(file: Path) -> Iterator[Any]:
    """The lines of a run's file, or the one object of a record."""
    with file.open(encoding="utf-8") as text:
        yield from map(json.loads, text if file.suffix == ".jsonl" else [text.read()])


def _figure(bench: Mapping[str, Any]) -> Mapping[str, Any]:
    delivered: Mapping[str, Any] = bench.get("extra_info", {}).get("delivers", {})
    return delivered if "value" in delivered else {}


def _reference_floor(bench: Mapping[str, Any], file: str, margin: float) -> Floor:
    figure = _figure(bench)
    less = 1 - min(bench["stats"]["iqr"] / bench["stats"]["median"] + margin, 0.5)
    limit = figure["value"] / less if figure["unit"] == "s" else figure["value"] * less
    return Floor(
        figure["figure"], limit, figure["unit"], None, Path(file).stem, f"reference {file}"
    )


def committed_floors(folder: Path, device: torch.device) -> dict[str, Floor]:
    """Floors of the newest evidence of an accelerator of this name; empty for a CPU."""
    if device.type == "cpu":
        return {}
    here = f"{machine.name(device)} ({device.type})"
    for file in sorted(folder.glob("*.jsonl"), key=lambda file: file.stem[-10:], reverse=True):
        # Evidence may be cut off, or have no figure with a floor.
        with contextlib.suppress(ValueError):
            if recorded_device(file) == here:
                return reference_floors(file, MARGIN_OF_ONE)
    return {}


@dataclass(frozen=True)
class Floors:
    """The floor of each figure of a device, and the nominal rates that shares are of."""

    device: torch.device
    peaks: Peaks
    stated: Mapping[str, float] = field(default_factory=dict)
    reference: Mapping[str, Floor] = field(default_factory=dict)

    def of(self, figure: str, test: str) -> Floor | None:
        """The floor of a figure in a test: the option's, the reference's, or the table's."""
        if figure in self.stated:
            value = self.stated[figure]
            return Floor(figure, value, self._unit(figure, value), None, "--floor", "--floor")
        if test in self.reference:
            return self.reference[test]
        return floor_of(machine.accelerator(self.device), figure, self.device.type)

    def nominal(
        self, of: str, dtype: str = "", units_flop_per_s: float | None = None
    ) -> float | None:
        """The rate that a share is of, in FLOP/s or bytes per second; None if unknown.

        `units_flop_per_s`: what all units did at the clock of the measurement. The higher of it and
        of the peak at the first clock is that of a CPU without one on record.
        """
        if of == "peak":
            on_record = self.peaks.flop_per_s(dtype)
            if on_record or self.device.type != "cpu":
                return on_record
            return max(units_flop_per_s or 0.0, self.peaks.derived.get(dtype, 0.0)) or None
        if of == "bandwidth":
            return bandwidth_bytes_per_s(machine.accelerator(self.device))
        link = health.link(self.device) if of == "link" else {}
        return (
            pcie_bytes_per_s(link["possible_generation"], link["possible_width"]) if link else None
        )

    def at_clock(self, dtype: str, clock_hz: float) -> float | None:
        """FLOP/s of all units at a clock; None if unknown."""
        return machine.flop_per_s_at_clock(self.device, dtype, clock_hz)

    def why_unknown(self, floor: Floor | None, dtype: str = "") -> str:
        """The reason why a figure cannot be compared."""
        if floor is None:
            return "no known floor"
        if self.device.type == "cpu" and floor.of == "peak":
            return machine.why_no_running_peak(dtype)
        return f"{NOMINAL[floor.of]} of this device is not on record"

    @staticmethod
    def _unit(figure: str, value: float) -> str:
        if unit := ABSOLUTE.get(figure):
            return "link" if unit == "B/s" and value <= 1 else unit
        return "bandwidth" if figure in GROUPS["memory"] else "peak"
