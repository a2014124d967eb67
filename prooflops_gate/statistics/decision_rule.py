"""The rule of the gate for one benchmark (slower, faster, the same, or too noisy to know), and its
error rates.

A gate run looks at its data several times, for many benchmarks, and repeats its suspicions. At most
`alarm_rate` of whole runs on unchanged code alarm:

    chance that any of m benchmarks alarms
        <= sum over benchmarks of (chance to be suspected at any look)
                                x (chance to be confirmed by a fresh batch)
        <= m x (screening rate / m) x confirmation level = alarm_rate

PLAIN_SHARE of that rate pays for changes so plain that every pair of the first look and of some
fresh ones shows them. The first factor is spent over the looks by the O'Brien-Fleming type function
of Lan and DeMets (Biometrika 70 (1983) 659, equation 5); each look gets its increment as its
nominal level: by Bonferroni's inequality valid whatever the dependence between the looks. The
second factor is exact because the batch is fresh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtr

from prooflops_gate.statistics.effects import (
    EFFICIENCY,
    Effect,
    paired,
    upper_normal_quantile,
)

# Pairs seen at each look; 8 is the first number at which anything can be decided.
LOOKS = (8, 16, 24, 32)
CONFIRMING_PAIRS = 18
CONFIRMATION_LEVEL = 0.05
ALARM_RATE = 0.01
MIN_EFFECT = 0.03
# Of the alarm rate.
PLAIN_SHARE = 0.1
# Fresh pairs, however few benchmarks there are.
FEWEST_PLAIN = 5


@dataclass(frozen=True)
class Plan:
    """The error rates of a gate run.

    How many benchmarks, after how many pairs each look is taken, how often to alarm.

    `alarm_rate` bounds the share of whole gate runs on unchanged code with any false SLOWER
    (directions=2: or FASTER), `miss_rate` per benchmark that of SAME on a change as large as the
    smallest effect.

    >>> plan = Plan(benchmarks=20)
    >>> [f"{plan.level(look):.1e}" for look in range(len(plan.looks))]
    ['1.7e-07', '2.2e-04', '2.3e-03', '6.4e-03']
    """

    benchmarks: int
    looks: tuple[int, ...] = LOOKS
    alarm_rate: float = ALARM_RATE
    confirmation_level: float = CONFIRMATION_LEVEL
    confirming_pairs: int = CONFIRMING_PAIRS
    miss_rate: float = 0.05
    directions: int = 1

    @property
    def screening_rate(self) -> float:
        """The chance at most that one benchmark is suspected, at any look, in one direction,
        without a change.
        """
        rate = self.alarm_rate * (1 - PLAIN_SHARE if self.plain_pairs else 1.0)
        return min(0.4, rate / self.confirmation_level) / self.benchmarks / self.directions

    @property
    def plain_pairs(self) -> int:
        """The fresh pairs that confirm a change in every pair of the first look, if each shows it
        too; 0: none do.

        Without a change the chance of n pairs that all show the same is 2^-n, for each benchmark
        and direction.

        >>> [Plan(benchmarks=number).plain_pairs for number in (1, 64, 500)]
        [5, 8, 11]
        """
        in_all = math.ceil(
            math.log2(self.benchmarks * self.directions / (PLAIN_SHARE * self.alarm_rate))
        )
        pairs = max(in_all - self.looks[0], FEWEST_PLAIN)
        longer_way = self.looks[min(1, len(self.looks) - 1)] + self.confirming_pairs
        return 0 if self.looks[0] + pairs >= longer_way else pairs

    def spent(self, look: int) -> float:
        """The part of `screening_rate` spent by the looks up to `look`, 0 the first.

        2 - 2 Phi(z / sqrt(t)).
        """
        share = self.looks[look] / self.looks[-1]
        return 2 * float(ndtr(-upper_normal_quantile(self.screening_rate / 2) / math.sqrt(share)))

    def level(self, look: int) -> float:
        """The nominal level of each side at a look: the part of the rate spent there."""
        return self.spent(look) - (self.spent(look - 1) if look else 0.0)

    def miss_level(self, look: int) -> float:
        """The nominal level of SAME at a look: `miss_rate` spent in proportion to the pairs."""
        return (
            self.miss_rate
            * (self.looks[look] - (self.looks[look - 1] if look else 0))
            / self.looks[-1]
        )


def pairs_needed(effect: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> int:
    """The number of pairs that would decide an open comparison, if estimate and noise stay the
    same.

    An estimate beyond min_effect must be distinguished from 1, one within it from min_effect; one
    on the limit, which nothing decides, is taken to lie a tenth of min_effect beside it.
    """
    last, limit = len(plan.looks) - 1, math.log1p(min_effect)
    size = abs(math.log(effect.ratio))
    if size > limit:
        level, distance = plan.level(last), size
    else:
        level, distance = plan.miss_level(last), max(limit - size, limit / 10)
    # Fewer pairs of one sign don't reach the level.
    fewest = math.ceil(-math.log2(level))
    if not math.isfinite(effect.noise):
        return max(fewest, plan.looks[-1])
    return max(
        fewest,
        math.ceil((upper_normal_quantile(level) * effect.noise / distance) ** 2 / EFFICIENCY),
    )


def pairs_excluding(effect: Effect, change: float, level: float) -> float:
    """The number of pairs that would exclude a change of this size, at a bound's level, if there is
    none.

    >>> noisy = paired([1.0] * 10, [1.0, 1.6, 0.8, 1.2, 0.7, 1.3, 0.9, 1.1, 1.4, 0.6], level=0.01)
    >>> round(noisy.noise, 2), round(pairs_excluding(noisy, 0.1, 0.0125))
    (0.38, 82)
    """
    return (upper_normal_quantile(level) * effect.noise / math.log1p(change)) ** 2 / EFFICIENCY


def smallest_effect(
    noise: float, plan: Plan, min_effect: float = MIN_EFFECT, power: float = 0.95
) -> float:
    """The smallest slowdown that a whole gate run finds with probability `power`, at a pair's
    noise, as a fraction.

    It must pass the last look, the confirmation and the limit on the estimate, together with at
    least `power`; normal noise. The machine's noise floor is this at its own A/A noise.

    >>> [round(smallest_effect(noise, Plan(benchmarks=20)), 3) for noise in (0.02, 0.07)]
    [0.041, 0.068]
    """
    each = upper_normal_quantile((1 - power) / 3)

    def bound(level: float, pairs: int) -> float:
        return (upper_normal_quantile(level) + each) * noise / math.sqrt(pairs * EFFICIENCY)

    looked = bound(plan.level(len(plan.looks) - 1), plan.looks[-1])
    repeated = (
        bound(plan.confirmation_level, plan.confirming_pairs)
        if plan.confirmation_level < 0.5
        else 0.0
    )
    estimated = math.log1p(min_effect) + bound(0.5, min(plan.looks[-1], plan.confirming_pairs))
    return math.expm1(max(looked, repeated, estimated))


def _beyond(ratio: float, min_effect: float) -> str | None:
    if ratio > 1 + min_effect:
        return "SLOWER"
    return "FASTER" if ratio < 1 / (1 + min_effect) else None


def same(effect: Effect, level: float, min_effect: float) -> bool:
    """Whether the interval at this level lies within `min_effect` of 1."""
    low, high = effect.interval(level)
    return 1 / (1 + min_effect) < low and high < 1 + min_effect


def verdict(effect: Effect, plan: Plan, look: int, min_effect: float = MIN_EFFECT) -> str | None:
    """The verdict of a look.

    SLOWER and FASTER (suspected, to be confirmed), SAME, INCONCLUSIVE; None is "go on".

    SLOWER: the interval at the look's level lies above 1, and the estimate is beyond 1 +
    min_effect; a change of min_effect itself is reported in about every third case. SAME: the
    interval at the look's miss level lies within min_effect of 1, so a change of that size is
    missed with a chance of at most `plan.miss_rate`. INCONCLUSIVE: neither, at the last look.

    >>> plan = Plan(benchmarks=1, looks=(12,))
    >>> times = [1.00, 1.01, 0.99, 1.02, 1.0, 0.98, 1.01, 1.0, 0.99, 1.01, 1.0, 1.02]
    >>> verdict(paired([1.0] * 12, [1.1 * s for s in times], level=plan.level(0)), plan, 0)
    'SLOWER'
    >>> verdict(paired([1.0] * 12, times, level=plan.level(0)), plan, 0)
    'SAME'
    """
    direction = _beyond(effect.ratio, min_effect)
    p = {"SLOWER": effect.p_slower, "FASTER": effect.p_faster, None: 1.0}[direction]
    if p <= plan.level(look):
        return direction
    if same(effect, plan.miss_level(look), min_effect):
        return "SAME"
    return "INCONCLUSIVE" if look == len(plan.looks) - 1 else None


def confirmed(
    suspicion: str, fresh: Effect, pooled: Effect, plan: Plan, min_effect: float = MIN_EFFECT
) -> str:
    """The final verdict on a suspicion ("SLOWER", "FASTER"), after `plan.confirming_pairs` fresh
    pairs.

    It stands where the fresh pairs alone repeat it: estimated beyond min_effect, at
    `plan.confirmation_level`. Otherwise SAME where all pairs together allow it, else INCONCLUSIVE.
    """
    p = fresh.p_slower if suspicion == "SLOWER" else fresh.p_faster
    if p <= plan.confirmation_level and _beyond(fresh.ratio, min_effect) == suspicion:
        return suspicion
    return (
        "SAME" if same(pooled, plan.miss_level(len(plan.looks) - 1), min_effect) else "INCONCLUSIVE"
    )


@dataclass(frozen=True)
class Decision:
    """The decision after the pairs taken so far.

    A final verdict, or how many pairs to take before the next look.
    """

    # None: go on.
    verdict: str | None
    # Pairs in all; with a verdict, those that it used.
    wanted: int
    # Of all those pairs.
    effect: Effect
    # In the course of confirmation, or confirmed.
    suspicion: str | None = None
    # Whether more pairs are only to exclude a large change: no other verdict comes of them.
    excluding: bool = False
    # Pairs after the suspicion that confirmed the verdict.
    fresh: int = 0


def decide(
    before: Sequence[float],
    after: Sequence[float],
    plan: Plan,
    min_effect: float = MIN_EFFECT,
) -> Decision:
    """The whole rule of a benchmark: looks, suspicion, confirmation by fresh pairs, verdict.

    A function of all times in the order taken; times after the deciding ones are ignored. A
    suspicion that isn't confirmed goes on to the next look: the bound on false alarms, a sum over
    looks, includes that chance.

    >>> plan = Plan(benchmarks=1, looks=(8, 16), confirming_pairs=8)
    >>> decide([1.0] * 8, [1.01, 0.8, 1.3, 0.9, 1.2, 1.0, 0.9, 1.1], plan).wanted
    16
    >>> plain = decide([1.0] * 16, [1.1] * 16, plan)
    >>> plain.suspicion, plain.verdict, plain.wanted
    ('SLOWER', 'SLOWER', 13)
    """

    def compared(first: int, last: int, level: float) -> Effect:
        return paired(before[first:last], after[first:last], level=level)

    suspicion = None
    for look, pairs in enumerate(plan.looks):
        level = plan.level(look)
        if pairs > len(after):
            return Decision(None, pairs, compared(0, len(after), level), suspicion)
        effect = compared(0, pairs, level)
        answer = verdict(effect, plan, look, min_effect)
        if (
            look == 0
            and plan.plain_pairs
            and effect.in_every_pair
            and (plain := _beyond(effect.ratio, min_effect))
        ):
            wanted = pairs + plan.plain_pairs
            if wanted > len(after):
                return Decision(None, wanted, effect, plain)
            fresh = compared(pairs, wanted, level)
            if fresh.in_every_pair and _beyond(fresh.ratio, min_effect) == plain:
                return Decision(
                    plain, wanted, compared(0, wanted, level), plain, fresh=plan.plain_pairs
                )
        if answer in ("SLOWER", "FASTER"):
            suspicion, wanted = answer, pairs + plan.confirming_pairs
            if wanted > len(after):
                return Decision(None, wanted, effect, suspicion)
            fresh = compared(pairs, wanted, min(0.4, plan.confirmation_level))
            pooled = compared(0, wanted, level)
            answer = confirmed(suspicion, fresh, pooled, plan, min_effect)
            if answer != "INCONCLUSIVE" or look == len(plan.looks) - 1:
                fresh_pairs = plan.confirming_pairs if answer == suspicion else 0
                return Decision(answer, wanted, pooled, suspicion, fresh=fresh_pairs)
        elif answer:
            return Decision(answer, pairs, effect, suspicion)
    raise AssertionError("the last look always answers")
