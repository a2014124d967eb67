"""The table of `--gate-noise-floor`: each benchmark's noise, and the slowdown found at it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prooflops_gate.console.tables import engineering
from prooflops_gate.rows import Row
from prooflops_gate.statistics.decision_rule import Plan, smallest_effect

HEAD = ("benchmark", "time", "pairs", "noise", "smallest slowdown found")


def noise_table(
    rows: Sequence[Row], plan: Plan, min_effect: float, smallest: Mapping[str, float]
) -> list[Sequence[str]]:
    """HEAD, and a row for each benchmark."""
    table: list[Sequence[str]] = [HEAD]
    for row in rows:
        assert row.effect
        noise, found = "unknown", "unknown: too few pairs"
        if math.isfinite(row.effect.noise):
            least = smallest.get(row.name, min_effect)
            noise = f"{row.effect.noise:.1%}"
            found = f"{smallest_effect(row.effect.noise, plan, least):.1%}"
        time = engineering(row.after, "s")
        table.append((row.name, time, str(row.effect.pairs), noise, found))
    return table
