"""Compares processes of this side, one after the other, with those that were stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prooflops.gate import single_run
from prooflops.gate.measurement import Measurement
from prooflops.gate.pacing import Pair
from prooflops.gate.selection import selects_by_expression
from prooflops.history import records
from prooflops.history.records import Summary, Timed
from prooflops.statistics.effects import UNKNOWN_FLOOR


def compare_with_history(measurement: Measurement, benchmarks: Sequence[str]) -> list[Summary]:
    """Sets the rows, and returns the records of the baseline."""
    settings = measurement.settings
    first = measurement.run_here(benchmarks)
    mine = measurement.summary_of(first)
    then = single_run.baseline_of(settings, mine.fingerprint_id, benchmarks)
    if then[-1].fingerprint_id != mine.fingerprint_id:
        raise pytest.UsageError(single_run.refusal(settings, then[-1], first.fingerprint or {}))
    known = records.noise_floors(settings.folder, mine.fingerprint_id)
    floors = {name: float(row["floor"]) for name, row in known.items() if row.get("floor")}
    if floorless := [name for name in mine.benchmarks if name not in floors]:
        measurement.lines.append(
            f"drift between sessions is unknown for {len(floorless)} benchmarks, and {UNKNOWN_FLOOR:.0%} is "
            "assumed: more than 1% of runs may alarm without a change; measure it with --gate-noise-floor, in two "
            "sessions"
        )

    def alone(summary: Summary) -> dict[str, Pair]:
        return {name: (None, timed) for name, timed in summary.benchmarks.items()}

    def take(names: list[str]) -> dict[str, Pair]:
        return alone(measurement.summary_of(measurement.run_here(names)))

    measurement.title = f"against the baseline {settings.baseline} ({len(then)} processes)"
    measurement.compare(alone(mine), asked_for(measurement, then, benchmarks), take, paired=False, floors=floors)
    return then


def asked_for(measurement: Measurement, then: Sequence[Summary], benchmarks: Sequence[str]) -> dict[str, list[Timed]]:
    """The stored benchmarks that this run is asked about: others are not missing."""
    stored: dict[str, list[Timed]] = {}
    for record in then:
        for name, timed in record.benchmarks.items():
            stored.setdefault(name, []).append(timed)
    asked = {name: group for name, group in stored.items() if measurement.is_compared(name, benchmarks)}
    if selects_by_expression(measurement.config):  # which of the stored ones -k and -m would select is not known
        if unknown := asked.keys() - set(benchmarks):
            measurement.lines.append(f"{len(unknown)} benchmarks of the baseline are not selected, and not compared")
        asked = {name: group for name, group in asked.items() if name in benchmarks}
    return asked
