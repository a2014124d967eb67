"""The seconds of each benchmark in a process of a comparison, and the pairs that fit.

Only the fastest round of each benchmark in a process counts, so a second per benchmark, as
pytest-benchmark takes it, says hardly more than a fiftieth of one; many processes decide. The first
pair runs at `FIRST` and shows the duration of a round, and the overhead of a process: its start,
imports and collection. From these the rest is planned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scipy.optimize import brentq

from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.history.records import Timed
from prooflops_gate.rows import INSTRUCTIONS, TIME
from prooflops_gate.statistics.decision_rule import Plan
from prooflops_gate.statistics.effects import Effect
from prooflops_gate.task import Paces, Pair, Replicate

# Seconds of a benchmark in a process; USUAL_S where there are many.
LEAST_S, USUAL_S, MOST_S = 0.005, 0.01, 0.2
# The share of a process's start, and of a plain run of the suite, that its rounds may take
# together.
SHARE = 0.5
ROUNDS = 3
# A benchmark whose rounds take longer runs once in a process, as more pairs say more.
LONG_S = 0.1
# A benchmark gets this number of rounds, if they last no longer than that.
ENOUGH_ROUNDS = 12
FIRST: Paces = {"": {"max_time": USUAL_S, "min_rounds": ROUNDS}}
# One round, where processes are only to show what they open.
LEAST: Paces = {"": {"max_time": 1e-6, "min_rounds": 1}}
# The standard deviation of a pair's log ratio from which on a benchmark gets more time.
NOISY = 0.02
# Why a benchmark is open that is not measured with the others.
TOO_LONG = "it takes too long for the budget"
# The share of the time left that counting instructions gets; and beside other work, that no count
# notices.
COUNTING_SHARE, BUSY_COUNTING_SHARE = 1 / 3, 2 / 3


@dataclass(frozen=True)
class Cost:
    """Seconds of a benchmark in a process at the first pace, and what another pace would change.

    `round_s` is its fastest round, 0 where its pace is fixed.
    """

    call_s: float
    round_s: float = 0.0

    @property
    def gains(self) -> bool:
        """True if more time means more rounds, and so less noise."""
        return 0 < self.round_s < LONG_S

    def rounds(self, most_s: float) -> int:
        """The rounds that fit into `most_s` seconds: ENOUGH_ROUNDS at most, and at least one."""
        if not self.round_s:
            return ENOUGH_ROUNDS
        return max(min(int(most_s / self.round_s), ENOUGH_ROUNDS), 1)

    def at(self, seconds: float, most_s: float = LONG_S) -> float:
        """Seconds this benchmark adds to a process if each gets `seconds`.

        Its rounds take `most_s` at most.

        >>> [round(Cost(0.1, round_s).at(0.2), 3) for round_s in (0.0, 0.001, 0.005)]
        [0.1, 0.29, 0.84]
        """
        if not self.round_s:
            return self.call_s
        if ROUNDS * self.round_s < USUAL_S:
            rounds_s = max(seconds, self.rounds(most_s) * self.round_s)
            return max(self.call_s - USUAL_S, 0.0) + rounds_s
        # Three rounds take longer than the time, so their number counts. pytest-benchmark calls it
        # twice more: to calibrate, and for its result.
        rounds = max(self.rounds(most_s), int(seconds / self.round_s))
        return self.call_s * (rounds + 2) / (ROUNDS + 2)


@dataclass(frozen=True)
class PacePlan:
    """The seconds of each benchmark and the number of pairs that follow from a first pair.

    `pairs` is the least number that decides anything, the first look; `most_pairs` that at which
    the second look is confirmed: few need more. `budget_s` begins with the first pair, `left_s` is
    what that left. `decides`: whether the pairs that --gate-replicates allows can decide anything.
    `start_cpu_s` is the CPU time of a process without its benchmarks: it does not wait for a core.
    """

    costs: Mapping[str, Cost]
    overhead_s: float
    pairs: int
    most_pairs: int
    budget_s: float
    left_s: float
    decides: bool = True
    start_cpu_s: float = 0.0

    def later(self, spent_s: float) -> PacePlan:
        """The same plan where something else has spent this time."""
        return replace(self, budget_s=self.budget_s - spent_s, left_s=self.left_s - spent_s)

    def counting_s(self, by: str, pairs: Collection[tuple[Timed, Timed]], left_s: float) -> float:
        """The seconds that times leave to counting.

        There are none if time alone decides, else a share of the time left.

        A first look at times costs less than one at counts. So times leave nothing where the rest
        would be too short for it, and all where even the budget is, or instructions alone decide.

        >>> costs = {"a": Cost(call_s=0.1)}
        >>> slow = PacePlan(costs, overhead_s=9.9, pairs=8, most_pairs=34, budget_s=400, left_s=380)
        >>> busy = [(Timed(1.0, {}, contended="busy"), Timed(1.0, {}))]
        >>> quick, slowest = replace(slow, overhead_s=0.1), replace(slow, overhead_s=30.0)
        >>> [round(plan.counting_s("both", busy, 380)) for plan in (quick, slow, slowest)]
        [253, 0, 380]
        """
        if by == TIME:
            return 0.0
        share = BUSY_COUNTING_SHARE if is_busy(pairs) else COUNTING_SHARE
        if by == INSTRUCTIONS or not self.fits(self.kept):
            return left_s
        return share * left_s if self.later(share * left_s).fits(self.kept) else 0.0

    @cached_property
    def too_long(self) -> list[str]:
        """The benchmarks without which the others can have the least number of pairs.

        None where nothing helps.
        """
        names = sorted(self.costs, key=lambda name: self.costs[name].at(LEAST_S))
        fitting = next((count for count in range(len(names), 0, -1) if self.fits(names[:count])), 0)
        return names[fitting:] if fitting else []

    @cached_property
    def kept(self) -> list[str]:
        return [name for name in self.costs if name not in self.too_long]

    @cached_property
    def most_s(self) -> float:
        """Seconds of a benchmark's rounds, so that all take SHARE of a plain run of the suite, but
        a round each.
        """
        costs, most_s = self.costs.values(), LONG_S
        allowed_s = SHARE * (self.start_cpu_s + sum(cost.round_s for cost in costs))
        while most_s > USUAL_S:
            taken_s = sum(cost.rounds(most_s) * cost.round_s for cost in costs)
            if taken_s <= allowed_s:
                break
            most_s *= 0.8
        return most_s

    @cached_property
    def each_s(self) -> float:
        """Seconds of a benchmark without a pace of its own, from the second pair on."""
        return self.fitting_s(self.kept, self.left_s, self.most_pairs - 1, self.usual_s(self.kept))

    @cached_property
    def given_up(self) -> dict[str, str]:
        """Why benchmarks are too long to be measured with the others, by name."""
        needed = self.minutes_for(list(self.costs))
        why = f"{self.pairs} pairs of processes need --gate-budget {needed}"
        return {
            name: f"{TOO_LONG}; a process takes {self.costs[name].at(0):.1f} s for it, and {why}"
            for name in self.too_long
        }

    def paces(self, effects: Mapping[str, Effect], to_go: int, left_s: float) -> Paces:
        """The pace of each benchmark for the next pair.

        Noisy ones get more.
        """
        noisy = [name for name, each in effects.items() if self._gains_time(name, each)]
        each_s = self.each_s
        more_s = self.fitting_s(list(effects), left_s, to_go, self.usual_s(noisy))
        paces = {"": {"max_time": round(each_s, 4), "min_rounds": ROUNDS}}
        for name, cost in self.costs.items():
            rounds = cost.rounds(LONG_S if name in noisy else self.most_s)
            seconds = max(each_s, rounds * cost.round_s, more_s if name in noisy else 0.0)
            paces[name] = {"max_time": round(seconds, 4), "min_rounds": min(rounds, ROUNDS)}
        return paces

    def _gains_time(self, name: str, effect: Effect) -> bool:
        """True if a benchmark is noisy, so that more time helps."""
        # Fewer pairs than the first look's don't show the noise well enough.
        is_shown = effect.pairs >= self.pairs
        return is_shown and NOISY < effect.noise < math.inf and self.costs[name].gains

    def fitting_s(self, names: Sequence[str], left_s: float, pairs: int, most_s: float) -> float:
        """Seconds per benchmark so that `pairs` pairs fit in `left_s`.

        They lie between LEAST_S and `most_s`.
        """
        allowed_s = left_s / (2 * max(pairs, 1))
        if self.process_s(names, LEAST_S) >= allowed_s:
            return LEAST_S
        if self.process_s(names, most_s) <= allowed_s:
            return most_s
        return float(
            brentq(lambda each_s: self.process_s(names, each_s) - allowed_s, LEAST_S, most_s)
        )

    def usual_s(self, names: Sequence[str]) -> float:
        """Seconds per benchmark so that these together take SHARE of a process's start.

        Less would save little.
        """
        gaining = sum(self.costs[name].gains for name in names)
        return min(max(SHARE * self.start_cpu_s / max(gaining, 1), USUAL_S), MOST_S)

    def process_s(self, names: Sequence[str], each_s: float) -> float:
        """Duration of a process with these benchmarks."""
        return self.overhead_s + sum(self.costs[name].at(each_s, self.most_s) for name in names)

    def fits(self, names: Sequence[str]) -> bool:
        """True if the least number of pairs of these benchmarks fits into the budget."""
        return bool(names) and 2 * self.pairs * self.process_s(names, LEAST_S) <= self.budget_s

    def minutes_for(self, names: Sequence[str]) -> int:
        """The --gate-budget that is enough for the first look, with a reserve of a fifth."""
        return int(1.2 * 2 * self.pairs * self.process_s(names, LEAST_S) / 60) + 1

    def __str__(self) -> str:
        names = self.kept
        if not names:
            return "no benchmark was timed on both sides"
        text = f"{many(len(names), 'benchmark')}, {minutes(self.budget_s)} at most (--gate-budget)"
        if not self.decides:
            return f"{text}: too few pairs to decide anything: drop --gate-replicates"
        if not self.fits(names):
            needed = self.minutes_for(names)
            fewer = f"fewer than {self.pairs} pairs fit into that, and they decide nothing"
            return f"{text}: {fewer}: give --gate-budget {needed}, or fewer benchmarks"
        if self.too_long:
            least_s = min(self.costs[name].at(0) for name in self.too_long)
            text += f"; {len(self.too_long)} that take {least_s:.1f} s or more are left out"
        return text

    @property
    def detail(self) -> str:
        """The pace that follows, for -v."""
        own = sum(not cost.round_s for cost in self.costs.values())
        return (
            f"{self.each_s:.2g} s per benchmark and process ({own} choose their own rounds); "
            f"{self.overhead_s:.1f} s to start a process; "
            f"{self.pairs} pairs until the first decision"
        )


def is_busy(pairs: Collection[tuple[Timed, Timed]]) -> bool:
    """True if most benchmarks ran beside other work on either side of the first pair.

    >>> quiet, busy = Timed(1.0, {}), Timed(1.0, {}, contended="busy")
    >>> is_busy([(quiet, busy), (quiet, quiet)]), is_busy([(quiet, busy)])
    (False, True)
    """
    busy = sum(any(side.contended for side in pair) for pair in pairs)
    return 2 * busy > len(pairs)


def plan_of(
    pair: Pair, after: Mapping[str, Timed], plan: Plan, budget_s: float, left_s: float
) -> PacePlan:
    """The plan that follows from a first pair.

    `after`: the times of each benchmark that both sides have.
    """
    looks, last = plan.looks, len(plan.looks) - 1
    return PacePlan(
        costs={name: cost_of(timed, pair) for name, timed in after.items()},
        # The smaller overhead of the two: a fresh checkout compiles its modules once.
        overhead_s=max(min(map(_overhead_s, pair)), 0.0),
        pairs=looks[0],
        most_pairs=looks[:2][-1] + plan.confirming_pairs,
        budget_s=budget_s,
        left_s=left_s,
        decides=0.5 ** looks[-1] <= max(plan.level(last), plan.miss_level(last)),
        start_cpu_s=min(side.start_cpu_s for side in pair),
    )


def cost_of(timed: Timed, pair: Pair) -> Cost:
    """The cost of a benchmark in a first pair."""
    calls = [side.calls[timed.test] for side in pair if timed.test in side.calls]
    is_fixed = bool(calls and calls[-1]["fixed"])
    call_s = sum(float(call["seconds"]) for call in calls) / max(len(calls), 1)
    return Cost(call_s, 0.0 if is_fixed else timed.time_s)


def _overhead_s(side: Replicate) -> float:
    inside_s = sum(float(call["seconds"]) + float(call["once_s"]) for call in side.calls.values())
    return side.wall_s - inside_s
