"""The rule of the gate for one benchmark: slower, faster, the same, or too noisy to know. Pure functions of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prooflops.statistics.effects import Effect, paired, unpaired
from prooflops.statistics.plan import MIN_EFFECT, Plan


def _beyond(ratio: float, min_effect: float) -> str | None:
    if ratio > 1 + min_effect:
        return "SLOWER"
    return "FASTER" if ratio < 1 / (1 + min_effect) else None


def _plain(effect: Effect, min_effect: float) -> str | None:
    """SLOWER or FASTER where every pair shows it."""
    return _beyond(effect.ratio, min_effect) if effect.in_every_pair else None


def _same(effect: Effect, level: float, min_effect: float) -> bool:
    low, high = effect.interval(level, drift=False)
    return 1 / (1 + min_effect) < low and high < 1 + min_effect


def verdict(effect: Effect, plan: Plan, look: int, min_effect: float = MIN_EFFECT) -> str | None:
    """What a look decides: SLOWER and FASTER (suspected, to be confirmed), SAME, INCONCLUSIVE; None is "go on".

    SLOWER: the interval at the look's level lies above 1, and the estimate is beyond 1 + min_effect. `min_effect` is
    held against the estimate: held against the bound, a change must be about twice as large to be found (docs/gate.md
    has both). A change as large as min_effect itself is therefore reported in about every third case.
    SAME: the interval at the look's miss level lies within min_effect of 1, so that a change as large is missed with a
    chance of `plan.miss_rate` at most. It isn't the absence of evidence. In history mode it says that the two groups
    agree so closely as they were taken; a change that a drift has hidden is not excluded. INCONCLUSIVE: neither, at the
    last look.

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
    if _same(effect, plan.miss_level(look), min_effect):
        return "SAME"
    return "INCONCLUSIVE" if look == len(plan.looks) - 1 else None


def confirmed(suspicion: str, fresh: Effect, pooled: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> str:
    """The final verdict on a suspicion ("SLOWER", "FASTER"), after `plan.confirming_pairs` fresh pairs.

    It stands where the fresh pairs alone say it again: estimated beyond min_effect, at `plan.confirmation_level`.
    Otherwise SAME where all pairs together are that sure, else INCONCLUSIVE: what doesn't repeat doesn't alarm.
    """
    if suspicion not in ("SLOWER", "FASTER"):
        raise ValueError(f"suspicion should be SLOWER or FASTER, but is {suspicion!r}")
    p = fresh.p_slower if suspicion == "SLOWER" else fresh.p_faster
    if p <= plan.confirmation_level and _beyond(fresh.ratio, min_effect) == suspicion:
        return suspicion
    return "SAME" if _same(pooled, plan.miss_level(len(plan.looks) - 1), min_effect) else "INCONCLUSIVE"


@dataclass(frozen=True)
class Decision:
    """What the pairs taken so far decide: a final verdict, or how many pairs to take before asking again."""

    verdict: str | None  # None: go on
    wanted: int  # pairs in all; where there is a verdict, those that it took
    effect: Effect  # of all those pairs
    suspicion: str | None = None  # what is being, or was, confirmed


def decide(
    before: Sequence[float],
    after: Sequence[float],
    plan: Plan,
    min_effect: float = MIN_EFFECT,
    *,
    floor: float | None = None,
    common: float = 1.0,
) -> Decision:
    """The whole rule of a benchmark in one: looks, suspicion, confirmation by what follows, verdict.

    A function of all times in the order taken, so that the gate may ask after each batch, and a study may replay it;
    what lies beyond those that decide is ignored. A change that every pair of the first look shows, and every one of
    `plan.plain_pairs` fresh ones, is decided by these. A suspicion that isn't confirmed goes on to the next look: the
    sum over looks that bounds false alarms has that chance in it already. In history mode (`plan.shared_baseline`)
    before is the whole stored group, looks count processes of after, and `floor` and `common` are those of `unpaired`.

    Raises ValueError for fewer pairs than the first look.

    >>> plan = Plan(benchmarks=1, looks=(8, 16), confirming_pairs=8)
    >>> decide([1.0] * 8, [1.01, 0.8, 1.3, 0.9, 1.2, 1.0, 0.9, 1.1], plan).wanted
    16
    >>> plain = decide([1.0] * 16, [1.1] * 16, plan)
    >>> plain.suspicion, plain.verdict, plain.wanted
    ('SLOWER', 'SLOWER', 13)
    """
    if len(after) < plan.looks[0] or not (plan.shared_baseline or len(before) == len(after)):
        raise ValueError(
            f"the first look takes {plan.looks[0]} pairs, but there are {len(before)} and {len(after)} times"
        )

    def compared(first: int, last: int, level: float) -> Effect:
        if plan.shared_baseline:
            return unpaired(before, after[first:last], level=level, floor=floor, common=common)
        return paired(before[first:last], after[first:last], level=level)

    suspicion = None
    for look, pairs in enumerate(plan.looks):
        level = plan.level(look)
        if pairs > len(after):
            return Decision(None, pairs, compared(0, len(after), level), suspicion)
        effect = compared(0, pairs, level)
        answer = verdict(effect, plan, look, min_effect)
        if look == 0 and plan.plain_pairs and (plain := _plain(effect, min_effect)):
            wanted = pairs + plan.plain_pairs
            if wanted > len(after):
                return Decision(None, wanted, effect, plain)
            if _plain(compared(pairs, wanted, level), min_effect) == plain:
                return Decision(plain, wanted, compared(0, wanted, level), plain)
        if answer in ("SLOWER", "FASTER"):
            suspicion, wanted = answer, pairs + plan.confirming_pairs
            if wanted > len(after):
                return Decision(None, wanted, effect, suspicion)
            fresh = compared(pairs, wanted, min(0.4, plan.confirmation_level))
            pooled = compared(0, wanted, level)
            answer = confirmed(suspicion, fresh, pooled, plan, min_effect)
            if answer != "INCONCLUSIVE" or look == len(plan.looks) - 1:
                return Decision(answer, wanted, pooled, suspicion)
        elif answer:
            return Decision(answer, pairs, effect, suspicion)
    raise AssertionError("the last look always answers")
