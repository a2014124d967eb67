"""Guided search for the shape (m, k, n) at which a device multiplies fastest.

Not a grid: the sizes of the output are ranked by how well their tiles fill whole waves of the device's units (SMs or
cores), in both orientations, because the transposed shape is another kernel; k is then searched apart. Short timings
choose, and only the finalists are timed again, in turn, so that the best of many noisy figures does not flatter itself.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch
from scipy.stats import bootstrap

from accounting import measured
from bench.products import DTYPES, product

Shape = tuple[int, int, int]
Rate = Callable[[Shape, float], float]  # FLOP/s of a shape, timed for a share of a full window

SCREEN = 0.25  # of a full window
FINALISTS = 3
RETIMINGS = 2


@dataclass(frozen=True)
class Space:
    """The sizes among which is searched; a shape is any combination."""

    m: tuple[int, ...]
    k: tuple[int, ...]
    n: tuple[int, ...]

    @property
    def shapes(self) -> list[Shape]:
        return [(m, k, n) for m in self.m for k in self.k for n in self.n]


@dataclass(frozen=True)
class Found:
    """The winner of a search, its rate, and the windows that were spent on finding it."""

    shape: Shape
    flop_per_s: float
    windows: float


def wave_efficiency(m: int, n: int, units: int, tile: tuple[int, int]) -> float:
    """Share of the units' time that goes into outputs asked for: m·n / (waves·units·tile area)."""
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
    return m * n / (math.ceil(tiles / units) * units * tile[0] * tile[1])


def orientations(tiles: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each tile and its transpose."""
    return sorted({turned for tile in tiles for turned in (tile, tile[::-1])})


def outputs(space: Space, units: int, tiles: Iterable[tuple[int, int]], each: int) -> list[tuple[int, int]]:
    """The `each` (m, n) that fill whole waves best under each tile, larger first among equals."""
    chosen: dict[tuple[int, int], None] = {}
    for tile in tiles:
        ranked = sorted(
            ((m, n) for m in space.m for n in space.n),
            key=lambda size, tile=tile: (-round(wave_efficiency(*size, units, tile), 2), -size[0] * size[1]),
        )
        chosen.update(dict.fromkeys(ranked[:each]))
    return list(chosen)


def guided(space: Space, rate: Rate, *, units: int, tiles: Sequence[tuple[int, int]], budget: float = 1 / 20) -> Found:
    """The best shape found within `budget` of the windows that an exhaustive sweep of `space` takes.

    `rate(shape, share)` times a shape for that share of a window. Raises ValueError for a budget that is too small for
    a single screening and the final re-timings.
    """
    allowed = budget * len(space.shapes)
    reserve = FINALISTS * RETIMINGS
    screenings = int((allowed - reserve) / SCREEN)
    if screenings < 1:
        raise ValueError(f"budget must allow {reserve + SCREEN} windows at least, got {budget} of {len(space.shapes)}")
    seen: dict[Shape, float] = {}

    def screen(shape: Shape) -> None:
        if shape not in seen and len(seen) < screenings:
            seen[shape] = rate(shape, SCREEN)

    first_k = space.k[len(space.k) // 2]
    both = orientations(tiles)
    for m, n in outputs(space, units, both, max(1, screenings // (2 * len(both)))):
        screen((m, first_k, n))
    for m, _, n in sorted(seen, key=seen.__getitem__, reverse=True)[:FINALISTS]:
        for k in space.k:
            screen((m, k, n))
    finalists = sorted(seen, key=seen.__getitem__, reverse=True)[:FINALISTS]
    again: dict[Shape, list[float]] = {shape: [] for shape in finalists}
    for turn in range(RETIMINGS):
        for shape in finalists if turn % 2 == 0 else finalists[::-1]:
            again[shape].append(rate(shape, 1.0))
    best = max(finalists, key=lambda shape: median(again[shape]))
    return Found(best, median(again[best]), len(seen) * SCREEN + len(finalists) * RETIMINGS)


def exhaustive(space: Space, rate: Rate) -> Found:
    """The shape whose full window was the fastest of all."""
    rates = {shape: rate(shape, 1.0) for shape in space.shapes}
    best = max(rates, key=rates.__getitem__)
    return Found(best, rates[best], float(len(rates)))


# ---- the demonstration: python -m bench.search -------------------------------------------------------------------


def _rate_on(device: torch.device, dtype: str, window_s: float) -> Rate:
    """Times products on `device`: the median call of a share of a window."""

    def rate(shape: Shape, share: float) -> float:
        case = product(dtype, *shape, device)
        case.multiply()
        measured.synchronise(device)
        times: list[float] = []
        began = perf_counter()
        while len(times) < 2 or perf_counter() - began < window_s * share:
            times += measured.time(case.multiply, device, warmup=0, rounds=2).times_s
        return case.work.flops / median(times)

    return rate


def compared(rate: Rate, one: Shape, other: Shape, pairs: int) -> tuple[float, float, float]:
    """Ratio of the rates of `one` and `other`, timed in ABBA order, with its 95 % bootstrap interval."""
    ratios = []
    for turn in range(pairs):
        order = (one, other) if turn % 2 == 0 else (other, one)
        rates = [rate(shape, 1.0) for shape in order]
        ratios.append(rates[0] / rates[1] if turn % 2 == 0 else rates[1] / rates[0])
    interval = bootstrap((np.log(ratios),), np.median, method="percentile").confidence_interval
    return median(ratios), math.exp(interval.low), math.exp(interval.high)


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.search", description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--window-s", type=float, default=0.04)
    parser.add_argument("--pairs", type=int, default=16)
    given = parser.parse_args()
    gpu = given.device.type == "cuda"  # the CUDA side has not been run
    sizes = tuple(1024 * i for i in range(2, 10)) if gpu else (64, 128, 192, 256, 384, 512, 768, 1024)
    space = Space(sizes, sizes, sizes)
    units = torch.cuda.get_device_properties(given.device).multi_processor_count if gpu else torch.get_num_threads()
    rate = _rate_on(given.device, given.dtype, given.window_s)
    began = perf_counter()
    found = guided(space, rate, units=units, tiles=((128, 256), (128, 128)) if gpu else ((64, 64), (48, 32)))
    guided_s, began = perf_counter() - began, perf_counter()
    print(f"{given.dtype}: guided {found.shape} {found.flop_per_s / 1e9:.1f} GFLOP/s in {guided_s:.1f} s", flush=True)
    swept = exhaustive(space, rate)
    swept_s = perf_counter() - began
    print(
        f"exhaustive, {len(space.shapes)} shapes: {swept.shape} {swept.flop_per_s / 1e9:.1f} GFLOP/s in {swept_s:.1f} s"
    )
    ratio, low, high = compared(rate, found.shape, swept.shape, given.pairs)
    print(f"timed again in turn: guided/exhaustive {ratio:.4f} [{low:.4f}, {high:.4f}]; time {guided_s / swept_s:.1%}")


if __name__ == "__main__":
    main()
