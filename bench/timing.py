"""Times calls of a function: the first ones, the warm-up, and how many rounds follow.

There are two stages (after Stein, "A two-sample test for a linear hypothesis whose power is
independent of the variance", 1945). The last rounds of the warm-up are the pilot: they say how many
rounds make the interval of the median as narrow as asked. Those are then run, as far as time
allows, and the interval is computed from them alone. Stopping where it happens to be narrow would
make it cover the median less often than it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch

from bench.ceilings import Ceilings
from bench.rounds import (
    FEWEST_ROUNDS,
    SAMPLED_S,
    Pace,
    Progress,
    is_flat,
    no_progress,
    rounds_for,
)
from prooflops import timing

# A thousand times the resolution of the host's clock.
SHORTEST_ROUND_S = 1e-4
# Two hundred times the 5 µs for which an accelerator waits for the first launch.
SHORTEST_DEVICE_ROUND_S = 1e-3
# Beyond it the launch is less than a thousandth of the time.
LONGEST_LEAD_S = 0.01
# A queue takes in some thousand launches before it makes the host wait.
MOST_SHORT_CALLS = 200
LEAST_WAITED_SHARE = 0.5
TRIALS_OF_WAITING = 5

Result = TypeVar("Result")


class NotWaitedFor(AssertionError):
    """The clock sees little of the time between two moments at which the device is idle."""


@dataclass(frozen=True)
class TimedCall:
    """A function, and the preparation of each of its rounds outside of the timed region."""

    function: Callable[[], object]
    setup: Callable[[], object] | None = None
    flush: Callable[[], object] | None = None

    @property
    def is_prepared(self) -> bool:
        """True if a round is one call: pytest-benchmark allows no other with a set-up."""
        return self.setup is not None or self.flush is not None

    def prepare(self) -> None:
        for step in (self.setup, self.flush):
            if step is not None:
                step()


@dataclass(frozen=True)
class Rounds:
    """Seconds per call, the rounds to run, and figures for the record."""

    call_s: float
    number: int
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallTimer:
    """Times calls on one device by a clock whose readings are subtracted."""

    device: torch.device
    clock: Callable[[], Any]

    def call_s(self, call: TimedCall) -> tuple[float, float]:
        """Seconds of a call by the clock, and their share of the host's time.

        Short calls are timed several at once.
        """
        seconds, share = self._calls_s(call, 1)
        # The first call tells how many short calls fit.
        if call.setup is None and seconds < 2 * SHORTEST_ROUND_S:
            return self._calls_s(
                call, min(math.ceil(2 * SHORTEST_ROUND_S / seconds), MOST_SHORT_CALLS)
            )
        return seconds, share

    def _calls_s(self, call: TimedCall, calls: int) -> tuple[float, float]:
        """Times `calls` calls from an idle device to an idle device; returns as `call_s` does."""
        if call.setup is not None:
            call.setup()
        timing.synchronise(self.device)
        began, start = perf_counter(), self.clock()
        for _ in range(calls):
            call.function()
        seconds = self.clock() - start
        timing.synchronise(self.device)
        return max(seconds / calls, 1e-9), seconds / max(perf_counter() - began, 1e-9)

    def first_calls(self, call: TimedCall) -> tuple[float, float]:
        """Seconds of a call after one untimed call, and the share that the clock saw of it.

        The same calls are timed twice: by the clock, and by the host from an idle device to an idle
        device. The share is small where the clock does not wait, or where work hides from it in
        another stream or thread.
        """
        __tracebackhide__ = True
        # Imports, compiles, allocates.
        self.call_s(call)
        best, fastest = 0.0, math.inf
        for _ in range(TRIALS_OF_WAITING):
            seconds, share = self.call_s(call)
            best, fastest = max(best, share), min(fastest, seconds)
            if best >= LEAST_WAITED_SHARE:
                break
        if best < LEAST_WAITED_SHARE:
            raise NotWaitedFor(
                f"the timer saw only {best:.0%} of the time that the host waited for the device: "
                "does the benchmark wait for the device?"
            )
        return max(fastest, 1e-9), best

    def warm_up(
        self, call: TimedCall, calls: int, pace: Pace
    ) -> tuple[tuple[float, ...], dict[str, Any]]:
        """Runs rounds until their median is flat or the time is up; returns the pilot's seconds."""
        rounds: list[float] = []
        began, elapsed, flat, looked_at = perf_counter(), 0.0, False, 0
        while (
            not rounds or elapsed < pace.warmup_s or not (flat or elapsed >= pace.longest_warmup_s)
        ):
            call.prepare()
            start = self.clock()
            for _ in range(calls):
                call.function()
            rounds.append(max((self.clock() - start) / calls, 1e-9))
            elapsed = perf_counter() - began
            # Each check sorts all rounds.
            if len(rounds) > 1.1 * looked_at:
                flat, looked_at = is_flat(rounds), len(rounds)
        return tuple(rounds[len(rounds) // 3 :]), {"warmup_s": elapsed, "flat": flat}

    def preparation_s(self, call: TimedCall) -> float:
        """Seconds of the preparation of a round."""
        if not call.is_prepared:
            return 0.0
        began = perf_counter()
        call.prepare()
        timing.synchronise(self.device)
        return perf_counter() - began

    def before_round(self, call: TimedCall, calls: int, call_s: float) -> Callable[[], None] | None:
        """The preparation of a round; without one, on CUDA an untimed call.

        It keeps the device busy.

        After each round pytest-benchmark subtracts two readings, which waits for the device. An
        idle device would run the start event at once and then wait for the launch: some 5 µs that
        do not belong to the function.
        """
        if call.is_prepared:
            return call.prepare
        if self.device.type != "cuda" or calls > 1 or call_s > LONGEST_LEAD_S:
            return None

        # pytest-benchmark takes a set-up's result for arguments.
        def lead() -> None:
            call.function()

        return lead


@dataclass(frozen=True)
class Schedule:
    """Chooses the warm-up and the number of rounds of a benchmark.

    In a process of the gate, `bench.brief` chooses them.
    """

    pace: Pace
    progress: Progress = no_progress
    # True in a process of the gate, see `bench.brief`.
    brief = False

    def once(self, look: Callable[[], Result]) -> Result | None:
        """The result of `look`; None if an earlier process of a gate run has looked already."""
        __tracebackhide__ = True
        return look()

    def skip_if_longer(self, flops: float, dtype: str, ceilings: Ceilings) -> None:
        """Skips if this many FLOPs take too long at the ceiling, and in a quiet moment as well.

        Raises Unsupported.
        """
        seconds = flops / ceilings.flop_per_s(dtype)
        if seconds > self.pace.longest_call_s:
            seconds = flops / ceilings.quietly(dtype)
        self.pace.skip_if_longer(seconds)

    def first_calls(self, timer: CallTimer, call: TimedCall) -> tuple[float, float | None]:
        __tracebackhide__ = True
        return timer.first_calls(call)

    def rounds(
        self, timer: CallTimer, call: TimedCall, calls: int, call_s: float, sustained: bool
    ) -> Rounds:
        """Warms up, for a `sustained` rate until the clock has settled, and chooses the rounds."""
        sustained = sustained and timer.device.type != "cpu"
        pace = self.pace.resettled(timer.device.type) if sustained else self.pace
        self.progress("warming up", pace.longest_warmup_s)
        pilot, figures = timer.warm_up(call, calls, pace)
        call_s = median(pilot)
        round_s = calls * call_s + timer.preparation_s(call)
        affordable = min(
            max(int(self.pace.measure_s / round_s), FEWEST_ROUNDS), self.pace.most_rounds
        )
        number = rounds_for(self.pace.width, pilot, affordable)
        if sustained:
            number = min(max(number, math.ceil(SAMPLED_S / round_s)), affordable)
        return Rounds(call_s, number, figures)
