"""What replicates decide, benchmark by benchmark: the rows of a comparison, and how many more replicates are wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from prooflops.history import comparison as compare
from prooflops.history.comparison import Row
from prooflops.history.records import Timed
from prooflops.statistics.decision_rule import Decision, decide
from prooflops.statistics.effects import paired, unpaired
from prooflops.statistics.noise import common_shift
from prooflops.statistics.plan import CONFIRMING_PAIRS, LOOKS, MIN_EFFECT, Plan, pairs_needed

Sides = tuple[Sequence[Timed], Sequence[Timed]]

FEWEST_CONFIRMING = 5  # pairs, of which all must agree to reach the level of a confirmation: 1/32
ADVISED = 16  # processes of a baseline


@dataclass(frozen=True)
class Rule:
    """How times are judged. `paired`: before[i] ran beside after[i]; else they are groups of different times."""

    min_effect: float = MIN_EFFECT
    paired: bool = True
    most: int | None = None  # pairs, or processes of this side, at most; None: as many as the plan wants
    fixed: bool = False  # all pairs up to the last look, whatever is decided before: an estimate of noise wants them
    directions: int = 1
    floors: Mapping[str, float] = field(default_factory=dict)  # per benchmark, what a change of sitting alone does
    markers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # per benchmark, arguments of `gate`

    def plan(self, benchmarks: int) -> Plan:
        """The error rates of a run that compares so many benchmarks.

        Where the user bounds the replicates, those that confirm are among them, if they leave enough to suspect
        anything; else a suspicion stays one.
        """
        plan = Plan(benchmarks=max(benchmarks, 1), directions=self.directions, shared_baseline=not self.paired)
        if self.most is None:
            return plan
        last, confirming = self.most, 0
        if not self.fixed:
            share = CONFIRMING_PAIRS / (LOOKS[-1] + CONFIRMING_PAIRS)
            confirming = min(CONFIRMING_PAIRS, max(FEWEST_CONFIRMING, round(share * self.most)))
            if 0.5 ** (self.most - confirming) <= plan.screening_rate:
                last = self.most - confirming
        looks = (*(look for look in plan.looks if look < last), last)
        return replace(plan, looks=looks, confirming_pairs=confirming or plan.confirming_pairs)

    def min_effect_of(self, name: str) -> float:
        return float(self.markers.get(name, {}).get("min_effect", self.min_effect))


def timed_rows(both: Mapping[str, Sides], rule: Rule) -> tuple[list[Row], dict[str, int]]:
    """A row for each benchmark that both sides timed, and how many replicates in all the undecided want."""
    plan, common = rule.plan(len(both)), 1.0
    ready = [sides for sides in both.values() if sides[0] and sides[1]]
    if not rule.paired and ready:
        times = [[[timed.time_s for timed in side] for side in sides] for sides in ready]
        common = common_shift([before for before, _ in times], [after for _, after in times])
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
            if rule.fixed:
                wanted[name] = plan.looks[-1]
            elif decision.verdict is None:
                wanted[name] = min(decision.wanted, rule.most or decision.wanted)
            if wanted.get(name, 0) <= len(sides[1]):
                wanted.pop(name, None)
            rows.append(_row(name, sides, decision, plan, rule))
    return rows, wanted


def _decision(sides: Sides, plan: Plan, rule: Rule, name: str, common: float) -> Decision:
    before, after = ([timed.time_s for timed in side] for side in sides)
    floor = rule.floors.get(name)
    level = plan.level(len(plan.looks) - 1)
    if rule.paired:
        effect = paired(before, after, level=level)
    else:
        effect = unpaired(before, after, level=level, floor=floor, common=common)
    if not rule.paired and len(before) < fewest_stored(plan):
        return Decision("INCONCLUSIVE", len(after), effect)  # however many more of this side are taken
    if len(after) < plan.looks[0]:
        return Decision(None, plan.looks[0], effect)
    decision = decide(before, after, plan, rule.min_effect_of(name), floor=floor, common=common)
    return replace(decision, effect=effect) if rule.fixed else decision


def fewest_stored(plan: Plan) -> int:
    """How many processes a baseline must hold before a regression can be found beside it, at the plan's last look.

    Of the C(b + n, n) orders of b stored and n new processes the most telling one must be as rare as the level there.
    """
    fewest, last = 1, len(plan.looks) - 1
    while 1 / math.comb(fewest + plan.looks[last], fewest) > plan.level(last):
        fewest += 1
    return fewest


def _row(name: str, sides: Sides, decision: Decision, plan: Plan, rule: Rule) -> Row:
    effect, notes = decision.effect, []
    if decision.verdict in (None, "INCONCLUSIVE"):
        if decision.suspicion:
            notes.append(f"suspected {decision.suspicion}, not confirmed")
        notes.append(
            f"noise {effect.noise:.1%}" if math.isfinite(effect.noise) else "too few replicates to know the noise"
        )
        notes.append(advice(sides, decision, plan, rule, rule.min_effect_of(name)))
    labels = [timed.contended for side in sides for timed in side if timed.contended]
    if labels:
        notes.append(f"{len(labels)} of {len(sides[0]) + len(sides[1])} replicates contended: {labels[-1]}")
    before, after = (median([timed.time_s for timed in side]) for side in sides)
    return Row(name, compare.TIME, before, after, decision.verdict or "INCONCLUSIVE", effect, "; ".join(notes))


def advice(sides: Sides, decision: Decision, plan: Plan, rule: Rule, min_effect: float) -> str:
    """What would decide an open comparison, in words."""
    effect, fewest = decision.effect, 0 if rule.paired else fewest_stored(plan)
    if len(sides[0]) < fewest:
        enough = f"--gate-record NAME --gate-replicates {max(fewest, ADVISED)}"
        return f"the baseline holds {len(sides[0])} processes, and below {fewest} no regression can be found: {enough}"
    size = abs(math.log(effect.ratio))
    if not rule.paired and math.log1p(min_effect) < size <= math.log1p(effect.floor):
        return f"within the {effect.floor:.1%} that a change of sitting may do here: --gate-versus decides it"
    needed = max(pairs_needed(effect, plan, min_effect), decision.wanted)
    if size > math.log1p(min_effect) and decision.suspicion is None:
        needed += plan.confirming_pairs  # a suspicion must repeat
    return f"about {needed} replicates a side would decide (--gate-replicates {needed})"


def fails(row: Row, direction: str, strict: bool) -> bool:
    """Whether a gate that guards `direction` (slower, faster, both) stops for this row."""
    failing = {"CHANGED", "MISSING"} | ({"INCONCLUSIVE"} if strict else set())
    failing |= {"slower": {"SLOWER"}, "faster": {"FASTER"}, "both": {"SLOWER", "FASTER"}}[direction]
    return row.verdict in failing
