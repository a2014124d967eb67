"""What replicates decide, benchmark by benchmark: the rows of a comparison, and how many more replicates are wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofline import compare, statistics
from proofline.compare import Row
from proofline.history import Timed

Sides = tuple[Sequence[Timed], Sequence[Timed]]


@dataclass(frozen=True)
class Rule:
    """How times are judged. `paired`: before[i] ran beside after[i]; else they are groups of different times."""

    min_effect: float = statistics.MIN_EFFECT
    paired: bool = True
    most: int | None = None  # pairs, or processes of this side, at most; None: as many as the plan's looks
    directions: int = 1
    floors: Mapping[str, float] = field(default_factory=dict)  # per benchmark, what a change of sitting alone does
    markers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # per benchmark, arguments of `gate`

    def plan(self, benchmarks: int) -> statistics.Plan:
        """The error rates of a run that compares so many benchmarks."""
        looks: tuple[int, ...] = statistics.LOOKS
        if self.most is not None:
            looks = (*(look for look in looks if look < self.most), self.most)
        return statistics.Plan(
            benchmarks=max(benchmarks, 1), looks=looks, directions=self.directions, shared_baseline=not self.paired
        )

    def min_effect_of(self, name: str) -> float:
        return float(self.markers.get(name, {}).get("min_effect", self.min_effect))


def timed_rows(both: Mapping[str, Sides], rule: Rule) -> tuple[list[Row], dict[str, int]]:
    """A row for each benchmark that both sides timed, and how many replicates in all the undecided want."""
    plan, common = rule.plan(len(both)), 1.0
    ready = [sides for sides in both.values() if sides[0] and sides[1]]
    if not rule.paired and ready:
        times = [[[timed.time_s for timed in side] for side in sides] for sides in ready]
        common = statistics.common_shift([before for before, _ in times], [after for _, after in times])
    rows, wanted = [], {}
    for name, sides in both.items():
        methods = list(dict.fromkeys(str(timed.method) for side in sides for timed in side))
        if not sides[0] or not sides[1]:
            wanted[name] = plan.looks[0]
        elif len(methods) > 1:
            note = f"the method of measuring changed ({' -> '.join(methods)})"
            rows.append(Row(name, compare.TIME, None, None, "INCONCLUSIVE", note=note))
        else:
            decision = _decision(sides, plan, rule, name, common)
            if decision.verdict is None:
                wanted[name] = decision.wanted
            rows.append(_row(name, sides, decision, plan, rule.min_effect_of(name)))
    return rows, wanted


def _decision(sides: Sides, plan: statistics.Plan, rule: Rule, name: str, common: float) -> statistics.Decision:
    before, after = ([timed.time_s for timed in side] for side in sides)
    floor = rule.floors.get(name)
    if len(after) >= plan.looks[0]:
        return statistics.decide(before, after, plan, rule.min_effect_of(name), floor=floor, common=common)
    level = plan.level(len(plan.looks) - 1)
    if rule.paired:
        effect = statistics.paired(before, after, level=level)
    else:
        effect = statistics.unpaired(before, after, level=level, floor=floor, common=common)
    return statistics.Decision(None, plan.looks[0], effect)


def _row(name: str, sides: Sides, decision: statistics.Decision, plan: statistics.Plan, min_effect: float) -> Row:
    effect, notes = decision.effect, []
    if decision.verdict in (None, "INCONCLUSIVE"):
        needed = max(statistics.pairs_needed(effect, plan, min_effect), decision.wanted)
        if decision.suspicion:
            notes.append(f"suspected {decision.suspicion}, not confirmed")
        notes.append(
            f"noise {effect.noise:.1%}" if math.isfinite(effect.noise) else "too few replicates to know the noise"
        )
        notes.append(f"about {needed} replicates a side would decide (--gate-replicates {needed})")
    labels = [timed.contended for side in sides for timed in side if timed.contended]
    if labels:
        notes.append(f"{len(labels)} of {len(sides[0]) + len(sides[1])} replicates contended: {labels[-1]}")
    before, after = (compare._median([timed.time_s for timed in side]) for side in sides)
    return Row(name, compare.TIME, before, after, decision.verdict or "INCONCLUSIVE", effect, "; ".join(notes))


def fails(row: Row, direction: str, strict: bool) -> bool:
    """Whether a gate that guards `direction` (slower, faster, both) stops for this row."""
    failing = {"CHANGED", "MISSING"} | ({"INCONCLUSIVE"} if strict else set())
    failing |= {"slower": {"SLOWER"}, "faster": {"FASTER"}, "both": {"SLOWER", "FASTER"}}[direction]
    return row.verdict in failing
