"""What `--gate-noise-floor` learns from this code beside itself: the noise, the smallest slowdown found, the drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prooflops.console.tables import engineering
from prooflops.gate import decisions
from prooflops.gate.measurement import Measurement
from prooflops.history import records
from prooflops.history.rows import TIME, Row
from prooflops.statistics.noise import noise_floor
from prooflops.statistics.plan import Plan, smallest_effect

HEAD = ["benchmark", "time", "pairs", "noise", "slowdowns are found from", "between sessions"]
MOST = 50  # sessions kept


def store_noise_floor(measurement: Measurement, fingerprint_id: str) -> None:
    """Stores the noise of each benchmark beside that of earlier sessions, and has a table of it printed."""
    settings = measurement.settings
    timed = [row for row in measurement.rows if row.quantity == TIME and row.effect]
    # What can be found is what a gate run with the plan in force finds, however many pairs this estimate took.
    plan = decisions.replicate_plan(len(timed), directions=measurement.directions())
    measurement.lines.append(f"at most {plan.alarm_rate:.0%} of whole gate runs alarm without a change")
    known = records.noise_floors(settings.folder, fingerprint_id)
    with measurement.storing():
        found = {row.name: _entry(row, known.get(row.name, {}), plan, measurement.smallest(row.name)) for row in timed}
        stored = records.store_noise_floors(settings.folder, fingerprint_id, found)
        measurement.table = [HEAD, *map(_cells, found, found.values())]
        measurement.lines.append(f"stored in {stored}")


def _entry(row: Row, known: Mapping[str, Any], plan: Plan, smallest: float) -> dict[str, Any]:
    assert row.effect
    noise = row.effect.noise if math.isfinite(row.effect.noise) else None
    sessions = [*known.get("sessions_s", []), row.after][-MOST:]
    floor = noise_floor([[time_s] for time_s in sessions])
    return {
        "noise": noise,
        "smallest_effect": None if noise is None else smallest_effect(noise, plan, smallest),
        "pairs": row.effect.pairs,
        "sessions_s": sessions,
        "floor": floor if math.isfinite(floor) else None,
    }


def _cells(name: str, entry: Mapping[str, Any]) -> list[str]:
    noise, smallest, floor, sessions = (entry[key] for key in ("noise", "smallest_effect", "floor", "sessions_s"))
    return [
        name,
        engineering(sessions[-1], "s"),
        str(entry["pairs"]),
        "unknown" if noise is None else f"{noise:.1%}",
        "unknown: too few pairs" if smallest is None else f"{smallest:.1%}",
        "known from 2 sessions on" if floor is None else f"{floor:.1%} ({len(sessions)} sessions)",
    ]
