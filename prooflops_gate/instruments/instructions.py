"""Instructions: counts those of both sides' benchmarks, in pairs of processes under valgrind."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

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
from prooflops_gate.machine import limits
from prooflops_gate.task import Counting, Pair, ReplicateFailed, Task

# Times as long as without valgrind: start and imports, which are not instrumented, and a
# benchmark's calls, three of four of them so.
START_FACTOR, CALLS_FACTOR, START_S = 10, 150, 1.5
# The next pairs may take this share longer than the first.
RESERVE = 0.1
BLIND = (
    "instruction counts do not show waiting, sockets, threads, GPUs, vector width or memory layout"
)


@dataclass(frozen=True)
class Batch:
    """Benchmarks that processes count together, the shortest first, and the pairs they have."""

    names: Sequence[str]
    pairs: int = 0

    @property
    def is_at_look(self) -> bool:
        return self.pairs in (0, *LOOKS)

    @property
    def missing(self) -> int:
        """The pairs up to its next look."""
        return min(look - self.pairs for look in LOOKS if look > self.pairs)


class Instructions:
    """The instructions of benchmarks, in batches: the shortest first, and each up to its last look.

    `round_s` is the fastest round of each that may be counted, `limit` the smallest change that
    counts. A batch or look begins where it is expected to end by `ends` on the monotonic clock.
    Nothing runs under valgrind that loads one of the accelerators' `drivers`. `features` is a note
    on other kernels that run there.
    """

    def __init__(
        self,
        round_s: Mapping[str, float],
        limit: float,
        start_cpu_s: float,
        drivers: Collection[str] = (),
        features: str = "",
    ) -> None:
        self.slower: Collection[str] = ()
        self.features, self.drivers = features, drivers
        self.limit, self.ends = limit, -math.inf
        self.at_once = limits.usable_cores() > 1
        self.costs_s = {name: CALLS_FACTOR * each_s for name, each_s in round_s.items()}
        self.start_s = START_S + START_FACTOR * start_cpu_s
        self.found: dict[str, Count] = {}
        self.why_not = ""
        self.pairs = 0
        # The duration of a pair over its expected duration.
        self._slowness = 1.0
        self.asked: set[str] = set()
        self.batch = Batch(())
        self.waiting: list[Batch] = []
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
        new.sort(key=lambda name: self.costs_s[name])
        self.asked |= set(new)
        self.slower, self.ends = slower, ends
        if self.why_not or not self.asked:
            return
        if self.drivers:
            self.fail_for(f"the benchmarks load {', '.join(self.drivers)}")
            return
        if new:
            self.waiting.append(Batch(new))
        self._choose(ends - began)
        if not self.batch.names and not self.pairs:
            self.fail_for(f"a pair may take {minutes(self.pair_s([]))} under valgrind")

    def _choose(self, left_s: float) -> None:
        """Goes on with the first batch that in part reaches its next look in this time."""
        if self.batch.names:
            self.waiting.insert(0, self.batch)
        self.batch = Batch(())
        for place, batch in enumerate(self.waiting):
            fitting = list(batch.names)
            while fitting and batch.missing * self.pair_s(fitting) > left_s:
                fitting.pop()
            if fitting:
                rest = replace(batch, names=batch.names[len(fitting) :])
                self.batch = replace(batch, names=fitting)
                self.waiting[place : place + 1] = [rest] if rest.names else []
                return

    def pair_s(self, names: Collection[str]) -> float:
        """The expected duration of a pair with these benchmarks."""
        process_s = self.start_s + sum(self.costs_s[name] for name in names)
        return self._slowness * (process_s if self.at_once else 2 * process_s)

    def next_task(self, now: float) -> Task | None:
        if self.pairs and self.batch.is_at_look:
            self._choose(self.ends - now)
        names = tuple(self.batch.names)
        if not names:
            return None
        until, needs_s = math.inf, self.pair_s(names)
        if self.batch.pairs == 0:
            # The first pair counts only the benchmarks for which the next ones have time.
            until = now + (1 - RESERVE) * (self.ends - now) / LOOKS[0]
            needs_s = 0.0
        return Task(tests=names, counting=Counting(until), ends=self.ends, needs_s=needs_s)

    @property
    def stage(self) -> object:
        is_planned = self.batch.is_at_look or self.pairs == 1
        return (self.pairs, *self.batch.names) if is_planned else None

    def progress(self) -> str:
        benchmarks = many(len(self.batch.names), "benchmark")
        pairs = f"{many(self.batch.missing, 'pair')} under valgrind"
        # The first pair shows how long one takes.
        expected_s = self.batch.missing * self.pair_s(self.batch.names)
        about = f", about {minutes(expected_s)}" if self.pairs else ""
        return f"instructions of {benchmarks}: {pairs}{about}"

    def measure(self, measured: Measured, took_s: float) -> None:
        before, after = (side.counts or {} for side in measured.pair)
        counted = [name for name in self.batch.names if name in before and name in after]
        if counted:
            self._slowness *= took_s / self.pair_s(counted)
        cut = [name for name in self.batch.names if name not in counted]
        if self.batch.pairs == 0 and cut:
            self.waiting.insert(0, Batch(cut))
        if not counted:
            # A pair that begins now would fail under valgrind, or has no time.
            self.waiting = [batch for batch in self.waiting if batch.pairs]
        self.pairs += 1
        for name in counted:
            old, new = self._taken.setdefault(name, ([], []))
            old.append(max(before[name], 1))
            new.append(max(after[name], 1))
            # A verdict of the end of an earlier time is for now.
            self.found.pop(name, None)
            self._decide(name)
        pairs = self.batch.pairs + 1
        ended = self.slower if pairs == LOOKS[0] else ()
        still_open = [name for name in counted if name not in self.found and name not in ended]
        self.batch = Batch(still_open, pairs)

    def fail(self, failed: ReplicateFailed) -> None:
        """Ends the counting, as a process failed under valgrind."""
        self.fail_for(str(failed).splitlines()[-1])

    def fail_for(self, reason: str) -> None:
        self.why_not = reason
        self.batch, self.waiting = Batch(()), []

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
            had = f"time for {many(self.pairs, 'pair')}"
            notes.append(f"{many(left, 'benchmark')} left open by instructions: {had}")
        if not self.asked:
            return Decided(rows, tuple(notes))
        unsteady = sum(count.verdict == UNSTEADY for count in self.found.values())
        detail = (
            f"instructions of {len(self.found)} of {len(self.asked)} benchmarks: "
            f"{tally(self.found.values())}, {unsteady} do not repeat; time alone decides "
            f"{len(self.asked) - len(self.found)} without a count; {self.pairs} pairs"
        )
        blind = filter(None, [BLIND, self.features]) if self.found else ()
        return Decided(rows, tuple(notes), (detail, *blind))


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
        by_features(measured.pair),
    )


def apart(task: Task, now: float) -> tuple[Task, Task]:
    """The tasks of two processes that count one after the other: each gets half of the time."""
    assert task.counting
    halfway = (now + task.counting.until) / 2
    first = replace(task, counting=replace(task.counting, until=halfway))
    return first, task


def by_features(pair: Pair) -> str:
    """Names the packages loaded by these processes that run other kernels under valgrind.

    Empty where none does.
    """
    names = {name for side in pair for name in side.footprint.get("by_features", ())}
    if not names:
        return ""
    loaded = " and ".join(sorted(names))
    return f"{loaded} may run other kernels under valgrind, by the processor's features"
