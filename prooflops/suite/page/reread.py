"""Reads the conditions of older records as newer ones are: work at the power limit is a fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prooflops.machine.conditions import label_conditions
from prooflops.suite.page.measurement import Measurement

MOMENTS = ("before", "after")


def with_facts_of_conditions(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks, those of records without facts labelled anew from what the driver said.

    The highest clock is the highest that any benchmark of the run saw: they recorded no other.
    """
    clocks = [clock for bench in benchmarks for clock in _clocks_mhz(_conditions_of(bench))]
    highest_mhz = max(clocks, default=0.0)
    return [_reread(bench, highest_mhz) for bench in benchmarks]


def _conditions_of(bench: Measurement) -> Mapping[str, Any]:
    conditions = bench.info.get("conditions")
    return conditions if isinstance(conditions, dict) else {}


def _clocks_mhz(conditions: Mapping[str, Any]) -> list[float]:
    moments = [conditions.get(key) or {} for key in MOMENTS]
    return [float(moment["clock_mhz"]) for moment in moments if moment.get("clock_mhz")]


def _reread(bench: Measurement, highest_mhz: float) -> Measurement:
    conditions = _conditions_of(bench)
    known = [conditions.get(key) for key in MOMENTS]
    if "facts" in conditions or not all(known) or not _clocks_mhz(conditions):
        return bench
    before = {"highest_clock_mhz": highest_mhz, **conditions["before"]}
    seen = {**conditions, "before": before}
    labelled = {**conditions, **label_conditions(seen)}
    return replace(bench, info={**bench.info, "conditions": labelled})
