"""Is it slower, faster, the same, or can't we know: the statistics of the gate. Pure functions of floats.

The replicate is a process: each contributes one figure (`location`) per benchmark, because the rounds within a process
share its memory layout and its moment and overstate certainty. Two sides are compared in pairs of processes taken in
ABBA order (`paired`), or as two groups taken at different times (`unpaired`, history). Both tests are exact without
assuming a distribution: signed ranks need the logarithm of a pair's ratio to be symmetric about no change, which the
exchange of the sides makes it; rank sums need the two groups to be exchangeable, which drift between them breaks, and
which is why `unpaired` takes a floor.

A gate run looks at its data several times, for many benchmarks, and repeats what it suspects. `Plan` holds the error
rates that follow, such that at most `alarm_rate` of whole gate runs on unchanged code alarm:

    chance that any of m benchmarks alarms <= sum over benchmarks of (chance to be suspected at any look)
                                                                   x (chance to be confirmed by a fresh batch)
                                           <= m x (screening rate / m) x confirmation level = alarm_rate

The first factor is spent over the looks by the O'Brien-Fleming type function of Lan and DeMets, each look being given
its increment as its nominal level: by Bonferroni's inequality that is valid whatever the dependence between the looks,
without numerical integration, and slightly conservative. The second factor is exact because the batch is fresh.

Sources: Wilcoxon, Biometrics Bulletin 1 (1945) 80; Mann and Whitney, Annals of Mathematical Statistics 18 (1947) 50;
Hodges and Lehmann, ibid. 34 (1963) 598; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.1-3.3 and
4.1-4.3 (the intervals); Lan and DeMets, Biometrika 70 (1983) 659 (spending; equation 5 is its O'Brien-Fleming type).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit  # scipy.stats would take half a second to import

Floats = NDArray[np.float64]

LOOKS = (8, 16, 24, 32)  # pairs seen at each look; 8 is the first number at which anything can be decided
CONFIRMING_PAIRS = 18
CONFIRMATION_LEVEL = 0.05
ALARM_RATE = 0.01
MIN_EFFECT = 0.03
UNKNOWN_FLOOR = 0.02  # what a change of sitting may do where too few sittings are stored to know
FEWEST_FOR_COMMON = 5  # benchmarks, of which a change in one or two leaves the median where it is
EFFICIENCY = 3 / math.pi  # of signed ranks and rank sums relative to the mean, for normal noise


def location(rounds_s: Sequence[float]) -> float:
    """The figure that a process contributes: the minimum of its rounds (pytest-benchmark's `min`).

    Interruptions only ever lengthen rounds, so low quantiles repeat from process to process where the mean wanders, and
    the minimum repeats best: docs/gate.md sets it beside the 10th and 25th percentile, the median and the mean on the
    study's data. Chen and Revels (Robust benchmarking in noisy environments, 2016) argue for it on the same grounds.
    What it cannot see is a change that leaves the fastest rounds alone.

    Raises ValueError without rounds, or for one that isn't a positive, finite time.

    >>> location([2.0, 1.0, 3.0, 4.0, 90.0])
    1.0
    """
    return float(_times(rounds_s, "rounds_s").min())


def _z(tail: float) -> float:
    """What a standard normal exceeds with chance `tail`."""
    return -float(ndtri(tail))


def _times(values: Sequence[float], name: str) -> Floats:
    times = np.asarray(values, dtype=float)
    if times.ndim != 1 or not times.size:
        raise ValueError(f"{name} should be a non-empty sequence of times, but is {values!r}")
    if not (np.isfinite(times).all() and (times > 0).all()):
        wrong = times[~(np.isfinite(times) & (times > 0))][0]
        raise ValueError(f"{name} should hold positive, finite times, but holds {float(wrong)!r}")
    return times


def _distribution(chances: Floats) -> Floats:
    total = np.minimum(np.cumsum(chances), 1.0)
    total[-1] = 1.0  # which the sum misses by rounding
    return total


@lru_cache(maxsize=256)
def _signed_rank_null(n: int) -> Floats:
    """P(T <= t) for t = 0, 1, ..., where T sums those ranks of 1..n whose fair coin shows heads."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return _distribution(chances)


@lru_cache(maxsize=256)
def _rank_sum_null(n: int, m: int) -> Floats:
    """P(U <= u) for u = 0, 1, ..., nm: U counts the pairs with one of n above one of m, all exchangeable."""
    # Of n + m exchangeable values the largest is one of the n with chance n / (n + m), and then above all m.
    row: list[Floats] = [np.ones(1) for _ in range(m + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            chances = np.zeros(i * j + 1)
            chances[j:] += row[j] * (i / (i + j))
            chances[: i * (j - 1) + 1] += row[j - 1] * (j / (i + j))
            row[j] = chances
    return _distribution(row[m])


@dataclass(frozen=True)
class Effect:
    """How many times longer `after` takes than `before`, and how sure that is."""

    ratio: float  # the Hodges-Lehmann estimate: after / before
    low: float  # each bound errs with a chance of at most `level`; 0 and inf where so few pairs cannot say
    high: float
    p_slower: float  # the chance of so much evidence for "slower" (beyond the floor, if any) without a change
    p_faster: float
    pairs: int  # or the smaller group's processes
    noise: float  # standard deviation of a pair's log ratio, as signed ranks see it: 0.03 is 3 %
    level: float
    floor: float = 0.0  # what a change of sitting alone may do
    common: float = 1.0  # what all benchmarks together did
    _differences: Floats = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    _null: Floats = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    def interval(self, level: float, *, sittings: bool = True) -> tuple[float, float]:
        """The bounds of the ratio, each of which errs with a chance of at most `level`.

        With sittings=False without what a change of sitting may have done: that of the two groups as they were taken.
        """
        # The k-th smallest difference is above the truth with chance P(count <= k - 1).
        k = int(np.searchsorted(self._null, level, side="right"))
        if k == 0:
            return 0.0, math.inf
        ordered = self._differences
        down, up = _margins(self.floor, self.common) if sittings else (0.0, 0.0)
        return math.exp(ordered[k - 1] - down), math.exp(ordered[len(ordered) - k] + up)


def _margins(floor: float, common: float) -> tuple[float, float]:
    """By how much the logarithm of a ratio must lie above 0, and below, before it is a change of its own."""
    return math.log1p(floor) + max(0.0, math.log(common)), math.log1p(floor) + max(0.0, -math.log(common))


def _effect(
    differences: Floats, null: Floats, pairs: int, information: float, level: float, floor: float, common: float
) -> Effect:
    if not 0 < level < 0.5:
        raise ValueError(f"level should lie between 0 and 0.5, but is {level!r}")
    ordered, (down, up) = np.sort(differences), _margins(floor, common)
    # Differences of exactly nothing count against both directions: ties can only make the test more careful.
    against_slower = int(np.searchsorted(ordered, down, side="right"))
    against_faster = len(ordered) - int(np.searchsorted(ordered, -up, side="left"))
    ratio = math.exp(float(np.median(ordered)))
    bare = Effect(ratio, 0.0, math.inf, 1.0, 1.0, pairs, 0.0, level, 0.0, 1.0, ordered, null)
    low, high = bare.interval(float(ndtr(-1.0)))  # one standard error to each side
    noise = math.inf if math.isinf(high) else math.log(high / low) / 2 * math.sqrt(information * EFFICIENCY)
    low, high = bare.interval(level)
    return Effect(
        ratio=ratio,
        low=low * math.exp(-down),
        high=high * math.exp(up),
        p_slower=float(null[against_slower]) if against_slower < len(null) else 1.0,
        p_faster=float(null[against_faster]) if against_faster < len(null) else 1.0,
        pairs=pairs,
        noise=noise,
        level=level,
        floor=floor,
        common=common,
        _differences=ordered,
        _null=null,
    )


def paired(before: Sequence[float], after: Sequence[float], *, level: float) -> Effect:
    """The effect from pairs of processes, before[i] beside after[i]: Wilcoxon's signed ranks of the log ratios.

    Exact where exchanging the two sides of a pair changes nothing. The order within the pairs should alternate (ABBA):
    a drift then enters successive pairs with opposite signs and leaves estimate and test where they are. Up to 29 % of
    the pairs may be arbitrarily wrong before the estimate follows them.

    Raises ValueError for no pairs, sides of unequal length, a time that isn't positive, or a level beyond (0, 0.5).

    >>> effect = paired([1.0] * 9, [1.10, 1.11, 1.09, 1.10, 1.12, 1.08, 1.10, 1.10, 9.9], level=0.01)
    >>> round(effect.ratio, 3), round(effect.p_slower, 4)
    (1.1, 0.002)
    """
    b, a = _times(before, "before"), _times(after, "after")
    if len(a) != len(b):
        raise ValueError(f"before and after should be pairs, but hold {len(b)} and {len(a)} times")
    logs = np.log(a / b)
    rows, columns = np.triu_indices(len(logs))
    walsh = (logs[rows] + logs[columns]) / 2  # the mean of every two pairs, each with itself too
    return _effect(walsh, _signed_rank_null(len(logs)), len(logs), len(logs), level, 0.0, 1.0)


def unpaired(
    before: Sequence[float], after: Sequence[float], *, level: float, floor: float | None = None, common: float = 1.0
) -> Effect:
    """The effect between two groups of processes taken at different times: the rank sums of Mann and Whitney.

    `floor` is what a change of sitting alone does to unchanged code on this machine (see `noise_floor`), as a fraction:
    the interval is widened by it on both sides, and "slower" means slower by more than it; None is UNKNOWN_FLOOR. The
    result is exact as long as drift between the groups stays within the floor; floor=0 claims that there is none.
    `common` is what all benchmarks did together (`common_shift`), most likely the machine: "slower" must hold with it
    and without it, and the interval covers both readings.

    Raises ValueError for an empty group, a time or `common` that isn't positive, a negative floor, or a level beyond
    (0, 0.5).

    >>> effect = unpaired([1.00, 1.01, 0.99, 1.02, 1.0], [1.10, 1.11, 1.09, 1.12, 1.1], level=0.01, floor=0.02)
    >>> round(effect.ratio, 2), round(effect.p_slower, 4)
    (1.1, 0.004)
    """
    b, a = _times(before, "before"), _times(after, "after")
    margin = UNKNOWN_FLOOR if floor is None else float(floor)
    if not 0 <= margin < math.inf:
        raise ValueError(f"floor should be a fraction of 0 or more, but is {floor!r}")
    if not 0 < common < math.inf:
        raise ValueError(f"common should be a positive, finite ratio, but is {common!r}")
    differences = (np.log(a)[:, None] - np.log(b)[None, :]).ravel()
    information = 2 * len(a) * len(b) / (len(a) + len(b))  # pairs of independent processes that say as much
    return _effect(differences, _rank_sum_null(len(a), len(b)), min(len(a), len(b)), information, level, margin, common)


def spread(times_s: Sequence[float]) -> float:
    """How far times lie apart: the normal distribution's relative standard deviation that has their median distance
    from their median (MAD), on which a few outliers have no influence.

    Raises ValueError for none, or a time that isn't positive.

    >>> round(spread([1.00, 1.01, 0.99, 1.02, 5.00]), 4)
    0.0148
    """
    logs = np.log(_times(times_s, "times_s"))
    return float(np.median(np.abs(logs - np.median(logs))) / ndtri(0.75))


def noise_floor(sittings: Sequence[Sequence[float]], *, level: float = 0.05) -> float:
    """What a change of sitting alone may do to unchanged code: the prediction bound of the next sitting, as a fraction.

    From the log medians of K sittings' processes: t(K - 1, level) x their standard deviation x sqrt(1 + 1/K).
    With few sittings it is large, which is the truth about them. math.inf for fewer than two.

    Raises ValueError for a time that isn't positive.

    >>> round(noise_floor([[1.00, 1.01, 1.02], [1.03, 1.02, 1.05], [0.99, 1.0, 1.0], [1.02, 1.02, 1.02]]), 3)
    0.034
    """
    medians = np.array([np.median(np.log(_times(times, "sittings"))) for times in sittings])
    if len(medians) < 2:
        return math.inf
    spread = float(medians.std(ddof=1)) * math.sqrt(1 + 1 / len(medians))
    return math.expm1(-float(stdtrit(len(medians) - 1, level)) * spread)


def common_shift(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """What all benchmarks did together between two sittings: the median over benchmarks of the ratio of their medians.

    A machine that runs at another clock, or has a neighbour today, moves all benchmarks; a change of the code moves
    those that it touches. Where it touches most of them the two cannot be told apart from history, only side by side.
    1.0 for fewer than FEWEST_FOR_COMMON benchmarks, of which the median would be the change itself.

    Raises ValueError for lists of unequal length, or a time that isn't positive.

    >>> round(common_shift([[1.0, 1.1], [2.0], [3.0], [4.0], [5.0]], [[1.1, 1.2], [2.1], [3.15], [4.2], [9.0]]), 3)
    1.05
    """
    if len(before) != len(after):
        raise ValueError(f"before and after should be the same benchmarks, but are {len(before)} and {len(after)}")
    if len(before) < FEWEST_FOR_COMMON:
        return 1.0
    middles = [
        (np.median(_times(b, "before")), np.median(_times(a, "after"))) for b, a in zip(before, after, strict=True)
    ]
    return float(np.exp(np.median([math.log(a / b) for b, a in middles])))


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
    ['2.6e-07', '2.7e-04', '2.7e-03', '7.1e-03']
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
        return min(0.4, self.alarm_rate / repeated) / self.benchmarks / self.directions

    def spent(self, look: int) -> float:
        """What the looks up to `look` (0 is the first) have spent of `screening_rate`: 2 - 2 Phi(z / sqrt(t))."""
        share = self.looks[look] / self.looks[-1]
        return 2 * float(ndtr(-_z(self.screening_rate / 2) / math.sqrt(share)))

    def level(self, look: int) -> float:
        """The nominal level of each side at a look: what spending adds there."""
        return self.spent(look) - (self.spent(look - 1) if look else 0.0)

    def miss_level(self, look: int) -> float:
        """The nominal level of SAME at a look: `miss_rate` spent in proportion to the pairs."""
        return self.miss_rate * (self.looks[look] - (self.looks[look - 1] if look else 0)) / self.looks[-1]


def _beyond(ratio: float, min_effect: float) -> str | None:
    if ratio > 1 + min_effect:
        return "SLOWER"
    return "FASTER" if ratio < 1 / (1 + min_effect) else None


def _same(effect: Effect, level: float, min_effect: float) -> bool:
    low, high = effect.interval(level, sittings=False)
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
    what lies beyond those that decide is ignored. A suspicion that isn't confirmed goes on to the next look: the sum
    over looks that bounds false alarms has that chance in it already. In history mode (`plan.shared_baseline`) before
    is the whole stored group, looks count processes of after, and `floor` and `common` are those of `unpaired`.

    Raises ValueError for fewer pairs than the first look.

    >>> plan = Plan(benchmarks=1, looks=(8, 16), confirming_pairs=8)
    >>> decide([1.0] * 8, [1.01, 0.8, 1.3, 0.9, 1.2, 1.0, 0.9, 1.1], plan).wanted
    16
    >>> decide([1.0] * 16, [1.1] * 16, plan).suspicion, decide([1.0] * 16, [1.1] * 16, plan).verdict
    ('SLOWER', 'SLOWER')
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


def pairs_needed(effect: Effect, plan: Plan, min_effect: float = MIN_EFFECT) -> int:
    """How many pairs would decide an open comparison, if estimate and noise stay what they are.

    An estimate beyond min_effect must be told from 1, one within it from min_effect. An estimate that sits on the
    limit is taken to lie a tenth of min_effect beside it: nothing decides a change that is exactly the limit.
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
    return max(fewest, math.ceil((_z(level) * effect.noise / distance) ** 2 / EFFICIENCY))


def smallest_effect(noise: float, plan: Plan, min_effect: float = MIN_EFFECT, power: float = 0.95) -> float:
    """The smallest slowdown that a whole gate run finds with probability `power`, at a pair's noise, as a fraction.

    It must pass the last look, the confirmation and the limit on the estimate, each with the chance that makes the
    three together at least `power`; normal noise. The machine's noise floor is this at its own A/A noise.

    >>> round(smallest_effect(0.02, Plan(benchmarks=20)), 3), round(smallest_effect(0.07, Plan(benchmarks=20)), 3)
    (0.041, 0.068)
    """
    each = _z((1 - power) / 3)

    def bound(level: float, pairs: int) -> float:
        return (_z(level) + each) * noise / math.sqrt(pairs * EFFICIENCY)

    looked = bound(plan.level(len(plan.looks) - 1), plan.looks[-1])
    repeated = bound(plan.confirmation_level, plan.confirming_pairs) if plan.confirmation_level < 0.5 else 0.0
    estimated = math.log1p(min_effect) + bound(0.5, min(plan.looks[-1], plan.confirming_pairs))
    return math.expm1(max(looked, repeated, estimated))


def as_facts(effect: Effect) -> dict[str, Any]:
    """What of an effect belongs in a record: plain numbers, None where there is no bound."""
    names = ("ratio", "low", "high", "p_slower", "p_faster", "pairs", "noise", "level", "floor", "common")
    facts = {name: getattr(effect, name) for name in names}
    return {name: None if math.isinf(value) else value for name, value in facts.items()}
