"""How the error rates of a gate run are divided among its benchmarks, its looks and its confirmations.

A gate run looks at its data several times, for many benchmarks, and repeats what it suspects. `Plan` holds the error
rates that follow, such that at most `alarm_rate` of whole gate runs on unchanged code alarm:

    chance that any of m benchmarks alarms <= sum over benchmarks of (chance to be suspected at any look)
                                                                   x (chance to be confirmed by a fresh batch)
                                           <= m x (screening rate / m) x confirmation level = alarm_rate

A change so plain that every pair of the first look shows it has a shorter way, which PLAIN_SHARE of `alarm_rate` pays:
it stands where each of some fresh pairs shows it, too. The rest is for what is not as plain. There the first factor is
spent over the looks by the O'Brien-Fleming type function of Lan and DeMets, each look being given its increment as its
nominal level: by Bonferroni's inequality that is valid whatever the dependence between the looks, without numerical
integration, and slightly conservative. The second factor is exact because the batch is fresh.

Source: Lan and DeMets, Biometrika 70 (1983) 659 (spending; equation 5 is its O'Brien-Fleming type).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from scipy.special import ndtr

from prooflops.statistics.effects import Effect
from prooflops.statistics.rank_tests import EFFICIENCY, upper_normal_quantile

LOOKS = (8, 16, 24, 32)  # pairs seen at each look; 8 is the first number at which anything can be decided
CONFIRMING_PAIRS = 18
CONFIRMATION_LEVEL = 0.05
ALARM_RATE = 0.01
MIN_EFFECT = 0.03
PLAIN_SHARE = 0.1  # of the alarm rate
FEWEST_PLAIN = 5  # fresh pairs, however few benchmarks there are


@dataclass(frozen=True)
class Plan:
    """The error rates of a gate run: how many benchmarks, after how many pairs each look is taken, how often to alarm.

    `alarm_rate` bounds the share of whole gate runs on unchanged code with any false SLOWER; with directions=2 the
    share with any false SLOWER or FASTER. `miss_rate` bounds, per benchmark, the share of SAME verdicts on a change
    that is as large as the smallest effect asked for.

    With `shared_baseline` (history mode) the batch that confirms is compared with the same stored baseline as what it
    confirms, and so is not independent of it: it is still asked for, but the alarm rate counts nothing for it.

    Raises ValueError for no benchmarks, looks that don't increase, or a rate beyond (0, 0.5).

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
    shared_baseline: bool = False

    def __post_init__(self) -> None:
        if self.benchmarks < 1:
            raise ValueError(f"benchmarks should be 1 or more, but is {self.benchmarks!r}")
        looks = (0, *self.looks)
        if len(looks) < 2 or any(late <= early for early, late in itertools.pairwise(looks)):
            raise ValueError(f"looks should be increasing numbers of pairs, but are {self.looks!r}")
        for name in ("alarm_rate", "miss_rate"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} should lie between 0 and 0.5, but is {getattr(self, name)!r}")
        if not self.alarm_rate <= self.confirmation_level <= 1:
            raise ValueError(
                f"confirmation_level should lie between alarm_rate ({self.alarm_rate:g}) and 1, "
                f"but is {self.confirmation_level!r}"
            )
        if self.directions not in (1, 2):
            raise ValueError(f"directions should be 1 or 2, but is {self.directions!r}")

    @property
    def screening_rate(self) -> float:
        """The chance at most that one benchmark is suspected, at any look, in one direction, without a change."""
        repeated = 1.0 if self.shared_baseline else self.confirmation_level
        rate = self.alarm_rate * (1 - PLAIN_SHARE if self.plain_pairs else 1.0)
        return min(0.4, rate / repeated) / self.benchmarks / self.directions

    @property
    def plain_pairs(self) -> int:
        """How many fresh pairs confirm what every pair of the first look shows, if each shows it too; 0: none do.

        Without a change the chance of n pairs that all show the same is 2^-n, for each benchmark and direction.

        >>> Plan(benchmarks=1).plain_pairs, Plan(benchmarks=64).plain_pairs, Plan(benchmarks=500).plain_pairs
        (5, 8, 11)
        """
        in_all = math.ceil(math.log2(self.benchmarks * self.directions / (PLAIN_SHARE * self.alarm_rate)))
        pairs = max(in_all - self.looks[0], FEWEST_PLAIN)
        longer_way = self.looks[min(1, len(self.looks) - 1)] + self.confirming_pairs
        return 0 if self.shared_baseline or self.looks[0] + pairs >= longer_way else pairs

    def spent(self, look: int) -> float:
        """What the looks up to `look` (0 is the first) have spent of `screening_rate`: 2 - 2 Phi(z / sqrt(t))."""
        share = self.looks[look] / self.looks[-1]
        return 2 * float(ndtr(-upper_normal_quantile(self.screening_rate / 2) / math.sqrt(share)))

    def level(self, look: int) -> float:
        """The nominal level of each side at a look: what spending adds there."""
        return self.spent(look) - (self.spent(look - 1) if look else 0.0)

    def miss_level(self, look: int) -> float:
        """The nominal level of SAME at a look: `miss_rate` spent in proportion to the pairs."""
        return self.miss_rate * (self.looks[look] - (self.looks[look - 1] if look else 0)) / self.looks[-1]


def pairs_needed(effect: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> int:
    """How many pairs would decide an open comparison, if estimate and noise stay what they are.

    An estimate beyond min_effect must be distinguished from 1, one within it from min_effect. An estimate on the limit
    is taken to lie a tenth of min_effect beside it: nothing decides a change that is exactly the limit.
    """
    last, limit = len(plan.looks) - 1, math.log1p(min_effect)
    size = abs(math.log(effect.ratio))
    if size > limit:
        level, distance = plan.level(last), size
    else:
        level, distance = plan.miss_level(last), max(limit - size, limit / 10)
    fewest = math.ceil(-math.log2(level))  # so many pairs of one sign are the least that reach the level
    if not math.isfinite(effect.noise):
        return max(fewest, plan.looks[-1])
    return max(fewest, math.ceil((upper_normal_quantile(level) * effect.noise / distance) ** 2 / EFFICIENCY))


def smallest_effect(noise: float, plan: Plan, min_effect: float = MIN_EFFECT, power: float = 0.95) -> float:
    """The smallest slowdown that a whole gate run finds with probability `power`, at a pair's noise, as a fraction.

    It must pass the last look, the confirmation and the limit on the estimate, each with the chance that makes the
    three together at least `power`; normal noise. The machine's noise floor is this at its own A/A noise.

    >>> round(smallest_effect(0.02, Plan(benchmarks=20)), 3), round(smallest_effect(0.07, Plan(benchmarks=20)), 3)
    (0.041, 0.068)
    """
    each = upper_normal_quantile((1 - power) / 3)

    def bound(level: float, pairs: int) -> float:
        return (upper_normal_quantile(level) + each) * noise / math.sqrt(pairs * EFFICIENCY)

    looked = bound(plan.level(len(plan.looks) - 1), plan.looks[-1])
    repeated = bound(plan.confirmation_level, plan.confirming_pairs) if plan.confirmation_level < 0.5 else 0.0
    estimated = math.log1p(min_effect) + bound(0.5, min(plan.looks[-1], plan.confirming_pairs))
    return math.expm1(max(looked, repeated, estimated))
