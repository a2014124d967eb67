"""Vendor figures of accelerators (peaks per dtype, bandwidth, memory), and rates of CPUs."""

from accounting.devices.lookup import ACCELERATORS, device_called, device_named, device_of
from accounting.devices.peaks import CPU_PATHS, FLOP_PER_CLOCK, ROWS, Accelerator, Figure
from accounting.devices.rates import (
    MATRIX_DTYPES,
    bandwidth_bytes_per_s,
    clock_scaled_peak_flop_per_s,
    cpu_flops_per_cycle,
    cpu_peak_flop_per_s,
    flop_per_s,
    has_dtype,
    memory_bytes,
    nominal_clock_mhz,
    peak_flop_per_s,
    usable_bytes,
)

__all__ = [
    "ACCELERATORS", "CPU_PATHS", "FLOP_PER_CLOCK", "MATRIX_DTYPES", "ROWS", "Accelerator", "Figure",
    "bandwidth_bytes_per_s", "clock_scaled_peak_flop_per_s", "cpu_flops_per_cycle",
    "cpu_peak_flop_per_s", "device_called", "device_named", "device_of", "flop_per_s", "has_dtype",
    "memory_bytes", "nominal_clock_mhz",
    "peak_flop_per_s", "usable_bytes",
]  # fmt: skip
