"""How long each benchmark runs in a process of a comparison, and how many pairs of processes the budget allows.

Only the fastest round of each benchmark in a process counts, so a second per benchmark, as pytest-benchmark takes it,
says hardly more than a fiftieth of one; many processes decide. The first pair runs at `FIRST` and shows the duration of
a round, and the overhead of a process: its start, imports and collection. From these the rest is planned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scipy.optimize import brentq

from prooflops_gate.child.repeats import FEWEST, runs_in
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.process import Paces, Replicate
from prooflops_gate.statistics.decision_rule import Plan
from prooflops_gate.statistics.effects import Effect

LEAST_S, USUAL_S, MOST_S = (
    0.005,
    0.01,
    0.2,
)  # seconds of a benchmark in a process; USUAL_S where there are many
SHARE = (
    0.5  # of a process's start, and of a plain run of the suite, that its rounds may take together
)
ROUNDS = 3
LONG_S = 0.1  # of a benchmark's rounds: one that takes longer runs once in a process, as more pairs say more
ENOUGH = 12  # rounds of a benchmark, where they take no more than that
FIRST: Paces = {"": {"max_time": USUAL_S, "min_rounds": ROUNDS}}
NOISY = 0.02  # standard deviation of a pair's log ratio, from which on a benchmark gets more time
PLAIN = 10  # times as large as that: a change that needs no more than the least time


@dataclass(frozen=True)
class Cost:
    """Seconds of a benchmark in a process at the first pace, and what another pace would change."""

    call_s: float
    round_s: float = 0.0  # the fastest; 0 where its pace is fixed
    again_s: float = 0.0  # duration of its whole test, where its few rounds are so short that this is run again; else 0

    @property
    def gains(self) -> bool:
        """Whether more time means more rounds, and so less noise."""
        return self.again_s > 0 or 0 < self.round_s < LONG_S

    def rounds(self, most_s: float) -> int:
        """The rounds of a process that take so long: ENOUGH at most, and at least one."""
        return max(min(int(most_s / self.round_s), ENOUGH), 1) if self.round_s else ENOUGH

    def at(self, seconds: float, most_s: float = LONG_S) -> float:
        """Seconds this benchmark adds to a process if each gets `seconds`, or up to `most_s` for its rounds."""
        if (
            0 < ROUNDS * self.round_s < USUAL_S
        ):  # where three rounds take longer than the time, the rounds count
            return max(self.call_s - USUAL_S, 0.0) + max(
                seconds, self.rounds(most_s) * self.round_s
            )
        if not self.round_s:
            return self.again_s * runs_in(seconds, self.again_s) if self.again_s else self.call_s
        # pytest-benchmark calls it twice besides: to calibrate, and for its result.
        return (
            self.call_s * (max(self.rounds(most_s), int(seconds / self.round_s)) + 2) / (ROUNDS + 2)
        )


@dataclass(frozen=True)
class PacePlan:
    """The seconds of each benchmark and the number of pairs that follow from a first pair."""

    costs: Mapping[str, Cost]
    overhead_s: float  # of a process
    pairs: int  # the least number that decides anything: the first look
    most_pairs: int  # where the second look is confirmed; few need more
    budget_s: float  # from the beginning of the first pair
    left_s: float  # of that, after the first pair
    decides: bool = True  # whether the pairs that --gate-replicates allows can decide anything
    start_cpu_s: float = (
        0.0  # CPU time of a process but for its benchmarks: it does not wait for a core
    )

    def later(self, spent_s: float) -> PacePlan:
        """The same plan where something else has spent this time."""
        return replace(self, budget_s=self.budget_s - spent_s, left_s=self.left_s - spent_s)

    @cached_property
    def too_long(self) -> list[str]:
        """The benchmarks without which the others can have the least number of pairs; none where nothing helps."""
        names = sorted(self.costs, key=lambda name: self.costs[name].at(LEAST_S))
        fitting = next((count for count in range(len(names), 0, -1) if self.fits(names[:count])), 0)
        return names[fitting:] if fitting else []

    @cached_property
    def kept(self) -> list[str]:
        return [name for name in self.costs if name not in self.too_long]

    @cached_property
    def most_s(self) -> float:
        """Seconds of a benchmark's rounds, so that all take SHARE of a plain run of the suite, but a round each."""
        costs, most_s = self.costs.values(), LONG_S
        allowed_s = SHARE * (self.start_cpu_s + sum(cost.round_s for cost in costs))
        while (
            most_s > USUAL_S
            and sum(cost.rounds(most_s) * cost.round_s for cost in costs) > allowed_s
        ):
            most_s *= 0.8
        return most_s

    @cached_property
    def each_s(self) -> float:
        """Seconds of a benchmark without a pace of its own, from the second pair on."""
        return self.fitting_s(self.kept, self.left_s, self.most_pairs - 1, self.usual_s(self.kept))

    @property
    def repeated(self) -> dict[str, float]:
        """Seconds of each test that is run several times in a process."""
        return {name: cost.again_s for name, cost in self.costs.items() if cost.again_s}

    def given_up(self) -> dict[str, str]:
        """The benchmarks that are too long to be taken with the others, and why."""
        needed = self.minutes_for(list(self.costs))
        why = f"{self.pairs} pairs do not fit into the budget: --gate-budget {needed}"
        return {
            name: f"a process takes {self.costs[name].at(0):.1f} s for it, and {why}"
            for name in self.too_long
        }

    def fitting_alone(self, left_s: float) -> list[str]:
        """The benchmarks that were too long, of which the least number of pairs fits into the time the others left."""
        own = replace(
            self,
            costs={name: self.costs[name] for name in self.too_long},
            budget_s=left_s,
            left_s=left_s,
        )
        return own.kept if own.fits(own.kept) else []

    def paces(self, effects: Mapping[str, Effect], to_go: int, left_s: float) -> Paces:
        """The pace of each benchmark for the next pair: more for noisy ones, the least for plain changes."""
        # Fewer pairs than the first look's don't show the noise well enough.
        shown = {
            name: each
            for name, each in effects.items()
            if each.pairs >= self.pairs and not is_plain(each)
        }
        noisy = [
            name
            for name, each in shown.items()
            if NOISY < each.noise < math.inf and self.costs[name].gains
        ]
        each_s = self.each_s
        more_s = self.fitting_s(list(effects), left_s, to_go, self.usual_s(noisy))
        paces = {"": {"max_time": round(each_s, 4), "min_rounds": ROUNDS}}
        for name, cost in self.costs.items():
            rounds = cost.rounds(LONG_S if name in noisy else self.most_s)
            seconds = max(each_s, rounds * cost.round_s, more_s if name in noisy else 0.0)
            if name in effects and is_plain(effects[name]):
                seconds = LEAST_S
            paces[name] = {"max_time": round(seconds, 4), "min_rounds": min(rounds, ROUNDS)}
        return paces

    def fitting_s(self, names: Sequence[str], left_s: float, pairs: int, most_s: float) -> float:
        """Seconds per benchmark so that `pairs` pairs fit in `left_s`, between LEAST_S and `most_s`."""
        allowed_s = left_s / (2 * max(pairs, 1))
        if self.process_s(names, LEAST_S) >= allowed_s:
            return LEAST_S
        if self.process_s(names, most_s) <= allowed_s:
            return most_s
        return float(
            brentq(lambda each_s: self.process_s(names, each_s) - allowed_s, LEAST_S, most_s)
        )

    def usual_s(self, names: Sequence[str]) -> float:
        """Seconds per benchmark so that these together take SHARE of a process's start: less would save little."""
        gaining = sum(self.costs[name].gains for name in names)
        return min(max(SHARE * self.start_cpu_s / max(gaining, 1), USUAL_S), MOST_S)

    def process_s(self, names: Sequence[str], each_s: float) -> float:
        """Duration of a process with these benchmarks."""
        return self.overhead_s + sum(self.costs[name].at(each_s, self.most_s) for name in names)

    def fits(self, names: Sequence[str]) -> bool:
        """Whether the least number of pairs of these benchmarks fits into the budget."""
        return bool(names) and 2 * self.pairs * self.process_s(names, LEAST_S) <= self.budget_s

    def minutes_for(self, names: Sequence[str]) -> int:
        """The --gate-budget that is enough for the first look, with a reserve of a fifth."""
        return int(1.2 * 2 * self.pairs * self.process_s(names, LEAST_S) / 60) + 1

    def __str__(self) -> str:
        names, process_s = self.kept, self.process_s(self.kept, self.each_s)
        pair_s = 2 * process_s
        if not names:
            return "no benchmark was timed on both sides"
        text = f"{many(len(names), 'benchmark')} in {minutes(process_s)} a process"
        text += f": about {minutes(self.pairs * pair_s)} until the first decision"
        if not self.decides:
            return f"{text}, which decide nothing, whatever they show: leave out --gate-replicates"
        if not self.fits(names):
            text += f". At most {many(int(self.budget_s / pair_s), 'pair')} in {minutes(self.budget_s)}, and fewer "
            text += (
                f"than {self.pairs} decide nothing: give --gate-budget {self.minutes_for(names)}"
            )
            return f"{text}, or fewer benchmarks"
        text += f", {minutes(self.budget_s)} at most (--gate-budget)"
        if self.too_long:
            least_s = min(self.costs[name].at(0) for name in self.too_long)
            text += f"; {len(self.too_long)} that take {least_s:.1f} s or more get the time that is left then"
        return text

    @property
    def detail(self) -> str:
        """The pace that follows, for -v."""
        own = sum(not cost.round_s for cost in self.costs.values())
        return (
            f"{self.each_s:.2g} s for a benchmark in a process, {own} by their own rounds; {self.overhead_s:.1f} s for "
            f"the start of a process; {self.pairs} pairs until the first decision"
        )


def plan_of(
    before: Replicate,
    after: Replicate,
    rounds_s: Mapping[str, float],
    plan: Plan,
    budget_s: float,
    left_s: float,
) -> PacePlan:
    """The plan that follows from a first pair. `rounds_s`: the fastest round of each benchmark that both sides have."""
    # The smaller overhead of the two: a fresh checkout compiles its modules once.
    overhead_s = min(
        side.wall_s
        - sum(float(call["seconds"]) + float(call["once_s"]) for call in side.calls.values())
        for side in (before, after)
    )
    costs = {}
    for name, round_s in rounds_s.items():
        both = [side.calls[name] for side in (before, after) if name in side.calls]
        fixed = bool(both and both[-1]["fixed"])
        call_s = sum(float(call["seconds"]) for call in both) / max(len(both), 1)
        test_s = min((float(call["test_s"]) for call in both), default=math.inf)
        is_short = fixed and call_s < USUAL_S and FEWEST * test_s < MOST_S
        costs[name] = Cost(call_s, 0.0 if fixed else round_s, test_s if is_short else 0.0)
    looks, last = plan.looks, len(plan.looks) - 1
    most = looks[:2][-1] + plan.confirming_pairs
    decides = 0.5 ** looks[-1] <= max(plan.level(last), plan.miss_level(last))
    start_cpu_s = min(before.start_cpu_s, after.start_cpu_s)
    return PacePlan(
        costs, max(overhead_s, 0.0), looks[0], most, budget_s, left_s, decides, start_cpu_s
    )


def is_plain(effect: Effect) -> bool:
    """Whether every pair shows a change, so far out of the noise that few rounds will do.

    >>> from prooflops_gate.statistics.effects import paired
    >>> [is_plain(paired([1.0] * 3, after, level=0.01)) for after in ([2.0, 2.1, 2.05], [0.5, 0.49, 0.48], [1.0] * 3)]
    [True, True, False]
    """
    return effect.in_every_pair and abs(math.log(effect.ratio)) > PLAIN * effect.noise
