"""The best rates this machine was measured at, per dtype: the denominators of every share of a ceiling.

Two regimes, which are never mixed. *Sustainable*: the median call of steady work, the clock settled under it first.
*Achievable*: the median of the five fastest calls after a rest, while an idle device still boosts. A GPU that is held
at its power limit differs between them by a tenth and more, and so does the best k: each has its own search. On a
CPU the sustainable one is all there is, unless `burst_ratio` shows a difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from time import perf_counter

import torch

from accounting.memory import element_bytes
from bench import search
from bench.products import Float32Products, Operands, product
from bench.rounds import Pace, is_flat
from prooflops import measured
from prooflops.measured import alternating, median_interval

REGIMES = ("sustainable", "achievable")
SEARCH = 10  # times the seconds of a benchmark's rounds
RESTS = (
    search.SCREENED
)  # windows of a search for bursts: the rests before them are not of its budget
PROBE = {"cpu": 256, "other": 4096}  # side of the product that tells how large the others may be
REST_S = 0.02  # the clock of an idle device is up again within some milliseconds
FASTEST = 5


class Ceilings:
    """The best rates of this machine in this run, per dtype and regime, searched for when first asked for."""

    def __init__(
        self,
        device: torch.device,
        pace: Pace,
        progress: Callable[..., None] = lambda text, ahead_s=0.0: None,
        room_bytes: Callable[[], float] = lambda: math.inf,  # for all operands together
    ) -> None:
        self._progress = progress
        self._room_bytes = room_bytes
        self._device = device
        self._pace = pace
        self._timer = measured.clock(device)
        self._found: dict[tuple[str, str], search.Found] = {}
        self._flop_per_s: dict[
            tuple[str, str], float
        ] = {}  # which a benchmark may have raised since
        self._probed: dict[str, float] = {}

    def flop_per_s(self, dtype: str, regime: str = "sustainable") -> float:
        """The ceiling of `dtype`. Raises Unsupported where the device does not multiply it."""
        if (dtype, regime) not in self._flop_per_s:
            self._flop_per_s[dtype, regime] = self.found(dtype, regime).flop_per_s
        return self._flop_per_s[dtype, regime]

    def found(self, dtype: str, regime: str = "sustainable") -> search.Found:
        """The fastest shape. Raises Unsupported, and ValueError for an unknown regime."""
        if regime not in REGIMES:
            raise ValueError(f"regime must be one of {', '.join(REGIMES)}, got {regime!r}")
        if (dtype, regime) not in self._found:
            with Float32Products(dtype):
                self._found[dtype, regime] = self._search(dtype, regime)
        return self._found[dtype, regime]

    def probed(self, dtype: str) -> float:
        """The rate of one product, known at once; the ceiling may be several times as high. Raises Unsupported."""
        if dtype not in self._probed:
            side = PROBE.get(self._device.type, PROBE["other"])
            probe = product(dtype, side, side, side, self._device)
            with Float32Products(dtype):
                times_s = measured.time(probe.multiply, self._device, warmup=1, rounds=3).times_s
            self._probed[dtype] = probe.work.flops / min(times_s)
        return self._probed[dtype]

    def remeasure(
        self, dtype: str, function: Callable[[], object], flops: int, regime: str = "sustainable"
    ) -> float:
        """The ceiling after timing once more, in its own regime, a function that exceeded it."""
        with Float32Products(dtype):
            seconds = self._seconds(function, regime)
        self._flop_per_s[dtype, regime] = max(self.flop_per_s(dtype, regime), flops / seconds)
        return self._flop_per_s[dtype, regime]

    def burst_ratio(self, dtype: str, pairs: int) -> tuple[float, float, float]:
        """The achievable over the sustainable rate of the sustainable winner, in turn, with its 95 % interval."""
        shape = self.found(dtype).shape
        multiply, _ = Operands(dtype, *shape, self._device).multiply(*shape)
        with Float32Products(dtype):
            self._settle(multiply)
            times = islice(
                alternating(lambda: self._burst_s(multiply), lambda: self._steady_s(multiply)),
                pairs,
            )
            ratios = [steady / burst for burst, steady in times]
        return median(ratios), *(median_interval(ratios) or (0.0, math.inf))

    def zeros_ratio(self, dtype: str, pairs: int) -> float:
        """Rate of zeros over the rate of random numbers: above 1, power limits the device."""
        shape = self.found(dtype).shape
        random = Operands(dtype, *shape, self._device)
        zeros = random.zeroed()
        of_random, of_zeros = (each.multiply(*shape)[0] for each in (random, zeros))
        with Float32Products(dtype):
            self._settle(of_random)
            times = alternating(lambda: self._steady_s(of_random), lambda: self._steady_s(of_zeros))
            return median(random_s / zeros_s for random_s, zeros_s in islice(times, pairs))

    def space(self, dtype: str) -> search.Space:
        """The shapes that take no longer than the pace allows, and whose operands fit the memory."""
        most_flops = self.probed(dtype) * self._pace.longest_call_s / 4
        # Two operands, the result, and two operands that are zeros; each is drawn in fp32.
        most_elements = self._room_bytes() / (5 * max(4, element_bytes(1, dtype)))
        return search.space_of(self._device, most_flops, most_elements)

    def _search(self, dtype: str, regime: str) -> search.Found:
        began = perf_counter()
        space = self.space(dtype)
        operands = Operands(dtype, max(space.m), max(space.k), max(space.n), self._device)
        bursts = regime == "achievable"
        budget_s = SEARCH * self._pace.measure_s + (RESTS * REST_S if bursts else 0.0)
        self._progress(f"searching for the {regime} one of {dtype}", budget_s)
        if not bursts:
            self._settle(operands.multiply(*space.shapes[-1])[0])
        found = search.guided(
            space,
            search.rate_on(operands, self._timer, idle_s=REST_S if bursts else 0.0),
            units=search.units_of(self._device),
            tiles=search.CPU_TILES if self._device.type == "cpu" else search.GPU_TILES,
            budget_s=budget_s,
        )
        multiply, flops = operands.multiply(*found.shape)
        seconds = self._burst_s(multiply) if bursts else self._steady_s(multiply)
        return search.Found(found.shape, flops / seconds, perf_counter() - began)

    def _settle(self, function: Callable[[], object]) -> None:
        """Steady work, without a rest between calls, until its rate is steady too."""
        pace = self._pace.settled(self._device.type)
        windows: list[float] = []
        began, elapsed = perf_counter(), 0.0
        while elapsed < pace.longest_warmup_s and not (
            elapsed >= pace.warmup_s and is_flat(windows)
        ):
            windows.append(median(search.calls_s(function, self._timer, self._pace.warmup_s)))
            elapsed = perf_counter() - began

    def _seconds(self, function: Callable[[], object], regime: str) -> float:
        """Seconds of a call in a regime, by itself."""
        if regime == "achievable":
            return self._burst_s(function)
        self._settle(function)
        return self._steady_s(function)

    def _steady_s(self, function: Callable[[], object]) -> float:
        """The median call of steady work."""
        return median(search.calls_s(function, self._timer, self._pace.measure_s / 2))

    def _burst_s(self, function: Callable[[], object]) -> float:
        """The median of the fastest calls after a rest."""
        measured.synchronise(self._device)
        time.sleep(REST_S)
        times = measured.time(function, self._device, warmup=0, rounds=2 * FASTEST).times_s
        return max(median(sorted(times)[:FASTEST]), 1e-9)
