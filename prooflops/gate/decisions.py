"""What replicates decide while they are taken: several looks, pairs, a suspicion that must repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prooflops.history.comparison import ComparisonRule, Sides, decisions, seconds, time_rows
from prooflops.history.rows import Row
from prooflops.statistics import effects
from prooflops.statistics.decision_rule import Decision, decide
from prooflops.statistics.plan import CONFIRMING_PAIRS, LOOKS, Plan, pairs_needed

FEWEST_CONFIRMING = 5  # pairs, of which all must agree to reach the level of a confirmation: 1/32
ADVISED = 16  # processes of a baseline


def replicate_plan(
    benchmarks: int, *, paired: bool = True, most: int | None = None, all_pairs: bool = False, directions: int = 1
) -> Plan:
    """The error rates of a run that compares so many benchmarks, in `most` replicates if that is given.

    The replicates that confirm are among `most`, if they leave enough to suspect anything; else a suspicion stays one.
    """
    plan = Plan(benchmarks=max(benchmarks, 1), directions=directions, shared_baseline=not paired)
    if most is None:
        return plan
    last, confirming = most, 0
    if not all_pairs:
        share = CONFIRMING_PAIRS / (LOOKS[-1] + CONFIRMING_PAIRS)
        confirming = min(CONFIRMING_PAIRS, max(FEWEST_CONFIRMING, round(share * most)))
        if 0.5 ** (most - confirming) <= plan.screening_rate:
            last = most - confirming
    looks = (*(look for look in plan.looks if look < last), last)
    return replace(plan, looks=looks, confirming_pairs=confirming or plan.confirming_pairs)


@dataclass(frozen=True)
class ReplicateRule(ComparisonRule):
    """Compares replicates at each look of the plan."""

    paired: bool = True  # before[i] ran beside after[i]; else they are groups of different sessions
    most: int | None = None  # replicates at most; None: as many as the plan wants
    all_pairs: bool = False  # up to the last look, whatever is decided before: an estimate of noise wants them

    def common(self, shared: Sequence[Sides]) -> float:
        return super().common(shared) if shared and not self.paired else 1.0

    def decision(self, name: str, sides: Sides, common: float) -> Decision:
        before, after = map(seconds, sides)
        floor, level = self.floor(name), self.plan.level(len(self.plan.looks) - 1)
        if self.paired:
            effect = effects.paired(before, after, level=level)
        else:
            effect = effects.unpaired(before, after, level=level, floor=floor, common=common)
            if len(before) < fewest_stored(self.plan):
                return Decision("INCONCLUSIVE", len(after), effect)  # however many more of this side are taken
        if len(after) < self.plan.looks[0]:
            return Decision(None, self.plan.looks[0], effect)
        smallest = self.smallest(sides[1])
        decision = decide(before, after, self.plan, smallest, floor=floor, common=common)
        return replace(decision, effect=effect) if self.all_pairs else decision

    def advice(self, sides: Sides, decision: Decision) -> str:
        fewest = 0 if self.paired else fewest_stored(self.plan)
        if len(sides[0]) >= fewest:
            return super().advice(sides, decision)
        enough = f"--gate-record NAME --gate-replicates {max(fewest, ADVISED)}"
        return f"the baseline holds {len(sides[0])} processes, and below {fewest} no regression can be found: {enough}"

    def needed(self, decision: Decision, smallest: float) -> int:
        found = max(pairs_needed(decision.effect, self.plan, smallest), decision.wanted)
        if abs(math.log(decision.effect.ratio)) > math.log1p(smallest) and decision.suspicion is None:
            found += self.plan.confirming_pairs  # a suspicion must repeat
        return found

    def wanted(self, decision: Decision) -> int:
        """How many replicates in all this benchmark wants before it is looked at again; 0 where it is decided."""
        if self.all_pairs:
            return self.plan.looks[-1]
        return min(decision.wanted, self.most or decision.wanted) if decision.verdict is None else 0


def fewest_stored(plan: Plan) -> int:
    """How many processes a baseline must hold before a regression can be found beside it, at the plan's last look.

    The most extreme of the C(b + n, n) orders of b stored and n new processes must be as rare as the level there.
    """
    fewest, last = 1, len(plan.looks) - 1
    while 1 / math.comb(fewest + plan.looks[last], fewest) > plan.level(last):
        fewest += 1
    return fewest


def look_at(both: Mapping[str, Sides], rule: ReplicateRule) -> tuple[list[Row], dict[str, int]]:
    """A row for each benchmark, and how many replicates in all each of the undecided wants."""
    decided = decisions(both, rule)
    wanted = {name: rule.wanted(decision) for name, decision in decided.items()}
    wanted |= {name: rule.plan.looks[0] for name, sides in both.items() if not all(sides)}
    open_ = {name: count for name, count in wanted.items() if count > len(both[name][1])}
    return time_rows(both, rule, decided), open_


def fails(row: Row, direction: str, strict: bool) -> bool:
    """Whether a gate that guards `direction` (slower, faster, both) stops for this row."""
    failing = {"CHANGED", "MISSING"} | ({"INCONCLUSIVE"} if strict else set())
    failing |= {"slower": {"SLOWER"}, "faster": {"FASTER"}, "both": {"SLOWER", "FASTER"}}[direction]
    return row.verdict in failing
