"""The best rates this machine was measured at, per dtype: the denominators of every share of a ceiling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accounting import measured
from bench.products import product

if TYPE_CHECKING:
    from bench.measuring import Pace


class Ceilings:
    """The best rates this machine was measured at in this run, per dtype: square products, up to what time allows."""

    SIDES = (256, 512, 1024, 2048, 4096, 8192)

    def __init__(self, device: torch.device, pace: Pace) -> None:
        self._device = device
        self._pace = pace
        self._flop_per_s: dict[str, float] = {}

    def flop_per_s(self, dtype: str) -> float:
        """The ceiling of `dtype`. Raises Unsupported where the device does not multiply it."""
        if dtype not in self._flop_per_s:
            self._flop_per_s[dtype] = self._search(dtype)
        return self._flop_per_s[dtype]

    def remeasure(self, dtype: str, function: Callable[[], object], flops: int) -> float:
        """The ceiling after timing once more a function that exceeded it."""
        self._flop_per_s[dtype] = max(self.flop_per_s(dtype), flops / self._fastest_s(function))
        return self._flop_per_s[dtype]

    def _search(self, dtype: str) -> float:
        best = 0.0
        for side in self.SIDES:
            candidate = product(dtype, side, side, side, self._device)
            seconds = self._fastest_s(candidate.multiply)
            best = max(best, candidate.work.flops / seconds)
            if 8 * seconds > self._pace.longest_call_s:  # the next side does eight times the work
                break
        return best

    def _fastest_s(self, function: Callable[[], object]) -> float:
        once = measured.time(function, self._device, warmup=1, rounds=2).median_s
        rounds = min(max(math.ceil(self._pace.measure_s / 4 / max(once, 1e-9)), 3), 200)
        return min(measured.time(function, self._device, warmup=0, rounds=rounds).times_s)
