"""Reads the conditions of older records as newer ones are: power limits are facts, no throttling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prooflops.suite.report.measurement import Measurement

POWER_CAP = "power cap"
THROTTLED = "throttled: "
# A clock that is lower by less has not fallen: GPUs step by 15 MHz, below 1 %.
LEAST_FALL = 0.03


def with_facts_of_conditions(benchmarks: Sequence[Measurement]) -> list[Measurement]:
    """The benchmarks; labels that older records gave for work at the power limit become facts.

    The highest clock is the highest that any benchmark of the run saw: they recorded no other.
    """
    highest_mhz = max(
        (clock for bench in benchmarks for clock in _clocks_mhz(_conditions_of(bench))), default=0.0
    )
    return [_reread(bench, highest_mhz) for bench in benchmarks]


def _conditions_of(bench: Measurement) -> Mapping[str, Any]:
    conditions = bench.info.get("conditions")
    return conditions if isinstance(conditions, dict) else {}


def _clocks_mhz(conditions: Mapping[str, Any]) -> list[float]:
    moments = [conditions.get("before") or {}, conditions.get("after") or {}]
    return [float(clock) for moment in moments if (clock := moment.get("clock_mhz"))]


def _reread(bench: Measurement, highest_mhz: float) -> Measurement:
    conditions = _conditions_of(bench)
    if "facts" in conditions or not any(POWER_CAP in label for label in bench.labels):
        return bench
    clock_mhz = min(_clocks_mhz(conditions), default=0.0)
    has_fallen = clock_mhz < (1 - LEAST_FALL) * highest_mhz
    labels, facts = [], []
    for label in bench.labels:
        reasons = label.removeprefix(THROTTLED).split(", ") if label.startswith(THROTTLED) else []
        others = [reason for reason in reasons if reason != POWER_CAP]
        if not reasons:
            labels.append(label)
        elif others and has_fallen:
            labels.append(THROTTLED + ", ".join(others))
    if has_fallen:
        facts.append(f"power-limited: {clock_mhz / 1e3:.2f} of {highest_mhz / 1e3:.2f} GHz")
    known = {**conditions, "labels": labels, "facts": facts}
    return replace(bench, info={**bench.info, "conditions": known})
