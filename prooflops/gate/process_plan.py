"""How long each benchmark runs in a process of a comparison, and how many pairs of processes the budget allows.

Of a process only the fastest round of each benchmark counts, so a second a benchmark, as pytest-benchmark takes it,
buys hardly more than a fiftieth of one; many processes decide. The first pair of processes runs at `FIRST` and shows
what a round takes, and what a process takes besides: the rest is planned from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.optimize import brentq

from prooflops.console.progress import minutes
from prooflops.gate.processes import Replicate
from prooflops.statistics.effects import Effect
from prooflops.statistics.plan import Plan

Paces = Mapping[str, Mapping[str, Any]]  # pytest-benchmark's options by node id; under "" those of every other one
Look = Callable[[Mapping[str, Effect], int], None]  # told what the open benchmarks did, and the pairs to go

LEAST_S, USUAL_S, MOST_S = 0.005, 0.01, 0.2  # of a benchmark and process; USUAL_S where there are many
SHARE = 0.5  # of what a process takes besides
ROUNDS = 3
ENOUGH = 12  # rounds that a benchmark has where they take no more than MOST_S
FIRST: Paces = {"": {"max_time": USUAL_S, "min_rounds": ROUNDS}}
NOISY = 0.02  # standard deviation of a pair's log ratio, from which on a benchmark gets more time
PLAIN = 10  # times as large as that: a change that needs no more than the least time


@dataclass(frozen=True)
class Cost:
    """What a benchmark took in a process at the first pace, and whether another would change it."""

    call_s: float
    paced: bool
    enough_s: float = 0.0  # that ENOUGH rounds take; 0 where its pace is fixed or that is more than MOST_S

    @property
    def gains(self) -> bool:
        """Whether more time is more rounds, and these less noise."""
        return self.paced or self.enough_s > 0

    def at(self, seconds: float) -> float:
        """What it takes of a process in which each benchmark has so many seconds."""
        if self.paced:
            return max(self.call_s - USUAL_S, 0.0) + max(seconds, self.enough_s)
        return self.call_s + (1 - ROUNDS / ENOUGH) * self.enough_s


@dataclass(frozen=True)
class ProcessPlan:
    """What the first pair of processes showed, and what follows from it."""

    costs: Mapping[str, Cost]
    besides_s: float  # of a process: its start, imports, collection
    pairs: int  # the least number that decides anything: the first look
    most_pairs: int  # where a suspicion is confirmed after the second look, which few need
    budget_s: float  # from the beginning of the first pair
    decides: bool = True  # whether so many pairs as --gate-replicates allows can decide anything

    def each_s(self, names: Sequence[str], left_s: float, pairs: int, most_s: float = USUAL_S) -> float:
        """The time of each of these benchmarks with which so many pairs fit into `left_s`."""
        allowed_s = left_s / (2 * max(pairs, 1))
        if self.process_s(names, LEAST_S) >= allowed_s:
            return LEAST_S
        if self.process_s(names, most_s) <= allowed_s:
            return most_s
        return float(brentq(lambda each_s: self.process_s(names, each_s) - allowed_s, LEAST_S, most_s))

    def usual_s(self, names: Sequence[str]) -> float:
        """The time of each of these benchmarks that takes together this SHARE of what a process takes besides.

        Less would save little of a process, and leave the fastest of fewer rounds.
        """
        gaining = sum(self.costs[name].gains for name in names)
        return min(max(SHARE * self.besides_s / max(gaining, 1), USUAL_S), MOST_S)

    def own_s(self, each_s: float, noisy: Sequence[str], more_s: float) -> dict[str, float]:
        """The benchmarks that have a time of their own: for enough rounds, or `more_s` where they are noisy."""
        own = {name: cost.enough_s for name, cost in self.costs.items() if cost.enough_s > each_s}
        gaining = [name for name in noisy if self.costs[name].gains]
        return own | {name: max(each_s, more_s, self.costs[name].enough_s) for name in gaining}

    def process_s(self, names: Sequence[str], each_s: float) -> float:
        """How long a process with these benchmarks takes."""
        return self.besides_s + sum(self.costs[name].at(each_s) for name in names)

    def too_long(self) -> list[str]:
        """The benchmarks without which the others can have the least number of pairs; none where nothing helps."""
        names = sorted(self.costs, key=lambda name: self.costs[name].at(LEAST_S))
        allowed_s = self.budget_s / (2 * self.pairs)
        fitting = len(names)
        while fitting and self.process_s(names[:fitting], LEAST_S) > allowed_s:
            fitting -= 1
        return names[fitting:] if fitting else []

    def fits(self, names: Sequence[str]) -> bool:
        """Whether the least number of pairs of these benchmarks fits into the budget."""
        return bool(names) and 2 * self.pairs * self.process_s(names, LEAST_S) <= self.budget_s

    def sentence(self, each_s: float, too_long: Sequence[str]) -> str:
        """What was chosen, and how long it will take."""
        names = [name for name in self.costs if name not in too_long]
        pair_s = 2 * self.process_s(names, each_s)
        paced = sum(self.costs[name].paced for name in names)
        chosen = f"{each_s:.2g} s a benchmark and process"
        if paced < len(names):
            own = f"{len(names) - paced} by their own rounds"
            chosen = f"{chosen}, {own}" if paced else own
        text = (
            f"{len(names)} benchmarks ({chosen}; {self.besides_s:.1f} s a process besides): about "
            f"{minutes(self.pairs * pair_s)} for {self.pairs} pairs"
        )
        if not self.decides:
            return f"{text}, which decide nothing, whatever they show: leave out --gate-replicates"
        if self.most_pairs > self.pairs:
            text += f", {minutes(min(self.most_pairs * pair_s, self.budget_s))} at most where they must be confirmed"
        if not self.fits(names):
            text += (
                f". No more than {int(self.budget_s / pair_s)} pairs fit into {minutes(self.budget_s)}, and fewer "
                f"than {self.pairs} decide nothing: give --gate-budget {self.minutes_for(names)}, or fewer benchmarks"
            )
        return text

    def minutes_for(self, names: Sequence[str]) -> int:
        """The --gate-budget that is enough for the first look, with a reserve of a fifth."""
        return int(1.2 * 2 * self.pairs * self.process_s(names, LEAST_S) / 60) + 1


def plan_of(
    before: Replicate, after: Replicate, rounds_s: Mapping[str, float], plan: Plan, budget_s: float
) -> ProcessPlan:
    """The plan that follows from a first pair. `rounds_s`: the fastest round of each benchmark that both sides have."""
    calls = [{name: float(call["seconds"]) for name, call in side.calls.items()} for side in (before, after)]
    once_s = [sum(float(call["once_s"]) for call in side.calls.values()) for side in (before, after)]
    # The less of the two: a side that has just been checked out compiles its modules once.
    besides_s = min(
        side.wall_s - sum(each.values()) - once for side, each, once in zip((before, after), calls, once_s, strict=True)
    )
    costs = {}
    for name, round_s in rounds_s.items():
        call_s = sum(side.get(name, 0.0) for side in calls) / max(sum(name in side for side in calls), 1)
        fixed = bool(after.calls.get(name, {}).get("fixed", False))
        enough_s = 0.0 if fixed or ENOUGH * round_s > MOST_S else ENOUGH * round_s
        # Where three rounds take longer than the time, the rounds count.
        costs[name] = Cost(call_s, not fixed and ROUNDS * round_s < USUAL_S, enough_s)
    looks = plan.looks
    most = looks[:2][-1] + plan.confirming_pairs
    last = len(looks) - 1
    decides = 0.5 ** looks[-1] <= max(plan.level(last), plan.miss_level(last))
    return ProcessPlan(costs, max(besides_s, 0.0), looks[0], most, budget_s, decides)


def is_plain(effect: Effect) -> bool:
    """Whether every pair shows a change, and one so far out of the noise that few rounds will do.

    >>> from prooflops.statistics.effects import paired
    >>> [is_plain(paired([1.0] * 3, after, level=0.01)) for after in ([2.0, 2.1, 2.05], [0.5, 0.49, 0.48], [1.0] * 3)]
    [True, True, False]
    """
    return effect.in_every_pair and abs(math.log(effect.ratio)) > PLAIN * effect.noise


def is_noisy(effect: Effect, least_pairs: int) -> bool:
    """Whether more time could decide sooner. What fewer pairs than the first look's say of the noise is no reason."""
    return effect.pairs >= least_pairs and NOISY < effect.noise < math.inf and not is_plain(effect)


def paces(usual_s: float, own_s: Mapping[str, float]) -> Paces:
    """For the processes: pytest-benchmark's options of each benchmark that has a time of its own, and of all others."""
    return {
        name: {"max_time": round(each_s, 4), "min_rounds": ROUNDS} for name, each_s in {"": usual_s, **own_s}.items()
    }
