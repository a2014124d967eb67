"""Bytes that a block of code requests from torch's allocator: exact, phase by phase."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accounting.checks import validated_choice
from prooflops.memory.phases import PhaseBytes, Phases, highest

MEASURED_DEVICES = ("cpu", "cuda", "xpu")
_MARK = "prooflops.memory: "


@dataclass(frozen=True)
class MeasuredBytes(PhaseBytes):
    """The measured bytes of one phase of a block of code, as tensors requested them.

    `charged_…` are the whole blocks that the caching allocator set aside, as
    torch.cuda.memory_allocated reports them; None on the CPU.
    """

    charged_live_bytes: int | None = None
    charged_peak_bytes: int | None = None


class MeasuredMemory(Phases[MeasuredBytes]):
    """The measured bytes of a block of code and its phases; read them after the block."""

    def __init__(self, meter: _CpuMeter | _CachingAllocatorMeter) -> None:
        super().__init__("measured")
        self._meter = meter

    def mark(self, name: str) -> None:
        """Ends the phase `name`, which began at the mark before or with the block."""
        self._check_new(name)
        self._meter.mark()
        self._names.append(name)

    def _close(self) -> None:
        self._segments = self._meter.stop()

    @property
    def charged_live_bytes(self) -> int | None:
        return self._known()[-1].charged_live_bytes

    @property
    def charged_peak_bytes(self) -> int | None:
        return highest(segment.charged_peak_bytes for segment in self._known())


_measuring: list[str] = []  # the device of the block that is being measured: there is one at a time


@contextmanager
def measured_memory(device: str | torch.device = "cpu") -> Iterator[MeasuredMemory]:
    """The bytes that a block of code allocates, frees, holds and peaks at on `device`, exactly.

    CPU: torch's profiler reports every request to torch's allocator; a free is matched with the
    allocation at its address. One profiler session spans all phases, or figures would depend on
    blocks that an earlier session saw. Do not time anything in the block. The first session of a
    process costs about 1.6 s, the next ones about 1 ms, and each event some 10 µs.

    CUDA and XPU: the caching allocator's own counters, read between phases; resets the device's
    peak statistics.

    Domain of validity: requests to torch's allocator by this thread and the autograd threads it
    starts. On the CPU other Python threads, `from_numpy` and other foreign memory, shared memory
    and the buffers of BLAS are invisible. On CUDA all threads count, but not the CUDA context,
    other processes, or libraries with allocators of their own. The workspaces of cuBLAS come from
    torch's allocator at the first product: warm up before. Keep tensors from before the block
    alive: freed inside, they lower `live_bytes` on CUDA. Python's cyclic garbage collector
    is off in the block, because it frees at unpredictable moments. A cycle counts as live until the
    block itself collects it.

    Raises ValueError for a device that holds no bytes (meta), is absent, or keeps no such account
    (mps). Raises RuntimeError if another measurement, a profiler or a fake-tensor mode is active,
    or a profiler was run inside the block.

    >>> with measured_memory("cpu") as held:
    ...     row = torch.ones(256)
    ...     held.mark("row")
    ...     pairs = row[:, None] * row
    ...     del pairs
    >>> held.phases["row"].live_bytes, held.live_bytes, held.peak_bytes
    (1024, 1024, 263168)
    """
    meter = _meter_of(torch.device(device))
    if _measuring:
        raise RuntimeError(
            f"measured_memory({str(device)!r}) in a block that is measured on {_measuring[0]!r}: "
            "use mark()"
        )
    if "FakeTensorMode" in (type(mode).__name__ for mode in _get_current_dispatch_mode_stack()):
        raise RuntimeError(
            "a FakeTensorMode is active: its tensors hold no bytes, so there is nothing to measure"
        )
    collecting = gc.isenabled()
    _measuring.append(str(device))
    try:
        gc.disable()
        meter.start()
        measured = MeasuredMemory(meter)
        try:
            yield measured
        except BaseException:
            meter.abandon()
            raise
        measured._close()
    finally:
        _measuring.clear()
        if collecting:
            gc.enable()


def why_uncounted(device: torch.device) -> str:
    """Why torch does not count the bytes that tensors hold on `device`; empty where it does.

    cudaMallocAsync queries the driver for what is in use, and leaves the bytes requested at 0.
    """
    if device.type not in MEASURED_DEVICES:
        return f"torch does not count the bytes that tensors hold on {device.type}"
    if device.type != "cuda":
        return ""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return (
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set: without a cache the allocator counts nothing; "
            "unset it"
        )
    if (backend := torch.cuda.get_allocator_backend()) != "native":
        return (
            f"the allocator {backend} counts no requested bytes: take backend: "
            "out of PYTORCH_CUDA_ALLOC_CONF"
        )
    return ""


def _meter_of(device: torch.device) -> _CpuMeter | _CachingAllocatorMeter:
    if device.type == "meta":
        raise ValueError(
            "device must hold bytes, got 'meta', whose tensors have shapes only; "
            "accounting.memory predicts their bytes"
        )
    validated_choice("device", device.type, MEASURED_DEVICES)
    return _CpuMeter() if device.type == "cpu" else _CachingAllocatorMeter(device)


class _Event(NamedTuple):
    """One report of the CPU allocator.

    `size` bytes are allocated at `address`, or freed if negative.
    """

    address: int
    size: int


def _profiler_is_on() -> bool:
    """True if a profiler session covers this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


class _CpuMeter:
    """One session of torch's profiler."""

    def __init__(self) -> None:
        self._marks = 0

    def start(self) -> None:
        if _profiler_is_on() or profiler._is_profiler_enabled:
            raise RuntimeError(
                "a profiler is active: the CPU's bytes need a profiler session of their own; "
                "stop it first"
            )
        # Without acc_events, with which torch would make an object of each event at the end.
        self._session = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with warnings.catch_warnings():
            # Torch 2.10 to 2.12 warn that a later cycle, which there is not, clears the events.
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            self._session.__enter__()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        if not _profiler_is_on():
            raise RuntimeError(_ENDED_WITHIN)
        with record_function(f"{_MARK}{self._marks}"):
            self._marks += 1

    def abandon(self) -> None:
        if _profiler_is_on():
            self._session.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def stop(self) -> list[MeasuredBytes]:
        self.mark()  # the end; a session that ended before would not show it
        self._session.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._session.export_chrome_trace(str(path))
            # Timestamps are nanoseconds since long ago, written in microseconds: a float would
            # round them.
            trace = json.loads(
                path.read_text(encoding="utf-8", errors="replace"), parse_float=Decimal
            )["traceEvents"]
        segments = _split_at_marks(trace)
        if len(segments) != self._marks:
            raise RuntimeError(_ENDED_WITHIN)
        return _bytes_of(segments)


_ENDED_WITHIN = (
    "another profiler ran inside the measured block and ended its session: "
    "profile outside the block"
)


def _split_at_marks(trace: Iterable[dict[str, Any]]) -> list[list[_Event]]:
    """The CPU allocator's reports in order of time, in one list for each mark that ends them."""
    segments: list[list[_Event]] = [[]]
    reports = (entry for entry in trace if str(entry.get("name")).startswith(("[memory]", _MARK)))
    for entry in sorted(reports, key=lambda entry: Decimal(entry["ts"])):
        arguments = entry.get("args", {})
        if entry["name"] != "[memory]":
            segments.append([])
        elif arguments["Device Type"] == 0:
            segments[-1].append(_Event(arguments["Addr"], arguments["Bytes"]))
    return segments[:-1]  # nothing after the last mark belongs to the block


def _bytes_of(segments: Sequence[Sequence[_Event]]) -> list[MeasuredBytes]:
    """MeasuredBytes of each segment, each free matched with the allocation at its address."""
    blocks: dict[int, int] = {}
    live = 0
    figures = []
    for segment in segments:
        allocated = freed = 0
        peak = live
        for address, size in segment:
            # What is freed here may be from before the block, and is no part of it. An address that
            # is allocated again was freed unseen, by another thread.
            gone = blocks.pop(address, 0)
            freed += gone
            if size > 0:
                blocks[address] = size
                allocated += size
            live += max(size, 0) - gone
            peak = max(peak, live)
        figures.append(MeasuredBytes(allocated, freed, live, peak))
    return figures


class _CachingAllocatorMeter:
    """The counters of the caching allocator of a CUDA (or ROCm) or XPU device."""

    def __init__(self, device: torch.device) -> None:
        self._api = getattr(torch, device.type)
        if not self._api.is_available():
            raise ValueError(
                f"device must be present, got {str(device)!r}, "
                f"and torch sees no {device.type} device"
            )
        if why := why_uncounted(device):
            raise RuntimeError(why)
        self._device = device
        self._readings: list[dict[str, int]] = []

    def start(self) -> None:
        self.mark()

    def abandon(self) -> None:
        pass

    def mark(self) -> None:
        self._api.synchronize(
            self._device
        )  # a block that another stream used is free once that stream is done
        self._readings.append(dict(self._api.memory_stats(self._device)))
        self._api.reset_peak_memory_stats(self._device)

    def stop(self) -> list[MeasuredBytes]:
        self.mark()
        requested, charged = "requested_bytes.all.", "allocated_bytes.all."
        start = self._readings[0]
        return [
            MeasuredBytes(
                allocated_bytes=int(end[requested + "allocated"] - begin[requested + "allocated"]),
                freed_bytes=int(end[requested + "freed"] - begin[requested + "freed"]),
                live_bytes=int(end[requested + "current"] - start[requested + "current"]),
                peak_bytes=int(end[requested + "peak"] - start[requested + "current"]),
                charged_live_bytes=int(end[charged + "current"] - start[charged + "current"]),
                charged_peak_bytes=int(end[charged + "peak"] - start[charged + "current"]),
            )
            for begin, end in pairwise(self._readings)
        ]
