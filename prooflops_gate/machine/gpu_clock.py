"""The cycles that a GPU spends on the rounds of a benchmark.

A card lowers its clock with its power and temperature: an H200 from 1.98 to 1.2 GHz within a run.
Rounds then take longer, and as many cycles. Standard library, and pynvml if it is installed.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

from prooflops_gate.machine import nvml
from prooflops_gate.unpatched import time

# Readings are so far apart that these, 50 µs each, are 2 % of a benchmark's time.
EVERY_S = 0.002


class Cycles:
    """The fewest cycles of a call of one benchmark, and the clocks that were read."""

    def __init__(self) -> None:
        self.fewest = math.inf
        self.lowest_hz, self.highest_hz = math.inf, 0.0
        self._clock_hz: float | None = None
        self._read_at = -math.inf

    def look(self) -> float | None:
        """The clock now, read again after EVERY_S; None where it is unknown."""
        now = time.perf_counter()
        if now - self._read_at >= EVERY_S:
            self._clock_hz, self._read_at = clock_hz(), now
        return self._clock_hz

    def add(self, seconds: float, before_hz: float | None) -> None:
        """Adds a round that took so long a call, by the mean of the clocks before and after it."""
        after_hz = self.look()
        if before_hz is None or after_hz is None:
            return
        self.fewest = min(self.fewest, seconds * (before_hz + after_hz) / 2)
        self.lowest_hz = min(self.lowest_hz, before_hz, after_hz)
        self.highest_hz = max(self.highest_hz, before_hz, after_hz)

    @property
    def figures(self) -> dict[str, float]:
        """The cycles, and the lowest and the highest clock in Hz; empty where none is known."""
        if not self.highest_hz:
            return {}
        return {
            "cycles": self.fewest,
            "lowest_hz": self.lowest_hz,
            "highest_hz": self.highest_hz,
        }


def clock_hz() -> float | None:
    """The clock of the GPU that torch uses; None where it uses none, or NVML does not tell."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Asking would make a context on the device.
    if cuda is None or not cuda.is_initialized():
        return None
    return nvml.clock_hz(_card(cuda.current_device()))


@cache
def _card(index: int) -> Any:
    properties = sys.modules["torch"].cuda.get_device_properties(index)
    return nvml.card(getattr(properties, "uuid", None))
