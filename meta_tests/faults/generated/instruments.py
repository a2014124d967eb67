"""The instruments, by the function that takes a reading, and what can be wrong with it; and faults of the machine."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from accounting.counted.counter import _Counter
from accounting.measured import allocations, timing
from meta_tests.faults import replace
from prooflops.machine import cpu, nvml

# The function whose results are readings, and the files of tests that use it.
INSTRUMENTS: dict[str, tuple[str, str]] = {
    "host-clock": ("accounting.measured.timing.perf_counter", "accounting/measured/test_timing.py"),
    "device-clock": ("accounting.measured.timing._DeviceMoment.__sub__", "accounting/measured/test_timing.py"),
    "cpu-allocator": ("accounting.measured.allocations._split_at_marks", "accounting/measured/test_allocations.py"),
    "cuda-allocator": (
        "accounting.measured.allocations._CachingAllocatorMeter.stop",
        "accounting/measured/test_allocations.py",
    ),
    "nvml": ("prooflops.machine.nvml.ask", "prooflops/machine/test_conditions.py"),
    "cpu-ticks": ("prooflops.machine.contention._ticks", "prooflops/machine/test_contention.py"),
    "cpu-seconds": ("prooflops.machine.contention._own_s", "prooflops/machine/test_contention.py"),
    "instructions": ("prooflops.machine.instructions._read", "prooflops/machine/test_contention.py"),
    "phase": ("accounting.counted.counter._phase", "accounting/counted/test_counter.py"),
}
OTHER_TESTS = {
    "counter": "accounting/counted/test_counter.py",
    "machine": " ".join(f"prooflops/machine/test_{name}.py" for name in ("contention", "conditions")),
}
Call = Callable[..., Any]


def doubled(reading: Any) -> Any:
    """Every number of a reading twice as large."""
    if isinstance(reading, bool) or reading is None:
        return reading
    if isinstance(reading, (int, float)):
        return 2 * reading
    if isinstance(reading, dict):
        return {key: doubled(value) for key, value in reading.items()}
    if dataclasses.is_dataclass(reading) and not isinstance(reading, type):
        return dataclasses.replace(reading, **{key: doubled(value) for key, value in vars(reading).items()})
    if isinstance(reading, allocations._Event):
        return reading._replace(size=2 * reading.size)
    return type(reading)(map(doubled, reading)) if isinstance(reading, (list, tuple)) else reading


def reading(wrong: str, original: Call, kept: list[Any], *args: Any, **kwargs: Any) -> Any:
    """A reading that is doubled, that of the first time (stuck), or that of the time before (late)."""
    kept.append(original(*args, **kwargs))
    if wrong == "doubled":
        return doubled(kept[-1])
    return kept[0] if wrong == "stuck" else kept[max(0, len(kept) - 2)]


def plant(target: str, wrong: str, patch: pytest.MonkeyPatch) -> None:
    holder, name = pkgutil.resolve_name(target.rpartition(".")[0]), target.rpartition(".")[2]
    original, kept = getattr(holder, name), []

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        return reading(wrong, original, kept, *args, **kwargs)

    patch.setattr(holder, name, functools.wraps(original)(spoilt) if isinstance(holder, type) else spoilt)


# ---- of another device -------------------------------------------------------------------------------------------


def clock_of_the_host(patch: pytest.MonkeyPatch) -> None:
    replace(patch, timing.clock, lambda device="cpu": timing.perf_counter)


def allocator_of_another_device(patch: pytest.MonkeyPatch) -> None:
    original = allocations._split_at_marks

    def split(trace: list[dict[str, Any]]) -> Any:
        for entry in trace:
            if entry.get("name") == "[memory]":
                entry["args"]["Device Type"] = 1 - entry["args"]["Device Type"]
        return original(trace)

    patch.setattr(allocations, "_split_at_marks", split)


def cuda_allocator_of_the_first_device(patch: pytest.MonkeyPatch) -> None:
    start = allocations._CachingAllocatorMeter.start

    def started(self: Any) -> None:
        self._device = type(self._device)(self._device.type, 7)
        start(self)

    patch.setattr(allocations._CachingAllocatorMeter, "start", started)


def handle_of_another_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nvml, "handle", lambda uuid: nvml.ask(lambda driver: driver.nvmlDeviceGetHandleByUUID("GPU-another")))


def counting(spoil: Callable[[Call, list[Any], tuple[Any, ...]], None]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        original, kept = _Counter._count, []
        patch.setattr(_Counter, "_count", lambda self, *args: spoil(original, kept, (self, *args)))

    return plant


def twice(original: Call, _kept: list[Any], args: tuple[Any, ...]) -> None:
    original(*args)
    original(*args)


def only_the_first(original: Call, kept: list[Any], args: tuple[Any, ...]) -> None:
    if not kept:
        original(*args)
    kept.append(args)


def the_one_before(original: Call, kept: list[Any], args: tuple[Any, ...]) -> None:
    if kept:
        original(args[0], *kept[-1][1:])
    kept.append(args)


# ---- the machine -------------------------------------------------------------------------------------------------


def no_proc(patch: pytest.MonkeyPatch) -> None:
    read = cpu.text
    patch.setattr(cpu, "text", lambda file: "" if str(file).startswith("/proc") else read(file))


def one_core(patch: pytest.MonkeyPatch) -> None:
    replace(patch, cpu.allowed_cores, lambda: [0])
    patch.setattr(cpu, "allowed_cores", lambda: [0])


def throttled(patch: pytest.MonkeyPatch) -> None:
    grown = count(1)
    patch.setattr(cpu, "throttle_totals", lambda *_: {"temperature": next(grown)})


CELLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    **{
        f"{name} {wrong}": functools.partial(plant, target, wrong)
        for name, (target, _) in INSTRUMENTS.items()
        for wrong in ("doubled", "stuck", "late")
        if (name, wrong) != ("phase", "doubled")
    },
    "host-clock elsewhere": clock_of_the_host,
    "cpu-allocator elsewhere": allocator_of_another_device,
    "cuda-allocator elsewhere": cuda_allocator_of_the_first_device,
    "nvml elsewhere": handle_of_another_gpu,
    "counter doubled": counting(twice),
    "counter stuck": counting(only_the_first),
    "counter late": counting(the_one_before),
    "machine no-proc": no_proc,
    "machine one-core": one_core,
    "machine throttled": throttled,
}


def tests_of(name: str) -> list[str]:
    """The files of tests that use the instrument of a cell."""
    instrument = name.partition(" ")[0]
    files = OTHER_TESTS[instrument] if instrument in OTHER_TESTS else INSTRUMENTS[instrument][1]
    return [f"meta_tests/{file}" for file in files.split()]
