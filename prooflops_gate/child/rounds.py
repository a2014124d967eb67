"""The core's speed and the GPU's clock around each timed round of pytest-benchmark.

No public hook of pytest-benchmark runs between two rounds, so what runs one is wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from prooflops_gate.machine.core_speed import CoreSpeed
from prooflops_gate.machine.gpu_clock import Cycles
from prooflops_gate.task import TOOK_TOO_LONG

# Key of the extra_info of a benchmark whose rounds end before the GPU has finished.
LAUNCHES = "gate_launches"
# Key of the extra_info with the cycles that `machine.gpu_clock` counted.
GPU = "gate_gpu"


class Rounds:
    """The timed rounds of a process, one benchmark after another.

    A benchmark whose calls take more than `longest_s` together is skipped.
    """

    def __init__(self, speed: CoreSpeed, longest_s: float) -> None:
        self.speed = speed
        self.longest_s = longest_s
        # The name of the benchmark that is timed: `pedantic` makes a runner for each round.
        self.benchmark: str | None = None
        self.taken_s = 0.0
        self.cycles = Cycles()

    def watched(self, fixture: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, which times one round of `fixture`, with what is looked at before and after it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            # None while the benchmark is calibrated.
            stats = getattr(fixture, "stats", None)
            self.begin(getattr(stats, "fullname", None))
            if stats is not None:
                self.speed.look()
            clock_hz = self.cycles.look()
            result = run(*args, **kwargs)
            seconds = seconds_of(result)
            self.skip_if_too_long(fixture, seconds)
            if stats is not None:
                self.note_gpu(stats, seconds, clock_hz)
            return result

        return timed

    def begin(self, benchmark: str | None) -> None:
        """Starts afresh with a new benchmark, but not when its test is run again."""
        if benchmark == self.benchmark:
            return
        # Calibration, which has no name yet, is part of the benchmark that follows.
        if self.benchmark is not None:
            self.taken_s = 0.0
        self.benchmark = benchmark
        self.speed.begin()
        self.cycles = Cycles()

    def skip_if_too_long(self, fixture: Any, seconds: float) -> None:
        """Adds a round to the benchmark's time, and skips the benchmark beyond the limit."""
        __tracebackhide__ = True
        self.taken_s += seconds
        if self.taken_s <= self.longest_s:
            return
        taken_s, self.taken_s = self.taken_s, 0.0
        # The rounds so far are no result.
        fixture.has_error = True
        pytest.skip(f"{TOOK_TOO_LONG} {taken_s:.0f} s")

    def note_gpu(self, stats: Any, seconds: float, before_hz: float | None) -> None:
        """Adds to the benchmark's record whether the GPU is still busy, and its cycles."""
        if is_computing():
            stats.extra_info[LAUNCHES] = True
        self.cycles.add(seconds / stats.iterations, before_hz)
        if self.cycles.figures:
            stats.extra_info[GPU] = self.cycles.figures


def seconds_of(result: Any) -> float:
    """The seconds of a round: alone, or beside the function's result."""
    return float(result[0] if isinstance(result, tuple) else result)


def cuda_of_torch() -> Any:
    """The module `torch.cuda`; None where torch is not imported, or a test has put a mock there."""
    torch = sys.modules.get("torch")
    return getattr(torch, "cuda", None) if isinstance(torch, ModuleType) else None


def is_computing() -> bool:
    """True if torch's GPU still works on what was launched.

    The clock has stopped too early then.
    """
    cuda = cuda_of_torch()
    # Only the current device: asking another would make a context on it.
    return cuda is not None and cuda.is_initialized() and not cuda.current_stream().query()
