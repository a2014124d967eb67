"""Fails a benchmark whose figure falls short of its floor twice.

It is measured again after a pause, and the better figure counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from accounting.devices.floors import NOMINAL, Floor, compared
from bench.products import Product
from prooflops import timing
from prooflops.precision import Float32Products

# A card cools meanwhile, and other work ends.
PAUSE_S = {"quick": 0.5, "default": 5.0, "thorough": 10.0}
ROUNDS_AGAIN = 15
# Untimed calls, until the clock of an accelerator is steady.
AGAIN_S = 1.0
# The field of a record that holds a rate of this unit.
RATES = {"FLOP/s": "flop_per_s", "OP/s": "op_per_s", "B/s": "bytes_per_s"}


class BelowFloor(AssertionError):
    """A figure falls short of what a healthy device of this kind delivers."""


@dataclass(frozen=True)
class Figure:
    """A measured figure, and the floor and nominal rate it is compared with."""

    figure: str
    value: float
    unit: str
    floor: Floor
    # The rate that the floor is a share of.
    nominal: float | None
    # The share of what all units do at the clock that ran.
    at_clock: float | None = None
    # True if the row's own figure fell short, and this one is of a second measurement.
    again: bool = False

    @property
    def share(self) -> float:
        """The value in the floor's unit."""
        return self.value / self.nominal if self.nominal else self.value

    @property
    def met(self) -> bool:
        return self.floor.is_met(self.share, self.at_clock)

    def undisturbed(self, slowed_at_most: float | None) -> Figure | None:
        """The best that it can be without competing work; None where nothing bounds that."""
        if slowed_at_most is None:
            return None
        factor = 1 / slowed_at_most if self.unit == "s" else slowed_at_most
        at_clock = self.at_clock and self.at_clock * factor
        return replace(self, value=self.value * factor, at_clock=at_clock)


@dataclass
class Delivery:
    """Asserts the floors of one benchmark's figures, and records them as `delivers`."""

    device: torch.device
    floors: Any
    test: str
    info: dict[str, Any]
    pace: str
    conditions: Callable[[], AbstractContextManager[dict[str, Any]]]
    causes: Callable[[dict[str, Any], str], list[str]]
    active: bool = True

    def product(self, dtype: str, case: Product, *, figure: str = "") -> None:
        """Asserts the floor of a product that was measured.

        `figure` is given where it is not that of the dtype.
        """
        __tracebackhide__ = True
        unit = "OP/s" if dtype == "int8" else "FLOP/s"
        self.check(figure or dtype, case.work.flops, unit, case.multiply, dtype=dtype)

    def check(
        self,
        figure: str,
        amount: float,
        unit: str,
        function: Callable[[], object] | None,
        *,
        seconds: float | None = None,
        dtype: str = "",
        ceiling: Callable[[], float] | None = None,
    ) -> None:
        """Asserts the floor of `figure`: `amount` over `seconds` (as measured), or the time.

        A figure has one floor, and one row compares the two. If the figure falls short, `function`
        is measured once more after a pause; None where ranks would not do so alike.
        `ceiling`: the rate of this run's best product, for a floor that is a share of it.
        Raises BelowFloor if the figure falls short twice.
        """
        __tracebackhide__ = True
        if not self.active:
            return
        if seconds is None:
            seconds = amount / float(self.info[RATES[unit]])
        floor = self.floors.of(figure, self.test)
        nominal = None
        if floor is not None and floor.of == "ceiling" and ceiling is not None:
            nominal = ceiling()
        elif floor is not None and floor.of in NOMINAL:
            units_flop_per_s = self.info.get("units_flop_per_s")
            nominal = self.floors.nominal(floor.of, dtype, units_flop_per_s)
        value = amount / seconds if amount else seconds
        entry = {"figure": figure, "value": value, "unit": unit}
        if floor is None or (floor.of in NOMINAL and not nominal):
            why = {"unknown": self.floors.why_unknown(floor, dtype)}
            is_stated = floor is not None and floor.is_stated
            self.info["delivers"] = entry | why | ({"floor": floor._asdict()} if is_stated else {})
            return
        conditions = self.info.get("conditions", {})
        at_clock = self.info.get("share_at_clock")
        found = Figure(figure, value, unit, floor, nominal, at_clock)
        if not found.met and function is not None:
            time.sleep(PAUSE_S[self.pace])
            with self.conditions() as conditions, Float32Products(dtype or "fp32"):
                seconds = self._seconds(function)
            value = amount / seconds if amount else seconds
            units = self._units_flop_per_s(dtype, conditions)
            share = units and value / units
            again = Figure(figure, value, unit, floor, nominal, share, again=True)
            better = min if unit == "s" else max
            found = better(found, again, key=lambda each: each.value)
        self._record(found, conditions)

    def _units_flop_per_s(self, dtype: str, conditions: dict[str, Any]) -> float | None:
        """FLOP/s of all units at the clock that ran; None if either is unknown."""
        clock_mhz = conditions.get("during", {}).get("clock_mhz")
        return self.floors.at_clock(dtype, clock_mhz * 1e6) if clock_mhz and dtype else None

    def _seconds(self, function: Callable[[], object]) -> float:
        began = time.perf_counter()
        while self.device.type != "cpu" and time.perf_counter() - began < AGAIN_S:
            timing.time(function, self.device, warmup=0, rounds=3)
        return timing.time(function, self.device, warmup=2, rounds=ROUNDS_AGAIN).median_s

    def _record(self, found: Figure, conditions: dict[str, Any]) -> None:
        __tracebackhide__ = True
        entry = {
            "figure": found.figure,
            "value": found.value,
            "unit": found.unit,
            "share": found.share,
            "share_at_clock": found.at_clock,
            "again": found.again,
        }
        entry |= {"nominal": found.nominal, "floor": found.floor._asdict(), "met": found.met}
        rival = self._rival(conditions)
        if not found.met and rival:
            most = found.undisturbed(conditions.get("slowed_at_most"))
            if most is None or most.met:
                bound = {"most": most.value, "most_share": most.share} if most else {}
                self.info["delivers"] = entry | {"met": None, "unknown": rival} | bound
                return
        causes = [] if found.met else self.causes(conditions, found.figure)
        self.info["delivers"] = entry | {"causes": causes}
        if not found.met:
            got = compared(found.value, found.unit, found.share, found.floor, found.at_clock)
            raise BelowFloor(
                f"BELOW FLOOR: {found.figure} {got}, expected {found.floor} "
                f"[{found.floor.source}]; "
                f"possible cause: {', '.join(causes) or 'none found'}"
            )

    def _rival(self, conditions: dict[str, Any]) -> str:
        """The other work that used the device meanwhile, in words; empty if there was none."""
        if self.device.type == "cpu":
            return "other processes compete for the cores" if conditions.get("contended") else ""
        return "another process uses this GPU" if conditions.get("other_processes") else ""
