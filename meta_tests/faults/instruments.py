"""Each instrument, by the function that takes a reading, with one thing wrong."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from meta_tests.faults import fault, faults, stand_in
from prooflops.measured import allocations, timing

MEASURED, MACHINE = "meta_tests/prooflops/measured/", "meta_tests/prooflops/machine/"
COUNTER = "meta_tests/prooflops/counted/test_counter.py::"
CLOCK = MEASURED + "test_timing.py::test_the_clock_of_the_cpu_is_the_hosts"
EVENTS = (
    MEASURED + "test_timing.py::test_cuda_time_is_between_events_that_only_a_subtraction_waits_for"
)
HELD = (
    MEASURED
    + "test_allocations.py::test_a_training_step_holds_exactly_its_activations_gradients_and_state"
)
PHASES = (
    MEASURED + "test_allocations.py::test_a_phase_knows_what_it_allocates_frees_holds_and_peaks_at"
)
ON_CUDA = (
    MEASURED + "test_allocations.py::test_on_cuda_requests_and_charges_are_read_between_phases"
)
NVML = (
    MACHINE + "test_conditions.py::test_the_state_of_a_gpu_is_its_drivers_and_nvml_is_started_once"
)
GATE_MACHINE = "meta_tests/prooflops_gate/machine/"
OTHERS = GATE_MACHINE + "test_contention.py::test_what_others_do_meanwhile_is_reported"
OWN = GATE_MACHINE + "test_contention.py::test_a_process_that_this_one_started_is_its_own_work"
STEP = COUNTER + "test_a_whole_step_of_a_net_costs_what_its_numbers_do"
NESTED = COUNTER + "test_nested_counts_count_all_within_and_may_be_read_meanwhile"
# The function whose results are readings, and the tests that notice a doubled, a stuck and a late one; "" if none does.
INSTRUMENTS = {
    "host-clock": ("prooflops.measured.timing.perf_counter", CLOCK, CLOCK, CLOCK),
    "device-clock": ("prooflops.measured.timing._DeviceMoment.__sub__", EVENTS, EVENTS, EVENTS),
    "cpu-allocator": ("prooflops.measured.allocations._split_at_marks", HELD, PHASES, PHASES),
    "cuda-allocator": (
        "prooflops.measured.allocations._CachingAllocatorMeter.stop",
        ON_CUDA,
        "",
        "",
    ),
    "nvml": ("prooflops_gate.machine.nvml.ask", NVML, NVML, NVML),
    "cpu-ticks": ("prooflops_gate.machine.contention._ticks", OTHERS, OTHERS, OTHERS),
    "cpu-seconds": ("prooflops_gate.machine.contention._own_s", "", OWN, OWN),
    "phase": ("prooflops.counted.counter._phase", "", STEP, STEP),
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
        return dataclasses.replace(
            reading, **{key: doubled(value) for key, value in vars(reading).items()}
        )
    if isinstance(reading, allocations._Event):
        return reading._replace(size=2 * reading.size)
    return type(reading)(map(doubled, reading)) if isinstance(reading, (list, tuple)) else reading


def plant(target: str, wrong: str, patch: Any) -> None:
    """Each reading is doubled, the first one again (stuck), or the one before (late)."""
    kept: list[Any] = []

    def read(original: Call, *args: Any, **kwargs: Any) -> Any:
        kept.append(original(*args, **kwargs))
        if wrong == "doubled":
            return doubled(kept[-1])
        return kept[0] if wrong == "stuck" else kept[max(0, len(kept) - 2)]

    stand_in(target, read)(patch)


for name, (target, *tests) in INSTRUMENTS.items():
    for wrong, test in zip(("doubled", "stuck", "late"), tests, strict=True):
        if test:
            fault(test, name=f"{name}-{wrong}")(functools.partial(plant, target, wrong))


faults(
    ("the_hosts_clock_times_the_device", EVENTS,
     stand_in("prooflops.measured.timing.clock", lambda _, device="cpu": timing.perf_counter)),
)  # fmt: skip


@fault(HELD, instead_of="prooflops.measured.allocations._split_at_marks")
def allocations_of_another_device_are_read(split, trace):
    for entry in trace:
        if entry.get("name") == "[memory]":
            entry["args"]["Device Type"] = 1 - entry["args"]["Device Type"]
    return split(trace)


@fault(ON_CUDA, instead_of="prooflops.measured.allocations._CachingAllocatorMeter.start")
def the_allocator_of_another_gpu_is_read(start, self):
    self._device = type(self._device)(self._device.type, 7)
    start(self)


@fault(STEP, instead_of="prooflops.counted.counter._Counter._count")
def each_operation_is_counted_twice(count_operation, self, *args):
    count_operation(self, *args)
    count_operation(self, *args)


@fault(STEP, instead_of="prooflops.counted.counter._Counter._count")
def only_the_first_operation_is_counted(count_operation, self, *args):
    if not vars(self).get("has_counted"):
        count_operation(self, *args)
    self.has_counted = True


@fault(NESTED, instead_of="prooflops.counted.counter._Counter._count")
def each_operation_is_counted_late(count_operation, self, *args):
    before, self.before = vars(self).get("before"), args
    if before:
        count_operation(self, *before)
