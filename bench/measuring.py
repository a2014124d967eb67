"""How a benchmark is measured: warm-up, rounds, the rate, its share of the two ceilings, and the bound it must obey."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest
import torch

from accounting import measured
from accounting.roofline import Work, mfu
from bench.products import product

# Raised whenever the way of measuring changes: figures of different methods are not compared.
METHOD = 1


@dataclass(frozen=True)
class Pace:
    """How long one benchmark may take."""

    warmup_s: float
    measure_s: float
    longest_call_s: float
    most_rounds: int = 1000


PACES = {"quick": Pace(0.02, 0.1, 0.1), "default": Pace(0.1, 0.4, 0.4), "thorough": Pace(0.5, 3.0, 5.0)}
FEWEST_ROUNDS = 5
SHORTEST_ROUND_S = 1e-4  # a thousand times the resolution of the host's clock, two hundred times that of CUDA events


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


class Measure:
    """The fixture `measure`: runs one benchmark by pytest-benchmark and puts its figures into `extra_info`."""

    def __init__(
        self,
        benchmark: Any,
        device: torch.device,
        pace: Pace,
        peak_flop_per_s: Callable[[str], float | None],
        bound_flop_per_s: Callable[[str], float | None],
    ) -> None:
        self._benchmark = benchmark
        self._device = device
        self._pace = pace
        self._peak_flop_per_s = peak_flop_per_s
        self._bound_flop_per_s = bound_flop_per_s

    def median_s(self, function: Callable[[], object], **declared: object) -> float:
        """Median time of `function` in seconds: warmed up, in rounds that the clock resolves.

        `declared` goes to the record beside method, rounds and calls per round. Raises AssertionError for a time that
        is not positive: then the device was not waited for.
        """
        once = self._warm_up(function)
        calls = max(1, math.ceil(SHORTEST_ROUND_S / once))
        rounds = min(max(math.ceil(self._pace.measure_s / (calls * once)), FEWEST_ROUNDS), self._pace.most_rounds)
        self._benchmark.extra_info.update(declared, method=METHOD, rounds=rounds, calls_per_round=calls)
        self._benchmark.pedantic(function, rounds=rounds, iterations=calls, warmup_rounds=0)
        if self._benchmark.stats is None:
            pytest.skip("pytest-benchmark is switched off in this run")
        seconds = float(self._benchmark.stats["median"])
        assert seconds > 0, f"the median time is {seconds} s, but should be positive: was the device waited for?"
        return seconds

    def declare(self, **figures: object) -> None:
        """Puts further figures into the benchmark's record."""
        self._benchmark.extra_info.update(figures)

    def product(self, function: Callable[[], object], dtype: str, work: Work, ceilings: Ceilings) -> None:
        """Measures a product and asserts that its rate obeys the physical bound of the device."""
        seconds = self.median_s(function, dtype=dtype, flops=work.flops, bytes=work.bytes)
        rate, peak, bound = work.flops / seconds, self._peak_flop_per_s(dtype), self._bound_flop_per_s(dtype)
        ceiling = ceilings.flop_per_s(dtype)
        remeasured = rate > ceiling
        if remeasured:
            ceiling = ceilings.remeasure(dtype, function, work.flops)
        self._benchmark.extra_info.update(
            {"op_per_s" if dtype == "int8" else "flop_per_s": rate},
            peak_flop_per_s=peak,
            mfu=mfu(work.flops, seconds, peak),
            ceiling_flop_per_s=ceiling,
            ceiling_remeasured=remeasured,
            share_of_ceiling=rate / ceiling,
        )
        assert_within_bound(rate, bound, f"{dtype} product on {self._device}")

    def _warm_up(self, function: Callable[[], object]) -> float:
        """Calls `function` until the time for it is up, and returns how long a call takes once warm."""
        timer, seconds = measured.clock(self._device), []
        while sum(seconds) < self._pace.warmup_s:
            start = timer()
            function()
            seconds.append(max(timer() - start, 1e-9))
        return median(seconds[1:] or seconds)


def assert_within_bound(rate: float, bound: float | None, what: str) -> None:
    """A rate above what the units can do at their highest clock is an error of measurement, never a record."""
    __tracebackhide__ = True
    assert bound is None or rate <= bound, (
        f"{what}: measured {rate:.4g} FLOP/s, but its units do at most {bound:.4g}: the FLOPs or the clock are wrong"
    )
