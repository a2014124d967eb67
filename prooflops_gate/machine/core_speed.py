"""Tells if the cores that a benchmark uses run at their full speed now.

A core of a virtual machine often shares its silicon with another guest. For milliseconds to seconds
it then runs at half its speed. Neither the load nor the time stolen shows that. A short piece of
fixed work does, and another core is often fast meanwhile. Standard library only: it is copied
beside the gate's processes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from prooflops_gate.machine.contention import involuntary_switches
from prooflops_gate.unpatched import os, time

# The fixed work: a table's byte for each of these, in C and within the core's own caches, some 10
# µs. A loop of Python would not do: while other work ran at full speed on AMD's Zen 4, an empty one
# took 1.04 to 1.25 times as long as its fastest. It was slow by the bound below in 79 of 100 such
# moments, this work in 3.
BYTES, TABLE = bytes(range(256)) * 64, bytes(reversed(range(256)))
# Work that takes this much longer than its fastest is slow. At full speed 99 of 100 are within
# 1.05; on a core whose twin is busy it takes 1.5 to 2 times as long.
SLOW = 1.15
# Between two looks while a benchmark runs: 2 % of its time.
EVERY_S = 0.002
# Stretches at full speed: 10 ms of rounds (only the fastest counts), or five long rounds.
ENOUGH = 5
# The default total time that a process waits for full speed.
PATIENCE_S = 1.0
# Cores that a stretch keeps busy: from here on threads that wait for the slowest of them.
SEVERAL = 1.2
# Sampling a core takes some 60 µs, and among many cores one is slow at any time, or far away.
MOST_CORES = 8


class CoreSpeed:
    """Looks for full speed before a benchmark and between its rounds.

    On another core, where that is slow, or later. Keeps how fast a benchmark's best stretch was.

    `fastest_s`: of the work, as far as earlier processes know it. It falls as faster ones are seen.
    `patience_s`: that the whole process waits at most, `waited_s`: that it has. `was_fast`: whether
    the core ever ran at full speed. `sees_others`: whether it looks at the other cores that a
    benchmark uses, which preempts their threads.
    """

    def __init__(
        self,
        fastest_s: float = math.inf,
        patience_s: float = PATIENCE_S,
        *,
        sees_others: bool = True,
    ) -> None:
        self.fastest_s, self.was_fast = fastest_s, False
        self.sees_others = sees_others
        self.patience_s, self.waited_s = patience_s, 0.0
        # Made when a benchmark first uses several.
        self._others: OtherCores | None = None
        self._moves = 0
        # The number of times that sampling them has preempted threads of this process.
        self.own_switches = 0
        self.begin()

    def begin(self) -> None:
        """A new benchmark."""
        # The slower work of those before and after the fastest stretch.
        self.stretch_s = math.inf
        # The slowest work that was seen.
        self.slowest_s = 0.0
        self._fast_stretches = 0
        self._last_s, self._looked_at = math.inf, -math.inf
        # Looked at beside this one, as this benchmark uses several.
        self._cores, self._cpu_s = (
            0,
            time.process_time(),
        )

    def look(self, *, last: bool = False) -> None:
        """Before a round, and `last` after all.

        Ends the stretch since the look before, and waits where that is slow and there are not
        ENOUGH fast ones yet.
        """
        now = time.perf_counter()
        if now - self._looked_at < EVERY_S * (1 + self._cores) and not last:
            return
        cpu_s = time.process_time() - self._cpu_s
        if self.sees_others and cpu_s > SEVERAL * (now - self._looked_at):
            self._others = self._others or OtherCores()
            self._cores = len(self._others)
        work_s = self._work()
        stretch_s = max(self._last_s, work_s)
        self.stretch_s = min(self.stretch_s, stretch_s)
        self._fast_stretches += stretch_s <= SLOW * self.fastest_s
        if not last and self._fast_stretches < ENOUGH:
            work_s = self._wait(work_s)
        self.slowest_s = max(self.slowest_s, work_s)
        self._last_s = work_s
        self._looked_at, self._cpu_s = time.perf_counter(), time.process_time()

    def _wait(self, work_s: float) -> float:
        """Works until it is fast, on one core after another, or the patience has come to an end."""
        began = now = time.perf_counter()
        while work_s > SLOW * self.fastest_s and self.waited_s + now - began < self.patience_s:
            # Several are used: no other is free.
            if not self._cores:
                self._moves += 1
                move(self._moves)
            work_s, now = self._work(), time.perf_counter()
        self.waited_s += now - began
        return work_s

    def _work(self) -> float:
        """The faster of two: an interrupt does not hit both.

        Where another core that is used is slower, as long as this one would take at its speed.
        """
        work_s = min(_timed_work(time.perf_counter), _timed_work(time.perf_counter))
        self.fastest_s = min(self.fastest_s, work_s)
        if self._others and self._cores:
            before = involuntary_switches()
            work_s = max(work_s, self._others.slowness() * self.fastest_s)
            self.own_switches += involuntary_switches() - before
        self.was_fast |= work_s <= SLOW * self.fastest_s
        return work_s


def few_cores() -> list[int]:
    """The cores that this thread may use.

    None where the system has no affinities, or there are too many cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores if len(cores) <= MOST_CORES else []


def move(turn: int) -> None:
    """Moves this thread to one of its few cores, the next one with each turn.

    It may use them all again at once: the system moves no thread that runs without a reason, such
    as other work there.
    """
    cores = few_cores()
    if len(cores) > 1:
        # Refused: it stays.
        with suppress(OSError):
            os.sched_setaffinity(0, {cores[turn % len(cores)]})
            os.sched_setaffinity(0, cores)


class OtherCores:
    """The few cores that this process may use, each looked at by a thread of its own."""

    def __init__(self) -> None:
        self._fastest_s = dict.fromkeys(few_cores(), math.inf)
        self._asked = {core: SimpleQueue[None]() for core in self._fastest_s}
        self._answers = SimpleQueue[tuple[int, float]]()
        for core in self._asked:
            threading.Thread(target=self._answer, args=(core,), daemon=True).start()

    def __len__(self) -> int:
        return len(self._asked)

    def slowness(self) -> float:
        """The largest ratio of a core's time to its fastest in this process."""
        for asked in self._asked.values():
            asked.put(None)
        slowest = 1.0
        for _ in self._asked:
            core, work_s = self._answers.get()
            self._fastest_s[core] = min(self._fastest_s[core], work_s)
            slowest = max(slowest, work_s / self._fastest_s[core])
        return slowest

    def _answer(self, core: int) -> None:
        # If the core cannot be chosen, some core is sampled.
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
        while True:
            self._asked[core].get()
            # The thread's own CPU time, as the benchmark's threads may still wait there. In virtual
            # machines that clock is far too low at times: the median, as the fastest counts from
            # then on.
            self._answers.put((core, sorted(_timed_work(time.thread_time) for _ in range(3))[1]))


def _timed_work(clock: Callable[[], float]) -> float:
    began = clock()
    BYTES.translate(TABLE)
    return clock() - began


def slow_core(stretch_s: float | None, fastest_s: float) -> str:
    """In words, where even the fastest stretch of a benchmark was slow.

    Empty where it was not, or nothing is known.

    >>> slow_core(20e-6, 10e-6)
    'this core ran at 50% of its speed'
    >>> slow_core(10.2e-6, 10e-6), slow_core(None, 10e-6)
    ('', '')
    """
    if stretch_s is None or not SLOW * fastest_s < stretch_s < math.inf:
        return ""
    return f"this core ran at {fastest_s / stretch_s:.0%} of its speed"


def with_core_speed(
    contention: Mapping[str, Any], stretch_s: float | None, fastest_s: float
) -> dict[str, Any]:
    """The contention of a benchmark, and whether even its fastest stretch was slow.

    >>> with_core_speed({"contended": False, "why": ""}, 20e-6, 10e-6)
    {'contended': True, 'why': 'this core ran at 50% of its speed', 'slowness': 2.0}
    >>> with_core_speed({"contended": True, "why": "load"}, 10e-6, 10e-6)
    {'contended': True, 'why': 'load'}
    """
    why = slow_core(stretch_s, fastest_s)
    if stretch_s is None or not why:
        return {**contention}
    signs = "; ".join(filter(None, [contention.get("why"), why]))
    return {**contention, "contended": True, "why": signs, "slowness": stretch_s / fastest_s}
