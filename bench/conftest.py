"""Fixtures of the benchmarks: their time, this machine's ceilings, and the measurement."""

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from bench.brief import Asked, BriefSchedule
from bench.cache import Caches, Flush, flush_of
from bench.ceilings import Ceilings
from bench.delivery import Delivery
from bench.freed_memory import keep_freed_memory
from bench.measuring import Measure
from bench.rounds import PACES
from bench.streams import Bandwidths, Size, memory_size
from bench.timing import CallTimer, Schedule
from prooflops import timing

# A stated peak above this multiple of the bound is no dense peak: with sparsity,
# vendors state twice as much, while the highest clock is a few percent above the nominal one.
LARGEST_MULTIPLE_OF_BOUND = 1.5

# The plugin of a process of the gate.
REPLICATE = "prooflops_gate.replicate"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Imports torch._dynamo in a process of the gate.

    The first optimizer step would take 1 s for it.
    """
    steps = any(item.path.name == "test_training.py" for item in session.items)
    if steps and session.config.pluginmanager.hasplugin(REPLICATE):
        importlib.import_module("torch._dynamo")


@pytest.fixture(scope="session")
def peak_flop_per_s(peak_flop_per_s, bound_flop_per_s) -> Callable[[str], float | None]:
    """The vendor's dense peak for a dtype, checked against the bound of the units.

    See `prooflops.suite.hooks`.
    """

    def dense(dtype: str) -> float | None:
        __tracebackhide__ = True
        peak, bound = peak_flop_per_s(dtype), bound_flop_per_s(dtype)
        assert peak is None or bound is None or peak <= LARGEST_MULTIPLE_OF_BOUND * bound, (
            f"the dense peak of {dtype} should be at most {bound:.4g} FLOP/s, which the units do, "
            f"but is {peak:.4g}: is it the sparse peak?"
        )
        return peak

    return dense


@pytest.fixture(scope="session")
def ceilings(device, pace, sizing, progress_of) -> Ceilings:
    """The best rates of this machine per dtype, measured at the first use."""
    progress = progress_of("ceilings")
    return Ceilings(device, PACES[pace], progress, sizing.room_bytes)


@pytest.fixture(scope="session")
def flush(device, caches, sizing) -> Callable[[], Flush]:
    """The flush of the device's caches, made at its first use.

    One buffer serves the whole run.
    """
    return functools.cache(lambda: flush_of(device, caches, sizing.room_bytes()))


@pytest.fixture(scope="session")
def memory_arrays(device, pace, caches, sizing) -> Callable[[], Size]:
    """The length of arrays that measure the memory's bandwidth, chosen at the first use.

    Skips where the free memory allows none.
    """
    return functools.cache(lambda: memory_size(device, pace, caches, sizing.room_bytes()))


@pytest.fixture(scope="session")
def bandwidths(device, pace, memory_arrays, progress_of) -> Bandwidths:
    """The best bandwidths of this machine's memory by the share of reads, measured at first use."""
    return Bandwidths(device, PACES[pace], memory_arrays(), progress_of("bandwidths"))


@pytest.fixture
def measure(
    request,
    gate_replicate,
    benchmark,
    device,
    pace,
    peak_flop_per_s,
    bound_flop_per_s,
    at_clock,
    conditions,
    progress,
    flush,
) -> Iterator[Measure]:
    """Runs one benchmark, see `bench.measuring`."""
    schedule: Schedule | BriefSchedule = Schedule(PACES[pace], progress)
    if gate_replicate:
        seconds, least_rounds, examined = gate_replicate.pace(request.node)
        leave_out = functools.partial(gate_replicate.leave_out, request.node)
        asked = Asked(seconds, least_rounds, examined, leave_out)
        schedule = BriefSchedule(asked, PACES[pace])
    with keep_freed_memory():
        yield Measure(
            benchmark,
            device,
            schedule,
            CallTimer(device, timing.clock(device)),
            peak_flop_per_s,
            bound_flop_per_s,
            flush=flush,
            conditions=conditions,
            at_clock=at_clock,
            progress=progress,
        )


@pytest.fixture
def delivery(
    request, gate_replicate, benchmark, device, pace, floors, conditions, causes
) -> Delivery:
    """Asserts the floors of a benchmark's figures, but not in a process of the gate.

    See `bench.delivery`.
    """
    return Delivery(
        device, floors, request.node.nodeid, benchmark.extra_info,
        pace=pace, conditions=conditions, causes=causes, active=not gate_replicate,
    )  # fmt: skip
