"""The schedule of one of the gate's processes; the gate compares the fastest round of each.

Such a process has no warm-up, because its rounds would not be the fastest. It searches for no
ceiling and records neither launch cost nor a share of a peak. Later processes skip the examination
that the first one made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from bench.ceilings import Ceilings
from bench.freed_memory import new_pages
from bench.rounds import Pace
from bench.timing import CallTimer, Result, Rounds, TimedCall

# If small blocks end up beside a large one, glibc finds no room for the next of its size, a few
# times: three rounds of a layer norm with new pages each made 29 % of noise. A call of LONG_S has
# many blocks, and is not repeated.
MOST_FIRST_CALLS, FEW_PAGES, LONG_S = 6, 16, 0.25
# The least share of the ceiling that a probed product reaches.
PROBED_SHARE = 0.3


@dataclass(frozen=True)
class Asked:
    """The gate's request for one benchmark, see the fixture `gate_replicate`."""

    # Spent on rounds.
    seconds: float
    least_rounds: int
    # An earlier process has examined the benchmark.
    examined: bool
    # Gets the seconds that examining took.
    leave_out: Callable[[float], None]


@dataclass(frozen=True)
class BriefSchedule:
    """Stands for `bench.timing.Schedule` in such a process."""

    asked: Asked
    pace: Pace
    brief = True

    def once(self, look: Callable[[], Result]) -> Result | None:
        __tracebackhide__ = True
        if self.asked.examined:
            return None
        began = perf_counter()
        found = look()
        self.asked.leave_out(perf_counter() - began)
        return found

    def skip_if_longer(self, flops: float, dtype: str, ceilings: Ceilings) -> None:
        """Skips what takes too long at any ceiling; the test itself times the rest."""
        if not self.asked.examined:
            self.pace.skip_if_longer(PROBED_SHARE * flops / ceilings.probed(dtype))

    def first_calls(self, timer: CallTimer, call: TimedCall) -> tuple[float, float | None]:
        """Calls the function until a call gets no new pages; returns the fastest time."""
        __tracebackhide__ = True
        if not self.asked.examined:
            return timer.first_calls(call)
        fastest = math.inf
        for number in range(MOST_FIRST_CALLS):
            before = new_pages()
            seconds = timer.call_s(call)[0]
            fastest = min(fastest, seconds)
            settled = new_pages() - before < FEW_PAGES and (
                number > 0 or seconds >= self.asked.seconds / 10
            )
            if settled or seconds > LONG_S:
                break
        return fastest, None

    def rounds(
        self, timer: CallTimer, call: TimedCall, calls: int, call_s: float, sustained: bool
    ) -> Rounds:
        """The number of rounds that fit into the requested seconds."""
        fitting = int(self.asked.seconds / (calls * call_s + timer.preparation_s(call)))
        number = max(self.asked.least_rounds, min(fitting, self.pace.most_rounds))
        return Rounds(call_s, number)
