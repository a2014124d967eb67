"""Instructions: counts those of both sides' benchmarks, in pairs of processes under valgrind."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.instruments import Decided, Measured
from prooflops_gate.instruments.counts import (
    LOOKS,
    UNSTEADY,
    Count,
    count_row,
    decide,
    level_of,
    tally,
)
from prooflops_gate.task import Counting, ReplicateFailed, Task

# Times as long as without valgrind: start and imports, which are not instrumented, and a
# benchmark's calls, three of four of them so.
START_FACTOR, CALLS_FACTOR, START_S = 10, 150, 1.5
# The next pairs may take this share longer than the first.
RESERVE = 0.1
BLIND = (
    "instruction counts do not show waiting, sockets, threads, GPUs, vector width or memory layout"
)


def missing(pairs: int) -> int:
    """The pairs up to the next look."""
    return min(look - pairs for look in LOOKS if look > pairs)


class Instructions:
    """The instructions of benchmarks: the shortest first, and each up to its last look.

    `round_s` is the fastest round of each that may be counted, `limit` the smallest change that
    counts. A look begins where it is expected to end by `ends` on the monotonic clock.
    Nothing runs under valgrind that loads one of the accelerators' `drivers`.
    """

    def __init__(
        self,
        round_s: Mapping[str, float],
        limit: float,
        start_cpu_s: float,
        drivers: Collection[str] = (),
    ) -> None:
        self.slower: Collection[str] = ()
        self.drivers = drivers
        self.limit, self.ends = limit, -math.inf
        self.costs_s = {name: CALLS_FACTOR * each_s for name, each_s in round_s.items()}
        self.start_s = START_S + START_FACTOR * start_cpu_s
        self.found: dict[str, Count] = {}
        self.why_not = ""
        self.pairs = 0
        # The duration of a pair over its expected duration.
        self._slowness = 1.0
        self.asked: set[str] = set()
        # The pairs of each benchmark that is open, and those benchmarks that are counted now.
        self.open: dict[str, int] = {}
        self.names: list[str] = []
        self.level = level_of(len(round_s))
        self._taken: dict[str, tuple[list[int], list[int]]] = {}

    def go_on(
        self, names: Collection[str], slower: Collection[str], began: float, ends: float
    ) -> None:
        """Counts these, too, until `ends`.

        Those `slower` by time are counted up to the first look, which says whether they take as
        many instructions.
        """
        new = [name for name in self.costs_s if name in names and name not in self.asked]
        self.asked |= set(new)
        self.slower, self.ends = slower, ends
        if self.why_not or not self.asked:
            return
        if self.drivers:
            self.fail_for(f"the benchmarks load {', '.join(self.drivers)}")
            return
        self.open |= dict.fromkeys(new, 0)
        self._choose(ends - began)
        if not self.names and not self.pairs:
            shortest = min(self.open, key=self.costs_s.__getitem__)
            self.fail_for(f"a pair may take {minutes(self.pair_s([shortest]))} under valgrind")

    def _choose(self, left_s: float) -> None:
        """Chooses the benchmarks with the most pairs whose next look fits into `left_s`."""
        for pairs in sorted(set(self.open.values()), reverse=True):
            self.names = [name for name, each in self.open.items() if each == pairs]
            self.names.sort(key=lambda name: self.costs_s[name])
            while self.names and missing(pairs) * self.pair_s(self.names) > left_s:
                self.names.pop()
            if self.names:
                return

    @property
    def _pairs(self) -> int:
        """The number of pairs of each benchmark that is counted now."""
        return self.open[self.names[0]] if self.names else 0

    @property
    def _is_at_look(self) -> bool:
        return self._pairs in (0, *LOOKS)

    def pair_s(self, names: Collection[str]) -> float:
        """The expected duration of a pair with these benchmarks."""
        process_s = self.start_s + sum(self.costs_s[name] for name in names)
        return self._slowness * process_s

    def next_task(self, now: float) -> Task | None:
        if self.pairs and self._is_at_look:
            self._choose(self.ends - now)
        if not self.names:
            return None
        until, needs_s = math.inf, self.pair_s(self.names)
        if self._pairs == 0:
            # The first pair counts only the benchmarks for which the next ones have time.
            until = now + (1 - RESERVE) * (self.ends - now) / LOOKS[0]
            needs_s = 0.0
        counting = Counting(until)
        return Task(tuple(self.names), counting=counting, ends=self.ends, needs_s=needs_s)

    @property
    def stage(self) -> object:
        is_planned = self._is_at_look or self.pairs == 1
        return (self.pairs, *self.names) if is_planned else None

    def progress(self) -> str:
        benchmarks, to_go = many(len(self.names), "benchmark"), missing(self._pairs)
        pairs = f"{many(to_go, 'pair')} under valgrind"
        # The first pair shows how long one takes.
        expected_s = to_go * self.pair_s(self.names)
        about = f", about {minutes(expected_s)}" if self.pairs else ""
        return f"instructions of {benchmarks}: {pairs}{about}"

    def measure(self, measured: Measured, took_s: float) -> None:
        before, after = (side.counts or {} for side in measured.pair)
        counted = [name for name in self.names if name in before and name in after]
        pairs = self._pairs + 1
        lost = set(self.names).difference(counted) if pairs > 1 else set()
        if counted:
            self._slowness *= took_s / self.pair_s(counted)
        else:
            # A pair that begins now would fail under valgrind, or has no time.
            lost |= {name for name, each in self.open.items() if not each}
        for name in lost:
            del self.open[name]
        self.pairs += 1
        for name in counted:
            old, new = self._taken.setdefault(name, ([], []))
            old.append(max(before[name], 1))
            new.append(max(after[name], 1))
            # A verdict of the end of an earlier time is for now.
            self.found.pop(name, None)
            self._decide(name)
            ended = pairs == LOOKS[0] and name in self.slower
            self.open[name] = pairs
            if ended or name in self.found:
                del self.open[name]
        self.names = [name for name in counted if name in self.open]

    def fail(self, failed: ReplicateFailed) -> None:
        """Ends the counting, as a process failed under valgrind."""
        self.fail_for(str(failed).splitlines()[-1])

    def fail_for(self, reason: str) -> None:
        self.why_not = reason
        self.open, self.names = {}, []

    def _decide(self, name: str, *, ended: bool = False) -> None:
        count = decide(*self._taken[name], self.limit, self.level, ended=ended)
        if count is not None:
            self.found[name] = count

    def decide(self) -> Decided:
        for name in self._taken:
            if name not in self.found:
                # The end of the time left it open.
                self._decide(name, ended=True)
        rows = tuple(count_row(name, count) for name, count in self.found.items())
        notes = []
        if self.why_not:
            notes.append(f"instructions are not counted: {self.why_not}")
        left = sum(name not in self.found for name in self._taken)
        if left:
            had = f"there was time for {many(self.pairs, 'pair')}"
            notes.append(f"instructions leave {many(left, 'benchmark')} undecided: {had}")
        if not self.asked:
            return Decided(rows, tuple(notes))
        unsteady = sum(count.verdict == UNSTEADY for count in self.found.values())
        detail = (
            f"instructions of {len(self.found)} of {len(self.asked)} benchmarks: "
            f"{tally(self.found.values())}, {unsteady} do not repeat; time alone decides "
            f"{len(self.asked) - len(self.found)} without a count; {self.pairs} pairs"
        )
        details = (detail, BLIND) if self.found else (detail,)
        return Decided(rows, tuple(notes), details)


def instructions_of(
    measured: Measured,
    limit: float,
    start_cpu_s: float,
) -> Instructions:
    """The instructions of what a pair measured."""
    drivers = {side.footprint["driver"] for side in measured.pair if side.footprint.get("driver")}
    return Instructions(
        {name: pair[1].time_s for name, pair in measured.pairs.items()},
        limit,
        start_cpu_s,
        sorted(drivers),
    )


def apart(task: Task, now: float) -> tuple[Task, Task]:
    """The tasks of two processes that count one after the other: each gets half of the time."""
    assert task.counting
    halfway = (now + task.counting.until) / 2
    first = replace(task, counting=replace(task.counting, until=halfway))
    return first, task
