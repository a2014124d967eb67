"""Hooks into pytest-benchmark: the core's speed and the GPU's clock between rounds, and the memory
of a call.

Measured is a call that pytest-benchmark makes anyway and doesn't time: the one whose result
`benchmark(function)` returns, that of `pedantic` with several iterations, or one of three or more
warm-up rounds of `pedantic`, neither the first nor the last. So the function is called as often as
without the gate, the call is warm, and the timed rounds call the function itself.
"""

from __future__ import annotations

import gc
import inspect
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from prooflops_gate.machine.core_speed import CoreSpeed
from prooflops_gate.machine.gpu_clock import Cycles
from prooflops_gate.task import TOOK_TOO_LONG

try:
    import tracemalloc
except ImportError:
    # PyPy.
    tracemalloc = None  # type: ignore[assignment]

# Of a benchmark's extra_info.
KEY = "gate_resources"
MEMORY = "memory"
# Key of the extra_info of a benchmark whose rounds end before the GPU has finished.
LAUNCHES = "gate_launches"
# Key of the extra_info with what `machine.gpu_clock` saw.
GPU = "gate_gpu"

Figures = dict[str, int]


class UntimedCall:
    """Replaces a benchmarked function in the calls that are not timed, and measures them."""

    def __init__(self, function: Callable[..., Any], warm_up: int = 0) -> None:
        self.function = function
        # The warm-up round that it measures, counted from 1; 0: none.
        self.warm_up = warm_up
        self.rounds = 0
        # Of the last call.
        self.figures: Figures = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self.figures = {}
        result = call_traced(self.figures, self.function, *args, **kwargs)
        if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
            # Its work is still to be done.
            self.figures = {}
        return result

    def in_round(self) -> Callable[..., Any]:
        """The function that the next round calls."""
        self.rounds += 1
        return self if self.rounds == self.warm_up else self.function


def instrument(
    measures_memory: Callable[[], bool], speed: CoreSpeed, longest_s: float = math.inf
) -> None:
    """Makes pytest-benchmark look at the core's speed before timed rounds, and measure calls that
    it doesn't time.

    `measures_memory`: whether the memory of the test that runs is to be measured. A benchmark
    whose calls take more than `longest_s` together is skipped. The figures go to
    `extra_info`. With pytest-benchmark built in another way than versions 5.0 to 5.3 nothing is
    measured, and only the looks before and after remain.
    """
    if find_spec("pytest_benchmark") is None:
        return
    from pytest_benchmark import fixture

    cls: Any = getattr(fixture, "BenchmarkFixture", None)
    # No public hook runs between two rounds, or tells a timed round from a call for the function's
    # result.
    plain, pedantic, make_runner = (
        getattr(cls, name, None) for name in ("__call__", "pedantic", "_make_runner")
    )
    if not (plain and pedantic and make_runner):
        return

    def run(
        fixture: Any, method: Callable[..., Any], untimed: UntimedCall, args: Any, kwargs: Any
    ) -> Any:
        __tracebackhide__ = True
        if not measures_memory():
            return method(fixture, untimed.function, *args, **kwargs)
        result = method(fixture, untimed, *args, **kwargs)
        if untimed.figures and fixture.stats:
            fixture.stats.extra_info.setdefault(KEY, untimed.figures)
        return result

    def call(self: Any, function_to_benchmark: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return run(self, plain, UntimedCall(function_to_benchmark), args, kwargs)

    def call_pedantic(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        warm_ups = (
            inspect.signature(pedantic)
            .bind(self, target, *args, **kwargs)
            .arguments.get("warmup_rounds", 0)
        )
        chosen = warm_ups - 1 if isinstance(warm_ups, int) and warm_ups > 2 else 0
        return run(self, pedantic, UntimedCall(target, chosen), args, kwargs)

    # The name of the benchmark that is timed; `pedantic` makes a runner for each round.
    timing: Any = None
    cycles = Cycles()
    # Seconds of its calls so far.
    taken_s = 0.0

    def runner(self: Any, function_to_benchmark: Any, *args: Any) -> Any:
        is_ours = isinstance(function_to_benchmark, UntimedCall)
        run = make_runner(
            self, function_to_benchmark.in_round() if is_ours else function_to_benchmark, *args
        )

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal timing, cycles, taken_s
            __tracebackhide__ = True
            stats = getattr(self, "stats", None)
            # Not when its test is run again.
            if (name := getattr(stats, "fullname", None)) != timing:
                # What was calibrated is the same benchmark.
                taken_s = 0.0 if timing else taken_s
                timing = name
                speed.begin()
                cycles = Cycles()
            # It is None while the benchmark is calibrated.
            if stats is not None:
                speed.look()
            clock_hz = cycles.look()
            result = run(*args, **kwargs)
            taken_s += seconds_of(result)
            if taken_s > longest_s:
                said_s, taken_s = taken_s, 0.0
                # The rounds so far are no result.
                self.has_error = True
                pytest.skip(f"{TOOK_TOO_LONG} {said_s:.0f} s")
            if stats is None:
                return result
            if is_computing():
                stats.extra_info[LAUNCHES] = True
            cycles.add(seconds_of(result) / stats.iterations, clock_hz)
            if cycles.figures:
                stats.extra_info[GPU] = cycles.figures
            return result

        return timed

    cls._make_runner = runner
    cls.__call__, cls.pedantic = call, call_pedantic


def seconds_of(result: Any) -> float:
    """The seconds of a round: alone, or beside the function's result."""
    return float(result[0] if isinstance(result, tuple) else result)


def is_computing() -> bool:
    """Whether torch's GPU still works on what was launched.

    The clock has stopped too early then.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Only the current device: asking another would make a context on it.
    return cuda is not None and cuda.is_initialized() and not cuda.current_stream().query()


def call_traced(
    figures: Figures, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Calls `function`, and adds its peak of memory above that before the call to `figures`.

    "memory": from Python's allocators, numpy's arrays included; they don't see that of other C
    libraries, such as torch's tensors on the CPU. "CUDA memory": from torch's allocator on all
    devices, where CUDA is in use.
    """
    # The project's own tracing would be disturbed.
    if tracemalloc is None or tracemalloc.is_tracing():
        return function(*args, **kwargs)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # No device unless a test has imported torch and used a GPU.
    devices = range(cuda.device_count()) if cuda is not None and cuda.is_initialized() else ()
    if gc.isenabled():
        # From here on the young generations are collected at the same points in every process.
        gc.collect(1)
    held = sum(cuda.memory_allocated(device) for device in devices)
    for device in devices:
        cuda.reset_peak_memory_stats(device)
    tracemalloc.start()
    try:
        result = function(*args, **kwargs)
        if tracemalloc.is_tracing():
            figures[MEMORY] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak := sum(cuda.max_memory_allocated(device) for device in devices) - held:
        figures["CUDA memory"] = peak
    return result
