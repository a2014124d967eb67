"""Whether this core runs at its full speed now.

A core of a virtual machine often shares its silicon with another guest: for milliseconds to seconds it then runs at
half its speed, which neither the load nor the time stolen shows. A short piece of fixed work does. Standard library
only: it is copied beside the gate's processes.
"""

from __future__ import annotations

import math
from time import perf_counter

# The fixed work: a table's byte for each of these, in C and within the core's own caches, some 10 µs. Not a loop of
# Python: on AMD's Zen 4 an empty one took 1.04 to 1.25 times as long as its fastest while other work ran at full speed,
# from process to process and moment to moment, and was slow by the bound below in 79 of 100 such moments; this in 3.
BYTES, TABLE = bytes(range(256)) * 64, bytes(reversed(range(256)))
# Work that takes this much longer than its fastest is slow. At full speed 99 of 100 are within 1.05; on a core whose
# twin is busy it takes 1.5 to 2 times as long.
SLOW = 1.15
EVERY_S = 0.002  # between two looks while a benchmark runs: 2 % of its time
ENOUGH = 5  # stretches at full speed: 10 ms of rounds, of which only the fastest counts, or five long rounds
PATIENCE_S = 1.0  # that a process waits for full speed in all, where it is not told


class CoreSpeed:
    """Waits for full speed before a benchmark and between its rounds, and keeps how fast its best stretch was.

    `fastest_s`: of the work, as far as earlier processes know it. It falls as faster ones are seen. `patience_s`: that
    the whole process waits at most, `waited_s`: that it has. `was_fast`: whether the core ever ran at full speed.
    """

    def __init__(self, fastest_s: float = math.inf, patience_s: float = PATIENCE_S) -> None:
        self.fastest_s, self.was_fast = fastest_s, False
        self.patience_s, self.waited_s = patience_s, 0.0
        self.begin()

    def begin(self) -> None:
        """A new benchmark."""
        self.stretch_s = math.inf  # the slower work of those before and after the fastest stretch
        self._fast = 0  # stretches
        self._last_s, self._looked_at = math.inf, -math.inf

    def look(self, *, last: bool = False) -> None:
        """Before a round, and `last` after all: ends the stretch since the look before, and waits where that is slow
        and there are not ENOUGH fast ones yet."""
        now = perf_counter()
        if now - self._looked_at < EVERY_S and not last:
            return
        work_s = self._work()
        stretch_s = max(self._last_s, work_s)
        self.stretch_s = min(self.stretch_s, stretch_s)
        self._fast += stretch_s <= SLOW * self.fastest_s
        if not last and self._fast < ENOUGH:
            work_s = self._wait(work_s)
        self._last_s, self._looked_at = work_s, perf_counter()

    def _wait(self, work_s: float) -> float:
        """Works until it is fast, or the patience has come to an end."""
        began = now = perf_counter()
        while work_s > SLOW * self.fastest_s and self.waited_s + now - began < self.patience_s:
            work_s, now = self._work(), perf_counter()
        self.waited_s += now - began
        return work_s

    def _work(self) -> float:
        """The faster of two: an interrupt does not hit both."""
        work_s = min(_timed_work(), _timed_work())
        self.fastest_s = min(self.fastest_s, work_s)
        self.was_fast |= work_s <= SLOW * self.fastest_s
        return work_s


def _timed_work() -> float:
    began = perf_counter()
    BYTES.translate(TABLE)
    return perf_counter() - began


def slow_core(stretch_s: float | None, fastest_s: float) -> str:
    """In words, where even the fastest stretch of a benchmark was slow; empty where it was not, or nothing is known.

    >>> slow_core(20e-6, 10e-6)
    'this core ran at 50% of its speed'
    >>> slow_core(10.2e-6, 10e-6), slow_core(None, 10e-6)
    ('', '')
    """
    if stretch_s is None or not SLOW * fastest_s < stretch_s < math.inf:
        return ""
    return f"this core ran at {fastest_s / stretch_s:.0%} of its speed"
