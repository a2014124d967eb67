"""What `--gate-noise-floor` learns from this code beside itself: the noise, the smallest slowdown found, the drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prooflops.console.tables import engineering
from prooflops.history import records
from prooflops.history.rows import Row
from prooflops.statistics.noise import noise_floor
from prooflops.statistics.plan import Plan, smallest_effect

HEAD = ["benchmark", "time", "pairs", "noise", "slowdowns are found from", "between sessions"]
MOST = 50  # sessions kept


def store_noise_floor(
    folder: Path, fingerprint_id: str, rows: Sequence[Row], plan: Plan, smallest: Callable[[str], float]
) -> tuple[Path, list[list[str]]]:
    """Stores the noise of each row's benchmark beside that of earlier sessions. Returns the file, and a table.

    `plan` is that of a gate run, whatever this estimate took; `smallest`: a benchmark's smallest change that counts.
    Raises OSError where the history cannot be written.
    """
    known = records.noise_floors(folder, fingerprint_id)
    found = {row.name: _entry(row, known.get(row.name, {}), plan, smallest(row.name)) for row in rows}
    return records.store_noise_floors(folder, fingerprint_id, found), [HEAD, *map(_cells, found, found.values())]


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
