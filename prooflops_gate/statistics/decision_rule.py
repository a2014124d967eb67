"""The rule of the gate for one benchmark, and its error rates.

A gate run looks at its data several times, for many benchmarks, and repeats its suspicions. At most
`alarm_rate` of whole runs on unchanged code alarm:

    chance that any of m benchmarks alarms
        <= sum over benchmarks of (chance to be suspected at any look)
                                x (chance to be confirmed by a fresh batch)
        <= m x (screening rate / m) x confirmation level = alarm_rate

PLAIN_SHARE of that rate pays for changes so plain that every pair of the first look and of some
fresh ones shows them. Where every pair of the first look is above LARGE times the smallest change
that counts, the fewest fresh ones do, whatever the number of benchmarks: by their signs alone, 13
pairs of unchanged code agree in one of 8,192 cases, and their size makes that rarer still. The
first factor is spent over the looks by the O'Brien-Fleming type function of Lan and DeMets
(Biometrika 70 (1983) 659, equation 5); each look gets its increment as its nominal level: by
Bonferroni's inequality valid whatever the dependence between the looks. The second factor is exact
because the batch is fresh.
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
# The share of the alarm rate that pays for plain changes.
PLAIN_SHARE = 0.1
# If all of them show a change, its p-value is 1/32, below the level of a confirmation.
FEWEST_FRESH = 5
# A change this many times as large as the smallest that counts ends at its first confirmation.
LARGE = 10
# If this many pairs all show such a slowdown, it is confirmed before all else.
FEWEST_PLAIN = 3
# A slowdown below it of one benchmark alone, with the same instructions, is laid to its memory's
# layout.
SMALL_SLOWDOWN = 0.10


@dataclass(frozen=True)
class Plan:
    """The error rates of a gate run.

    How many benchmarks, after how many pairs each look is taken, how often to alarm.

    `alarm_rate` bounds the share of whole gate runs on unchanged code with any false SLOWER,
    `miss_rate` per benchmark that of SAME on a change as large as the smallest effect.

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

    @property
    def screening_rate(self) -> float:
        """The chance at most that one unchanged benchmark is suspected, in one direction.

        It covers all looks.
        """
        rate = self.alarm_rate * (1 - PLAIN_SHARE if self.plain_pairs else 1.0)
        return min(0.4, rate / self.confirmation_level) / self.benchmarks

    @property
    def plain_pairs(self) -> int:
        """The fresh pairs that confirm a change in every pair of the first look.

        Each of them must show it, too. 0 means that no number suffices. Without a change the chance
        of n pairs that all show the same is 2^-n, for each benchmark.

        >>> [Plan(benchmarks=number).plain_pairs for number in (1, 64, 500)]
        [5, 8, 11]
        """
        in_all = math.ceil(math.log2(self.benchmarks / (PLAIN_SHARE * self.alarm_rate)))
        pairs = max(in_all - self.looks[0], FEWEST_FRESH)
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


def smallest_effect(
    noise: float, plan: Plan, min_effect: float = MIN_EFFECT, power: float = 0.95
) -> float:
    """The smallest slowdown that a whole gate run finds with probability `power`.

    It is a fraction, at a pair's noise. It must pass the last look, the confirmation and the limit
    on the estimate, together with at least `power`; normal noise. The machine's noise floor is this
    at its own A/A noise.

    >>> [round(smallest_effect(noise, Plan(benchmarks=20)), 3) for noise in (0.02, 0.2)]
    [0.041, 0.2]
    """
    each = upper_normal_quantile((1 - power) / 3)

    def bound(level: float, pairs: int) -> float:
        return (upper_normal_quantile(level) + each) * noise / math.sqrt(pairs * EFFICIENCY)

    looked = bound(plan.level(len(plan.looks) - 1), plan.looks[-1])
    repeated = bound(plan.confirmation_level, plan.confirming_pairs)
    estimated = math.log1p(min_effect) + bound(0.5, min(plan.looks[-1], plan.confirming_pairs))
    return math.expm1(max(looked, repeated, estimated))


def beyond(ratio: float, change: float) -> str:
    """The direction of a ratio that lies beyond a change of this size; empty within it."""
    if ratio > 1 + change:
        return "SLOWER"
    return "FASTER" if ratio < 1 / (1 + change) else ""


def is_large(effect: Effect, min_effect: float) -> bool:
    """True if a first look estimates a slowdown above LARGE times the smallest that counts."""
    return effect.pairs >= LOOKS[0] and effect.ratio > 1 + LARGE * min_effect


def is_small(effect: Effect | None) -> bool:
    """True if the layout of memory may explain a slowdown."""
    return effect is not None and effect.ratio < 1 + SMALL_SLOWDOWN


def is_plain(effect: Effect, direction: str, min_effect: float) -> bool:
    """True if every pair shows a change this way above LARGE times the smallest that counts.

    >>> pairs = [2.0, 2.1], [0.5, 0.6], [2.0, 2.1, 0.5]
    >>> [is_plain(paired([1.0] * len(each), each, level=0.01), "SLOWER", 0.03) for each in pairs]
    [True, False, False]
    """
    low, high = effect.interval(0.5**effect.pairs)
    return beyond(low if direction == "SLOWER" else high, LARGE * min_effect) == direction


def same(effect: Effect, level: float, min_effect: float) -> bool:
    """True if the interval at this level lies within `min_effect` of 1."""
    low, high = effect.interval(level)
    return 1 / (1 + min_effect) < low and high < 1 + min_effect


@dataclass(frozen=True)
class Suspicion:
    """A change beyond `change` that fresh pairs must show again, at their own level."""

    direction: str
    change: float
    fresh_pairs: int
    level: float

    def is_confirmed(self, fresh: Effect) -> bool:
        """True if the fresh pairs alone estimate such a change, and are sure of it."""
        p = fresh.p_slower if self.direction == "SLOWER" else fresh.p_faster
        return p <= self.level and beyond(fresh.ratio, self.change) == self.direction


def suspicion(effect: Effect, plan: Plan, look: int, min_effect: float) -> Suspicion | None:
    """The suspicion that the pairs up to a look raise.

    The estimate lies beyond `min_effect`, and the interval at the look's level above or below 1; a
    change of `min_effect` itself is suspected in about every third case. A change in every pair of
    the first look is suspected at once: then every fresh pair must show it.

    >>> effect = paired([1.0] * 8, [2.0] * 8, level=0.01)
    >>> [suspicion(effect, Plan(benchmarks=64), 0, small).fresh_pairs for small in (0.03, 0.15)]
    [5, 8]
    """
    direction = beyond(effect.ratio, min_effect)
    if not direction:
        return None
    if look == 0 and effect.in_every_pair and plan.plain_pairs:
        if is_plain(effect, direction, min_effect):
            return Suspicion(direction, LARGE * min_effect, FEWEST_FRESH, 0.5**FEWEST_FRESH)
        return Suspicion(direction, min_effect, plan.plain_pairs, 0.5**plan.plain_pairs)
    p = effect.p_slower if direction == "SLOWER" else effect.p_faster
    if p > plan.level(look):
        return None
    return Suspicion(direction, min_effect, plan.confirming_pairs, plan.confirmation_level)


@dataclass(frozen=True)
class Decision:
    """The decision after the pairs so far.

    Without a verdict, `wanted` is the number of pairs at the next look or confirmation; with one,
    the number it rests on. `effect` is that of these pairs, or of all so far. `suspected` is the
    direction of the latest suspicion, and `fresh` the number of pairs that confirmed the verdict.
    """

    verdict: str | None
    wanted: int
    effect: Effect
    suspected: str = ""
    fresh: int = 0


def decide(
    before: Sequence[float],
    after: Sequence[float],
    plan: Plan,
    min_effect: float = MIN_EFFECT,
) -> Decision:
    """The rule of a benchmark: at each look a suspicion that fresh pairs confirm, or SAME.

    SAME: the interval at the look's miss level lies within `min_effect` of 1. INCONCLUSIVE: the
    last look leaves it open. A function of all times in their order; times after the deciding ones
    are ignored. A suspicion that is not confirmed goes on to the next look: the bound on false
    alarms, a sum over looks, includes that chance.

    >>> plan = Plan(benchmarks=1, looks=(8, 16), confirming_pairs=8)
    >>> decide([1.0] * 8, [1.01, 0.8, 1.3, 0.9, 1.2, 1.0, 0.9, 1.1], plan).wanted
    16
    >>> plain = decide([1.0] * 16, [1.1] * 16, plan)
    >>> plain.suspected, plain.verdict, plain.wanted
    ('SLOWER', 'SLOWER', 13)
    >>> decide([1.0] * 8, [1.00, 1.01, 0.99, 1.0, 1.01, 1.0, 0.99, 1.0], plan).verdict
    'SAME'
    """

    def compared(first: int, last: int, level: float) -> Effect:
        return paired(before[first:last], after[first:last], level=level)

    suspected = ""
    for look, pairs in enumerate(plan.looks):
        level = plan.level(look)
        effect = compared(0, min(pairs, len(after)), level)
        if pairs > len(after):
            return Decision(None, pairs, effect, suspected)
        if found := suspicion(effect, plan, look, min_effect):
            suspected = found.direction
            used = pairs + found.fresh_pairs
            if used > len(after):
                return Decision(None, used, effect, suspected)
            fresh = compared(pairs, used, min(0.4, found.level))
            effect = compared(0, used, level)
            if found.is_confirmed(fresh):
                return Decision(suspected, used, effect, suspected, found.fresh_pairs)
        if same(effect, plan.miss_level(look), min_effect):
            return Decision("SAME", effect.pairs, effect, suspected)
    return Decision("INCONCLUSIVE", effect.pairs, effect, suspected)
