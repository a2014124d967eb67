"""Peaks of the device under test: the vendor's, the user's (`--peak`), a CPU's derived bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from accounting.devices import MATRIX_DTYPES
from accounting.devices.floors import published_mfu
from prooflops.machine import cpu_clock
from prooflops.machine import device as machine
from prooflops.suite.options import named_number
from prooflops_gate.console.tables import engineering, share

# The key of peaks that follow from a CPU's cores, FLOPs per clock and clock.
DERIVED = "derived"
# Beyond these the unit is wrong: 989 for 989e12, or 989e15.
LEAST_FLOP_PER_S, LARGEST_FLOP_PER_S = 1e9, 1e17


def stated_peaks(words: Iterable[str]) -> dict[str, float]:
    """The peaks in FLOP/s per dtype from `--peak DTYPE=FLOP_PER_S`. Raises ValueError.

    >>> stated_peaks(["bf16=989e12", "fp8_e4m3=1979e12"])
    {'bf16': 989000000000000.0, 'fp8_e4m3': 1979000000000000.0}
    >>> stated_peaks(["bf16=989"])
    Traceback (most recent call last):
    ValueError: --peak bf16=989: 989 FLOP/s is not a peak; in FLOP/s, 989 TFLOP/s is bf16=989e12
    """
    found: dict[str, float] = {}
    for word in words:
        dtype, value = named_number(word, "--peak", "dtype", MATRIX_DTYPES)
        if not LEAST_FLOP_PER_S <= value <= LARGEST_FLOP_PER_S:
            raise ValueError(
                f"--peak {word}: {engineering(value, 'FLOP/s')} is not a peak; "
                "in FLOP/s, 989 TFLOP/s is bf16=989e12"
            )
        found[dtype] = value
    return found


@dataclass(frozen=True)
class Peaks:
    """The peaks of a device per dtype; the vendor's takes precedence over the user's."""

    device: torch.device
    stated: Mapping[str, float] = field(default_factory=dict)

    def flop_per_s(self, dtype: str) -> float | None:
        """The vendor's dense peak, else the user's; None without either."""
        on_record = machine.peak_flop_per_s(self.device, dtype)
        return self.stated.get(dtype) if on_record is None else on_record

    @property
    def used(self) -> dict[str, float]:
        """The user's peaks for dtypes without a vendor's peak."""
        return {
            key: value
            for key, value in self.stated.items()
            if machine.peak_flop_per_s(self.device, key) is None
        }

    @cached_property
    def derived(self) -> dict[str, float]:
        """A CPU's peaks per dtype at the first clock, where its features tell them.

        One that the user states counts instead.
        """
        if self.device.type != "cpu":
            return {}
        try:
            clock_hz = cpu_clock.clock_hz()
        except cpu_clock.NoClock:
            return {}
        found = {
            dtype: machine.flop_per_s_at_clock(self.device, dtype, clock_hz)
            for dtype in MATRIX_DTYPES
            if dtype not in self.used
        }
        return {dtype: peak for dtype, peak in found.items() if peak}

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The peaks not from the vendor, by origin, for the record."""
        return {"by --peak": self.used, DERIVED: self.derived}

    def headline(self) -> list[str]:
        """Header lines: the user's peaks and unused ones.

        A CPU's own follow from a clock, which the end of the run names with them.
        """

        used = self.used
        unused = {dtype: peak for dtype, peak in self.stated.items() if dtype not in used}
        found = {
            "dense peak by --peak": used,
            "--peak not used, as the vendor's is on record": unused,
        }
        return [f"{origin}: {listed(peaks)}" for origin, peaks in found.items() if peaks]


def listed(peaks: Mapping[str, float]) -> str:
    """Peaks as text: "fp32 192 GFLOP/s, bf16 989 TFLOP/s"."""
    return ", ".join(f"{dtype} {engineering(peak, 'FLOP/s')}" for dtype, peak in peaks.items())


def share_of_peak(extra: Mapping[str, Any], peaks: Mapping[str, Mapping[str, float]]) -> str:
    """A table cell: the benchmark's share of its dense peak, or of the bandwidth for a stream.

    It says where a peak comes from that is not the vendor's. `peaks` come from `Peaks.as_dict`.
    """
    if "mfu" not in extra:
        return share(extra.get("mbu"), "-")
    if extra["mfu"] is not None:
        stated = extra.get("peak_flop_per_s") in peaks.get("by --peak", {}).values()
        return share(extra["mfu"], "-") + (" (--peak)" if stated else "")
    bound, rate = peaks.get(DERIVED, {}).get(str(extra.get("dtype"))), extra.get("flop_per_s")
    return share(rate / bound, "-") if bound and rate else "no peak on record"


def published_mfu_text() -> str:
    """The MFU of each published training run, with its device."""
    return ", ".join(
        f"{run['run']} {100 * run['mfu'][0]:.0f} % on {run['device']}" for run in published_mfu()
    )
