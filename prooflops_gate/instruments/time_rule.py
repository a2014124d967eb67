"""Decides on the times of benchmarks, and says what stays open.

Pure: no I/O, no clock. The rule and its error rates are those of `statistics.decision_rule`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.exact import Sides
from prooflops_gate.rows import SHOWN_LEVEL, TIME, Row, joined, one_sided
from prooflops_gate.statistics import effects
from prooflops_gate.statistics.decision_rule import (
    CONFIRMING_PAIRS,
    FEWEST_FRESH,
    FEWEST_PLAIN,
    LOOKS,
    MIN_EFFECT,
    Decision,
    Plan,
    decide,
    is_large,
    is_plain,
    is_small,
    smallest_effect,
)
from prooflops_gate.statistics.effects import Effect

# A run warns of undecided benchmarks that could hide a change of this size.
OPEN = 0.10

# The reasons that ended the run of an open benchmark.
NOISE = "too noisy to decide"
PAIRS = "--gate-replicates ended it"
BUDGET = "the budget ended it (--gate-budget)"


def plan_for(benchmarks: int, *, most: int | None = None, all_pairs: bool = False) -> Plan:
    """The error rates of a comparison in at most `most` pairs.

    The pairs include confirming ones where the rest suffice.
    """
    plan = Plan(benchmarks=max(benchmarks, 1))
    if most is None:
        return plan
    last, confirming = most, 0
    if not all_pairs:
        share = CONFIRMING_PAIRS / (LOOKS[-1] + CONFIRMING_PAIRS)
        confirming = min(CONFIRMING_PAIRS, max(FEWEST_FRESH, round(share * most)))
        if 0.5 ** (most - confirming) <= plan.screening_rate:
            last = most - confirming
    looks = (*(look for look in plan.looks if look < last), last)
    return replace(plan, looks=looks, confirming_pairs=confirming or plan.confirming_pairs)


@dataclass(frozen=True)
class TimeRule:
    """Compares the pairs of a benchmark at each look of the plan.

    `smallest_of` holds the smallest change that counts where a marker sets it, `most` bounds the
    pairs. `all_pairs` takes them up to the last look, whatever is decided before, to estimate the
    noise. Benchmarks in `settled` are decided by something else, unless `look` pairs
    suspect them or show a large slowdown. The run ends after `most_slower` slowdowns; 0: it never
    does.
    """

    plan: Plan
    min_effect: float = MIN_EFFECT
    smallest_of: Mapping[str, float] = field(default_factory=dict)
    most: int | None = None
    all_pairs: bool = False
    settled: Container[str] = ()
    look: int = 0
    most_slower: int = 0

    def smallest(self, name: str) -> float:
        """The smallest change of this benchmark that counts."""
        return self.smallest_of.get(name, self.min_effect)

    def decision(self, name: str, sides: Sides) -> Decision:
        """The decision on one benchmark by the pairs so far."""
        before, after = figures(sides)
        decision = decide(before, after, self.plan, self.smallest(name))
        if self.all_pairs:
            level = self.plan.level(len(self.plan.looks) - 1)
            return replace(decision, effect=effects.paired(before, after, level=level))
        return decision

    def is_plain(self, row: Row) -> bool:
        """True if FEWEST_PLAIN pairs or more all show a slowdown far above the smallest."""
        # If --gate-replicates bounds the pairs, every pair measures every open benchmark.
        if self.most or row.effect is None or row.effect.pairs < FEWEST_PLAIN:
            return False
        return is_plain(row.effect, "SLOWER", self.smallest(row.name))

    def has_failed(self, rows: Iterable[Row]) -> bool:
        """True if enough are slower to end the run; small ones may not be, by instructions."""
        slower = sum(row.verdict == "SLOWER" and not is_small(row.effect) for row in rows)
        return 0 < self.most_slower <= slower

    def why_open(self, decision: Decision) -> str:
        """The limit that ended an open benchmark's pairs, and the changes they exclude."""
        ended_by = BUDGET if decision.verdict is None else NOISE
        if self.most and decision.effect.pairs >= self.most:
            ended_by = PAIRS
        return joined(excluded(decision.effect), ended_by)

    def wanted(self, name: str, decision: Decision) -> int:
        """The number of pairs at this benchmark's next look; 0 where none is needed."""
        if self.all_pairs:
            return self.plan.looks[-1]
        is_seen = decision.effect.pairs >= self.look
        may_wait = decision.suspected or is_large(decision.effect, self.smallest(name))
        is_settled = name in self.settled and is_seen and not may_wait
        if decision.verdict is not None or is_settled:
            return 0
        return min(decision.wanted, self.most or decision.wanted)


def seconds(side: Iterable[Timed]) -> list[float]:
    """The times of these processes."""
    return [timed.time_s for timed in side]


def figures(sides: Sides) -> tuple[list[float], list[float]]:
    """The compared figures of both sides: their GPU's cycles, or their times."""
    before, after = sides
    if agree_in_cycles(sides):
        return cycles(before), cycles(after)
    return seconds(before), seconds(after)


def agree_in_cycles(sides: Sides) -> bool:
    """True if the GPU's cycles of all processes are known, and agree better than their times.

    A kernel that waits for memory takes as long at any clock, and another number of cycles. The
    choice treats the sides alike, as it looks at the sizes of the pairs' log ratios alone.

    >>> fast, slow = (Timed(2e9 / hz, {}, cycles=2e9) for hz in (2e9, 1e9))
    >>> [agree_in_cycles(sides) for sides in (([fast], [slow]), ([fast], [fast]))]
    [True, False]
    """
    before, after = sides
    if not all(timed.cycles for side in sides for timed in side):
        return False
    by_cycles = disagreement(cycles(before), cycles(after))
    return by_cycles < disagreement(seconds(before), seconds(after))


def disagreement(before: Sequence[float], after: Sequence[float]) -> float:
    """The median size of the pairs' log ratios."""
    return median(abs(math.log(new / old)) for old, new in zip(before, after, strict=True))


def cycles(side: Iterable[Timed]) -> list[float]:
    """The GPU's cycles of these processes."""
    return [timed.cycles for timed in side]


def methods(sides: Sides) -> list[str]:
    """The methods by which these processes measured."""
    return list(dict.fromkeys(str(timed.method) for side in sides for timed in side))


def look_at(both: Mapping[str, Sides], rule: TimeRule) -> tuple[list[Row], dict[str, int]]:
    """A row for each benchmark, and the number of pairs at the next look of each undecided one."""
    rows, wanted = [], {}
    for name, sides in both.items():
        decision = None
        if not all(sides):
            wanted[name] = rule.plan.looks[0]
        elif len(methods(sides)) == 1:
            decision = rule.decision(name, sides)
            wanted[name] = rule.wanted(name, decision)
        if any(sides):
            rows.append(time_row(name, sides, decision, rule))
    still = {name: count for name, count in wanted.items() if count > len(both[name][1])}
    return rows, still


def time_row(name: str, sides: Sides, decision: Decision | None, rule: TimeRule) -> Row:
    """The row of a benchmark's times.

    Without a decision, the sides were measured by two methods.
    """
    before, after = (median(seconds(side)) if side else None for side in sides)
    if before is None or after is None:
        return one_sided(name, TIME, before, after)
    test = next(timed.test for side in sides for timed in side)
    if decision is None:
        note = f"the method of measuring changed ({' -> '.join(methods(sides))})"
        return Row(name, TIME, before, after, "INCONCLUSIVE", note=note, test=test)
    # Medians of each side alone may point the other way than the ratio of the pairs.
    after = before * decision.effect.ratio
    reached, effect = decision.verdict or "INCONCLUSIVE", decision.effect
    notes = [clock_note(sides)]
    if reached == "INCONCLUSIVE":
        notes += open_notes(decision, rule)
    contended = [timed.contended for side in sides for timed in side if timed.contended]
    if contended:
        of_all = f"{len(contended)} of {len(sides[0]) + len(sides[1])}"
        notes.append(f"{of_all} processes contended: {contended[-1]}")
    note = joined(*notes)
    return Row(name, TIME, before, after, reached, effect, note, fresh=decision.fresh, test=test)


def clock_note(sides: Sides) -> str:
    """At which clocks the GPU's cycles were compared; empty where the times were."""
    if not agree_in_cycles(sides):
        return ""
    clocks = [hz / 1e9 for side in sides for timed in side for hz in timed.clocks_hz]
    return f"by the GPU's cycles, at clocks of {min(clocks):.2f} to {max(clocks):.2f} GHz"


def open_notes(decision: Decision, rule: TimeRule) -> list[str]:
    """Why a benchmark is open."""
    noise, notes = decision.effect.noise, []
    if decision.suspected:
        notes.append(f"suspected {decision.suspected}, not confirmed")
    known = math.isfinite(noise)
    notes.append(f"noise {noise:.1%}" if known else "too few processes to know the noise")
    return [*notes, rule.why_open(decision)]


def excludes(effect: Effect | None, change: float) -> bool:
    """True if the pairs exclude a larger slowdown.

    The level is that of the printed bounds.

    >>> from prooflops_gate.statistics.effects import paired
    >>> excludes(paired([1.0] * 8, [1.0, 1.04] * 4, level=0.01), 0.05)
    True
    >>> [excludes(paired([1.0], [9.0], level=0.01), change) for change in (10.0, math.inf)]
    [False, True]
    """
    if effect is None or math.isinf(change):
        return math.isinf(change)
    _, high, level = effect.bounds(SHOWN_LEVEL)
    return level <= SHOWN_LEVEL and high <= 1 + change


def excluded(effect: Effect) -> str:
    """The largest slowdown that is not excluded, in words.

    >>> from prooflops_gate.statistics.effects import paired
    >>> excluded(paired([1.0] * 3, [1.0, 1.1, 1.2], level=0.01))
    'slower by 20.0% at most (88% sure)'
    """
    _, high, level = effect.bounds(SHOWN_LEVEL)
    if level >= 0.5:
        return "one pair excludes nothing"
    sure = f"({1 - level:.0%} sure)"
    return f"slower by {high - 1:.1%} at most {sure}" if high > 1 else f"not slower {sure}"


def found_from(unchanged: Sequence[Effect], plan: Plan, min_effect: float) -> str:
    """The slowdowns that 19 of 20 runs with this noise confirm, in words.

    Smaller ones may be found, too. `unchanged` are the effects of benchmarks without a change.

    >>> def of(*ratios):
    ...     return effects.paired([1.0] * len(ratios), ratios, level=0.1)
    >>> quiet, noisy = of(1.01, 1.0, 0.99, 1.01, 1.0, 0.99), of(1.2, 1.0, 0.8, 1.1, 0.9, 1.0)
    >>> print(found_from([noisy, quiet, quiet], plan_for(3), 0.03).partition(", ")[2])
    this run may have missed slowdowns below 4 %, in its noisiest benchmark those below 13 %
    >>> found_from([quiet, of(1.0)], plan_for(2), 0.03)
    'too few pairs to say which slowdowns this run may have missed'
    """
    noises = sorted(effect.noise for effect in unchanged)
    if not math.isfinite(noises[-1]):
        return "too few pairs to say which slowdowns this run may have missed"
    half, every = (
        f"{100 * smallest_effect(noise, plan, min_effect):.0f} %"
        for noise in (noises[len(noises) // 2], noises[-1])
    )
    noisiest = f", in its noisiest benchmark those below {every}" if half != every else ""
    return f"by time, this run may have missed slowdowns below {half}{noisiest}"
