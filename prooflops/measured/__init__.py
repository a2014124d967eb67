"""Bytes that the allocator really holds, and time by the device's own clock."""

from prooflops.measured.allocations import (
    MEASURED_DEVICES,
    MeasuredBytes,
    MeasuredMemory,
    memory,
    why_uncounted,
)
from prooflops.measured.timing import (
    Timing,
    alternating,
    clock,
    median_interval,
    one_thread,
    synchronise,
    time,
)

__all__ = [
    "MEASURED_DEVICES", "MeasuredBytes", "MeasuredMemory", "Timing", "alternating", "clock",
    "median_interval", "memory", "one_thread", "synchronise", "time", "why_uncounted",
]  # fmt: skip
