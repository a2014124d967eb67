"""The best rates measured on this machine per dtype; benchmarks report their share of them.

A ceiling is the median call of steady work, after the clock has settled, and at least as high as
every product of its run. A product in bursts is the median of the five fastest calls after a rest,
while an idle device still boosts: on a GPU at its power limit a tenth faster, or more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any

import torch

from accounting.memory import element_bytes
from bench import search
from bench.products import Operands, product
from bench.rounds import Pace, Progress, is_flat, no_progress
from prooflops import timing
from prooflops.precision import Float32Products

# Seconds of a search, in those of a benchmark's rounds; the calls of a CPU are short.
SEARCH = {"cpu": 5, "other": 10}
# Side of the product that tells how large the others may be.
PROBE = {"cpu": 256, "other": 4096}
PROBES, PROBES_IN_QUIET = 3, 30
# The clock of an idle device is up again within some milliseconds.
REST_S = 0.02
# Untimed work after a rest: the first calls find cold caches and a clock that still rises.
LEAD_S = 0.002
FASTEST = 5


@dataclass
class Ceilings:
    """The best rates of this machine in this run, per dtype, searched for when asked."""

    device: torch.device
    pace: Pace
    progress: Progress = no_progress
    room_bytes: Callable[[], float] = lambda: math.inf
    # The fastest product of the search or of a benchmark.
    _best: dict[str, search.Found] = field(default_factory=dict)
    # Rates of other functions that exceeded it.
    _remeasured: dict[str, float] = field(default_factory=dict)
    _probed: dict[str, float] = field(default_factory=dict)

    @cached_property
    def timer(self) -> Callable[[], Any]:
        return timing.clock(self.device)

    def flop_per_s(self, dtype: str) -> float:
        """The ceiling of `dtype`. Raises Unsupported where the device does not multiply it."""
        return max(self.best(dtype).flop_per_s, self._remeasured.get(dtype, 0.0))

    def best(self, dtype: str) -> search.Found:
        """The fastest shape of the search and of the products so far. Raises as `flop_per_s`."""
        if dtype not in self._best:
            with Float32Products(dtype):
                self._best[dtype] = self._search(dtype)
        return self._best[dtype]

    def probed(self, dtype: str) -> float:
        """The rate of one product, known at once; the ceiling may be several times as high.

        Raises Unsupported.
        """
        return self._probed.get(dtype) or self._probe(dtype, PROBES)

    def quietly(self, dtype: str) -> float:
        """The best of the ceiling and, on a CPU, of one product in a quiet moment now.

        Other work may have slowed the whole search. Raises Unsupported.
        """
        ceiling = self.flop_per_s(dtype)
        if self.device.type != "cpu":
            return ceiling
        probe_s = 2 * PROBE["cpu"] ** 3 / self.probed(dtype)
        rounds = int(self.pace.longest_call_s / probe_s)
        return max(ceiling, self._probe(dtype, max(2, min(rounds, PROBES_IN_QUIET))))

    def _probe(self, dtype: str, rounds: int) -> float:
        side = PROBE.get(self.device.type, PROBE["other"])
        probe = product(dtype, side, side, side, self.device)
        with Float32Products(dtype):
            times_s = timing.time(probe.multiply, self.device, warmup=1, rounds=rounds).times_s
        rate = max(self._probed.get(dtype, 0.0), probe.work.flops / min(times_s))
        self._probed[dtype] = rate
        return rate

    def remeasure(self, dtype: str, function: Callable[[], object], flops: int) -> float:
        """The ceiling after timing once more a function that exceeded it."""
        with Float32Products(dtype):
            rate = flops / self._steady_s(function)
        self._remeasured[dtype] = max(self._remeasured.get(dtype, 0.0), rate)
        return self.flop_per_s(dtype)

    def keep(self, dtype: str, shape: search.Shape, flop_per_s: float) -> float:
        """The ceiling after a product of this shape and rate: it is at least that."""
        if flop_per_s > self.best(dtype).flop_per_s:
            self._best[dtype] = search.Found(shape, flop_per_s)
        return self.flop_per_s(dtype)

    def burst_s(self, dtype: str, function: Callable[[], object]) -> float:
        """The median of the fastest calls after a rest."""
        with Float32Products(dtype):
            self.rest_before(function)()
            times = timing.time(function, self.device, warmup=0, rounds=2 * FASTEST).times_s
        return max(median(sorted(times)[:FASTEST]), 1e-9)

    def rest_before(self, function: Callable[[], object]) -> Callable[[], None]:
        """A rest before a burst, then untimed calls until the device is at full speed.

        The clock of a device that rested shortly is up again within some milliseconds of work.
        """
        once_s = timing.time(function, self.device, warmup=1, rounds=2).median_s
        lead = max(1, math.ceil(LEAD_S / max(once_s, 1e-9)))

        def rest() -> None:
            timing.synchronise(self.device)
            time.sleep(REST_S)
            for _ in range(lead):
                function()

        return rest

    def shapes(self, dtype: str) -> list[search.Shape]:
        """The shapes that the pace allows and whose operands fit the memory."""
        most_flops = self.probed(dtype) * self.pace.longest_call_s / 4
        # Two operands, the result, and two more while they are drawn, each in fp32.
        most_elements = self.room_bytes() / (5 * max(4, element_bytes(1, dtype)))
        return search.shapes(self.device.type, most_flops, most_elements)

    def _search(self, dtype: str) -> search.Found:
        shapes = self.shapes(dtype)
        m, k, n = (max(sizes) for sizes in zip(*shapes, strict=True))
        operands = Operands(dtype, m, k, n, self.device)
        budget_s = SEARCH.get(self.device.type, SEARCH["other"]) * self.pace.measure_s
        self.progress(f"searching for the fastest product of {dtype}", budget_s)
        largest, _ = operands.multiply(*shapes[-1])
        self._settle(largest, self.pace.settled(self.device.type))
        shape = search.fastest(shapes, operands, self.timer, budget_s / (2 * len(shapes)))
        multiply, flops = operands.multiply(*shape)
        return search.Found(shape, flops / self._steady_s(multiply))

    def _settle(self, function: Callable[[], object], pace: Pace) -> None:
        """Steady work, without a rest between calls, until its rate is steady too."""
        windows: list[float] = []
        began, elapsed = perf_counter(), 0.0
        while elapsed < pace.longest_warmup_s and not (
            elapsed >= pace.warmup_s and is_flat(windows)
        ):
            windows.append(median(search.calls_s(function, self.timer, self.pace.warmup_s)))
            elapsed = perf_counter() - began

    def _steady_s(self, function: Callable[[], object]) -> float:
        """The median call of steady work, of a dtype that was settled before."""
        self._settle(function, self.pace.resettled(self.device.type))
        return median(search.calls_s(function, self.timer, self.pace.measure_s / 2))
