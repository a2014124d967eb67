"""Hooks into pytest-benchmark: the memory of a call that it doesn't time, and its timed rounds.

Memory is measured in a call that pytest-benchmark makes anyway and doesn't time. That is the one
whose result `benchmark(function)` returns, or that of `pedantic` with several iterations. So the
function is called as often as without the gate, the call is warm, and the timed rounds call the
function itself.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from prooflops_gate.child.rounds import Rounds, cuda_of_torch
from prooflops_gate.machine.core_speed import CoreSpeed
from prooflops_gate.unpatched import time

try:
    import tracemalloc
except ImportError:
    # PyPy.
    tracemalloc = None  # type: ignore[assignment]

EXTRA_INFO_KEY = "gate_resources"
MEMORY = "memory"

Figures = dict[str, int]


class UntimedCall:
    """Replaces a benchmarked function in the calls that are not timed, and measures them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.last_figures: Figures = {}
        self.seconds = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self.last_figures, began = {}, time.monotonic()
        result = call_traced(self.last_figures, self.function, *args, **kwargs)
        self.seconds += time.monotonic() - began
        if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
            # Its work is still to be done.
            self.last_figures = {}
        return result


def instrument(
    measures_memory: Callable[[], bool],
    leave_out: Callable[[float], None],
    speed: CoreSpeed,
    longest_s: float = math.inf,
) -> None:
    """Makes pytest-benchmark measure calls that it doesn't time, and watches its timed rounds.

    `measures_memory`: whether the memory of the test that runs is to be measured. The seconds that
    this adds are left out of the cost of a process, as few processes do it. A benchmark
    whose calls take more than `longest_s` together is skipped. The figures go to `extra_info`.
    With pytest-benchmark built in another way than versions 5.0 to 5.3 nothing is measured, and
    only the samples of the core's speed before and after a test remain.
    """
    fixture_class = known_fixture_class()
    if fixture_class is not None:
        measure_untimed_calls(fixture_class, measures_memory, leave_out)
        watch_timed_rounds(fixture_class, Rounds(speed, longest_s))


def known_fixture_class() -> Any:
    """pytest-benchmark's class of the fixture `benchmark`; None where it is not built as known."""
    if find_spec("pytest_benchmark") is None:
        return None
    from pytest_benchmark import fixture

    found = getattr(fixture, "BenchmarkFixture", None)
    is_known = all(hasattr(found, name) for name in ("__call__", "pedantic", "_make_runner"))
    return found if is_known else None


def measure_untimed_calls(
    fixture_class: Any, measures_memory: Callable[[], bool], leave_out: Callable[[float], None]
) -> None:
    """Measures the memory of an untimed call in `benchmark(...)` and `benchmark.pedantic(...)`."""
    plain, pedantic = fixture_class.__call__, fixture_class.pedantic

    def run(
        fixture: Any, method: Callable[..., Any], untimed: UntimedCall, args: Any, kwargs: Any
    ) -> Any:
        __tracebackhide__ = True
        if not measures_memory():
            return method(fixture, untimed.function, *args, **kwargs)
        result = method(fixture, untimed, *args, **kwargs)
        if untimed.last_figures and fixture.stats:
            fixture.stats.extra_info.setdefault(EXTRA_INFO_KEY, untimed.last_figures)
            leave_out(max(untimed.seconds - fixture.stats.stats.min, 0.0))
        return result

    def call(self: Any, function_to_benchmark: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return run(self, plain, UntimedCall(function_to_benchmark), args, kwargs)

    def call_pedantic(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return run(self, pedantic, UntimedCall(target), args, kwargs)

    fixture_class.__call__, fixture_class.pedantic = call, call_pedantic


def watch_timed_rounds(fixture_class: Any, rounds: Rounds) -> None:
    """Lets `rounds` watch each timed round, which calls the benchmarked function itself."""
    make_runner = fixture_class._make_runner

    def runner(self: Any, function_to_benchmark: Any, *args: Any) -> Any:
        function = function_to_benchmark
        if isinstance(function, UntimedCall):
            function = function.function
        return rounds.watched(self, make_runner(self, function, *args))

    fixture_class._make_runner = runner


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
    cuda = cuda_of_torch()
    # No device unless a test has imported torch and used a GPU.
    devices = range(cuda.device_count()) if cuda is not None and cuda.is_initialized() else ()
    if gc.isenabled():
        # Then the young generations are collected at the same points in every process.
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
