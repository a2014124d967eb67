"""Decides on replicates while they are taken: several looks, pairs, a suspicion that must repeat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from prooflops_gate.history.comparison import ComparisonRule, Sides, decisions, seconds, time_rows
from prooflops_gate.history.rows import SHOWN_LEVEL, TIME, Row
from prooflops_gate.statistics import effects
from prooflops_gate.statistics.decision_rule import (
    CONFIRMING_PAIRS,
    LOOKS,
    Decision,
    Plan,
    decide,
    pairs_excluding,
    pairs_needed,
    same,
    smallest_effect,
    verdict,
)
from prooflops_gate.statistics.effects import Effect

FEWEST_CONFIRMING = 5  # pairs: where all agree, they reach the level of a confirmation, 1/32
ADVISED = 16  # processes of a baseline
MOST_ADVISED = 200  # pairs: beyond, the benchmark is too noisy for the question

OPEN = 0.10  # change that time must exclude before the number of instructions decides
EXCLUDING = (
    64,
    96,
    144,
    216,
    324,
)  # pairs after which an undecided benchmark is looked at for a change of OPEN

# The limit that ended the run of an open benchmark.
NOISE = "its noise exceeds the question"
PAIRS = "--gate-replicates ended it"
BUDGET = "the budget ended it (--gate-budget)"


def replicate_plan(
    benchmarks: int,
    *,
    paired: bool = True,
    most: int | None = None,
    all_pairs: bool = False,
    directions: int = 1,
) -> Plan:
    """The error rates of a comparison in at most `most` replicates, confirming ones included where the rest suffice."""
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
    all_pairs: bool = (
        False  # take pairs up to the last look, whatever is decided before: to estimate the noise
    )
    equal: Container[str] = ()  # benchmarks that take the same number of instructions
    direction: str = "slower"  # of the change that more pairs are to exclude
    ended: bool = False  # by the budget, perhaps between two looks: no more pairs are taken

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
                return Decision(
                    "INCONCLUSIVE", len(after), effect
                )  # however many more of this side are taken
        if len(after) < self.plan.looks[0]:
            return Decision(None, self.plan.looks[0], effect)
        smallest = self.smallest(sides[1])
        decision = decide(before, after, self.plan, smallest, floor=floor, common=common)
        if self.all_pairs:
            return replace(decision, effect=effect)
        if name in self.equal:
            decision = self.beside_instructions(decision, sides, effect)
        if self.ended and decision.verdict is None and not decision.suspicion:
            return self.last_look(decision, len(after), effect, smallest)
        return (
            self.excluding(decision, before, after, effect)
            if decision.verdict == "INCONCLUSIVE"
            else decision
        )

    def last_look(
        self, decision: Decision, pairs: int, effect: Effect, smallest: float
    ) -> Decision:
        """SAME where the pairs since the latest look allow it, at the level of their share of the plan's miss rate."""
        share = (pairs - max(look for look in self.plan.looks if look <= pairs)) / self.plan.looks[
            -1
        ]
        found = same(effect, self.plan.miss_rate * share, smallest)
        return replace(decision, verdict="SAME", wanted=pairs, effect=effect) if found else decision

    def excluding(
        self, decision: Decision, before: Sequence[float], after: Sequence[float], effect: Effect
    ) -> Decision:
        """The decision on a benchmark that the plan leaves open: more pairs, until these exclude a change of OPEN.

        Only the newest look counts: where an earlier one excluded it, no more pairs were taken.
        """
        if not self.paired or self.most:
            return decision
        first = min(decision.wanted, len(after))
        looks = [first, *(look for look in EXCLUDING if look > first)]
        newest = max(look for look in looks if look <= len(after))
        then = (
            effect
            if newest == len(after)
            else effects.paired(before[:newest], after[:newest], level=effect.level)
        )
        if excludes(then, self.direction, OPEN):
            return replace(decision, wanted=newest, effect=then)
        if newest < looks[-1]:
            following = next(look for look in looks if look > newest)
            return replace(decision, verdict=None, wanted=following, effect=effect, excluding=True)
        return replace(decision, wanted=newest, effect=effect)

    def beside_instructions(self, decision: Decision, sides: Sides, effect: Effect) -> Decision:
        """The decision on a benchmark that takes as many instructions: it must get slower in two fresh batches.

        Open and not suspected, it is left to the instructions: at once with a change of OPEN excluded, else at the
        second look, unless it is surely slower.
        """
        smallest = self.smallest(sides[1])
        if decision.verdict == "SLOWER":
            last = decision.wanted + self.plan.confirming_pairs
            before, after = (seconds(side)[decision.wanted : last] for side in sides)
            if len(after) < self.plan.confirming_pairs:
                return replace(decision, verdict=None, wanted=last)
            fresh = effects.paired(before, after, level=self.plan.confirmation_level)
            stays = fresh.p_slower <= self.plan.confirmation_level and fresh.ratio > 1 + smallest
            return replace(
                decision, verdict="SLOWER" if stays else "INCONCLUSIVE", wanted=last, effect=effect
            )
        is_small = abs(math.log(effect.ratio)) < math.log1p(smallest) and excludes(
            effect, "both", OPEN
        )
        looked_twice = (
            len(sides[1]) >= self.plan.looks[:2][-1]
            and effect.bounds(SHOWN_LEVEL)[0] <= 1 + smallest
        )
        if decision.verdict is None and not decision.suspicion and (is_small or looked_twice):
            return replace(decision, verdict="INCONCLUSIVE", effect=effect)
        return decision

    def advice(self, sides: Sides, decision: Decision) -> str:
        fewest = 0 if self.paired else fewest_stored(self.plan)
        if len(sides[0]) < fewest:
            enough = f"--gate-record NAME --gate-replicates {max(fewest, ADVISED)}"
            return (
                f"the baseline holds {len(sides[0])} processes, and below {fewest} "
                f"no regression can be found: {enough}"
            )
        ended_by = BUDGET if decision.verdict is None else NOISE
        if self.most and len(sides[1]) >= self.most:
            ended_by = PAIRS
        return "; ".join([excluded(decision.effect), ended_by, self.remedy(sides, decision)])

    def remedy(self, sides: Sides, decision: Decision) -> str:
        """How to decide it."""
        needed = self.needed(decision, self.smallest(sides[1]))
        if decision.verdict is None and not self.most:
            return f"{len(sides[1])} of {decision.wanted} pairs were taken"
        if needed > MOST_ADVISED and math.isfinite(decision.effect.noise):
            found = smallest_effect(decision.effect.noise, self.plan, self.smallest(sides[1]))
            return f"as noisy as this, changes are found from {found:.0%}: --gate-min-effect {found:.0%}"
        return super().advice(sides, decision)

    def needed(self, decision: Decision, smallest: float) -> int:
        found = max(pairs_needed(decision.effect, self.plan, smallest), decision.wanted)
        if (
            abs(math.log(decision.effect.ratio)) > math.log1p(smallest)
            and decision.suspicion is None
        ):
            found += self.plan.confirming_pairs  # a suspicion must repeat
        return found

    def wanted(self, decision: Decision, fitting: float) -> int:
        """The number of replicates at this benchmark's next look; 0 where it is decided, or as many as it takes to
        exclude a change of OPEN are more than those `fitting` into the time."""
        if self.all_pairs:
            return self.plan.looks[-1]
        if (
            decision.excluding
            and pairs_excluding(decision.effect, OPEN, SHOWN_LEVEL)
            > decision.effect.pairs + fitting
        ):
            return 0
        return min(decision.wanted, self.most or decision.wanted) if decision.verdict is None else 0


@dataclass(frozen=True)
class SieveRule(ReplicateRule):
    """Looks once at processes beside stored ones: SAME, or INCONCLUSIVE for pairs to decide."""

    def decision(self, name: str, sides: Sides, common: float) -> Decision:
        before, after = map(seconds, sides)
        first = self.plan.looks[0]
        effect = effects.unpaired(
            before, after, level=SHOWN_LEVEL, floor=self.floor(name), common=common
        )
        if math.comb(len(before) + first, first) * self.plan.miss_level(0) < 1:
            return Decision("INCONCLUSIVE", len(after), effect)  # too few are stored for SAME
        if len(after) < first:
            return Decision(None, first, effect)
        found = verdict(effect, self.plan, 0, self.smallest(sides[1]))
        return Decision("SAME" if found == "SAME" else "INCONCLUSIVE", len(after), effect)


def fewest_stored(plan: Plan) -> int:
    """The fewest stored processes of which one of all orders with those of the last look is as rare as its level."""
    last = len(plan.looks) - 1
    return next(
        n for n in itertools.count(1) if math.comb(n + plan.looks[last], n) * plan.level(last) >= 1
    )


def look_at(
    both: Mapping[str, Sides], rule: ReplicateRule, fitting: float = math.inf
) -> tuple[list[Row], dict[str, int]]:
    """A row for each benchmark, and the number of replicates at the next look of each undecided one.

    `fitting`: the number of further replicates for which there is time.
    """
    decided = decisions(both, rule)
    wanted = {name: rule.wanted(decision, fitting) for name, decision in decided.items()}
    wanted |= {name: rule.plan.looks[0] for name, sides in both.items() if not all(sides)}
    open_ = {name: count for name, count in wanted.items() if count > len(both[name][1])}
    return time_rows(both, rule, decided), open_


def fails(
    row: Row,
    direction: str,
    allowed_open: float,
    guards_memory: bool = True,
    guards_instructions: bool = False,
) -> bool:
    """Whether a gate that guards `direction` (slower, faster, both) fails for this row.

    An undecided time fails unless a change larger than `allowed_open` is excluded. A skipped test has no time.
    """
    if row.verdict == "INCONCLUSIVE":
        return (
            row.quantity == TIME
            and row.after is not None
            and not excludes(row.effect, direction, allowed_open)
        )
    failing = {"CHANGED", "MISSING", *(["MORE MEMORY"] if guards_memory else [])}
    failing |= {"MORE INSTRUCTIONS"} if guards_instructions else set()
    failing |= {"slower": {"SLOWER"}, "faster": {"FASTER"}, "both": {"SLOWER", "FASTER"}}[direction]
    return row.verdict in failing


def excludes(effect: Effect | None, direction: str, change: float) -> bool:
    """Whether the pairs exclude a larger change in this direction, at the level of the bounds that are printed.

    >>> from prooflops_gate.statistics.effects import paired
    >>> excludes(paired([1.0] * 8, [1.0, 1.04] * 4, level=0.01), "slower", 0.05)
    True
    """
    if effect is None or math.isinf(change):
        return math.isinf(change)
    low, high, level = effect.bounds(SHOWN_LEVEL)
    slower, faster = high <= 1 + change, low >= 1 / (1 + change)
    return (
        level <= SHOWN_LEVEL
        and {"slower": slower, "faster": faster, "both": slower and faster}[direction]
    )


def excluded(effect: Effect) -> str:
    """The largest slowdown that is not excluded, in words.

    >>> from prooflops_gate.statistics.effects import paired
    >>> excluded(paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01))
    'slower by 20.0% at most (88% sure)'
    """
    _, high, level = effect.bounds(SHOWN_LEVEL)
    if level >= 0.5:
        return "one pair excludes nothing"
    sure = f"({math.floor(100 * (1 - level) + 0.5)}% sure)"
    return f"slower by {high - 1:.1%} at most {sure}" if high > 1 else f"not slower {sure}"


def overall(both: Mapping[str, Sides]) -> Effect | None:
    """The effect on the geometric mean of all benchmarks, from the pairs that all have; None where there are none."""
    shared = [
        (seconds(before), seconds(after)) for before, after in both.values() if before and after
    ]
    pairs = min((len(after) for _, after in shared), default=0)
    if not pairs:
        return None
    means = [
        math.exp(
            sum(math.log(after[pair] / before[pair]) for before, after in shared) / len(shared)
        )
        for pair in range(pairs)
    ]
    return effects.paired([1.0] * pairs, means, level=SHOWN_LEVEL)


def found_from(rows: Sequence[Row], plan: Plan, min_effect: float) -> str:
    """The slowdowns that 19 of 20 runs with this noise confirm, in words; smaller ones may be found, too."""
    noises = sorted(row.effect.noise for row in rows if row.quantity == TIME and row.effect)
    if not noises or not math.isfinite(noises[-1]):
        return "too few pairs to know which slowdowns a run like this finds"
    half, every = (
        f"{smallest_effect(noises[i], plan, min_effect):.0%}" for i in (len(noises) // 2, -1)
    )
    where = f" in half of the benchmarks, {every} or more in all" if half != every else ""
    return f"slowdowns that a run like this finds: {half} or more{where}".replace("%", " %")
