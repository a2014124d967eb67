"""Operand sizes that fit the device's free memory, or that its bandwidth moves in a given time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from accounting.devices import ACCELERATORS, bandwidth_bytes_per_s
from prooflops.machine import device as machine

# Share for one test's operands and results; workspaces and fragments need the rest.
SHARE_OF_FREE = 0.75
# For a device without a bandwidth on record: the fastest one, so that operands are never too small.
FASTEST_BYTES_PER_S = max(bandwidth_bytes_per_s(row) or 0.0 for row in ACCELERATORS.values())


class Sizing:
    """The fixture `sizing`: sizes for the device under test."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def room_bytes(self) -> float:
        """Bytes of free device memory that one test may use; infinite if unknown."""
        free = machine.free_bytes(self._device)
        return float("inf") if free is None else SHARE_OF_FREE * free

    def fitting(self, wanted: int, bytes_of: Callable[[int], float], least: int = 1) -> int:
        """Halves `wanted` until `bytes_of` it fits.

        Below `least`, skips and states the bytes needed.
        """
        __tracebackhide__ = True
        room = self.room_bytes()
        size = wanted
        while size >= least:
            if bytes_of(size) <= room:
                return size
            size //= 2
        need = bytes_of(least) / SHARE_OF_FREE
        free = room / SHARE_OF_FREE
        pytest.skip(
            f"needs {need / 2**30:.3g} GiB of free memory, {self._device} has {free / 2**30:.3g}"
        )

    def require(self, nbytes: float) -> None:
        """Skips a test whose operands and results, `nbytes` in all, do not fit."""
        __tracebackhide__ = True
        self.fitting(1, lambda _: nbytes)

    def bytes_moved_in(self, seconds: float) -> int:
        """Bytes that the device's memory moves in `seconds`, at the bandwidth on record."""
        on_record = bandwidth_bytes_per_s(machine.accelerator(self._device))
        return int(seconds * (on_record or FASTEST_BYTES_PER_S))
