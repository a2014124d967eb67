"""Guided search for the shape (m, k, n) at which a device multiplies fastest.

A grid would take too long. Instead:

1. The sizes (m, n) of the output are ranked by how well their tiles fill whole waves of the
   device's units (SMs or cores). (n, m) is ranked apart, because it is another kernel.
2. k is searched for the best outputs, and then the neighbours of the best shapes are.
3. Short windows choose the finalists. These are timed again in turn, with windows that grow as the
   finalists get fewer: the highest of many noisy figures would be too high.

A window's figure is the lower quartile of its calls, because interruptions only lengthen calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch

from bench.products import Operands
from prooflops import timing

Shape = tuple[int, int, int]
# A rate multiplies a shape for a number of seconds, and returns its FLOP/s.
Rate = Callable[[Shape, float], float]

# The share of the budget that is spent at the end of each stage of the screening.
SHARES = {"outputs": 0.3, "k": 0.45, "neighbours": 0.6}
# The budget divided by this is the length of a window of the screening.
WINDOWS_IN_BUDGET = 100
FINALISTS = 6


@dataclass(frozen=True)
class Space:
    """The sizes to search; a shape is any combination of them."""

    m: tuple[int, ...]
    k: tuple[int, ...]
    n: tuple[int, ...]

    @property
    def shapes(self) -> list[Shape]:
        return [(m, k, n) for m in self.m for k in self.k for n in self.n]

    def neighbours(self, shape: Shape) -> Iterator[Shape]:
        """The transposed shape, then the shapes that are one step away in one size."""
        m, k, n = shape
        if n in self.m and m in self.n:
            yield n, k, m
        for place, sizes in enumerate((self.m, self.k, self.n)):
            at = sizes.index(shape[place])
            smaller = sizes[max(at - 1, 0) : at]
            larger = sizes[at + 1 : at + 2]
            for other in smaller + larger:
                moved = list(shape)
                moved[place] = other
                yield moved[0], moved[1], moved[2]


@dataclass(frozen=True)
class Found:
    """The winner of a search, its rate, and how long it took to find it."""

    shape: Shape
    flop_per_s: float
    seconds: float


def wave_efficiency(m: int, n: int, units: int, tile: tuple[int, int]) -> float:
    """The share of the units' time that useful outputs take: m·n / (waves·units·tile area).

    >>> wave_efficiency(1408, 3072, 132, (128, 256)), wave_efficiency(128, 256, 132, (128, 256))
    (1.0, 0.007575757575757576)
    """
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
    return m * n / (math.ceil(tiles / units) * units * tile[0] * tile[1])


def outputs(space: Space, units: int, tiles: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All (m, n), each once, in turn from the rankings of the tiles and their transposes.

    The first of each ranking are followed by the second ones, and so on.
    """
    both = {*tiles, *((width, height) for height, width in tiles)}
    rankings = [ranking(space, units, tile) for tile in sorted(both)]
    found: dict[tuple[int, int], None] = {}
    for sizes in zip(*rankings, strict=True):
        found |= dict.fromkeys(sizes)
    return list(found)


def ranking(space: Space, units: int, tile: tuple[int, int]) -> list[tuple[int, int]]:
    """All (m, n), sorted by how well their tiles fill whole waves, then from large to small."""

    def rank(size: tuple[int, int]) -> tuple[float, int]:
        m, n = size
        return -round(wave_efficiency(m, n, units, tile), 2), -m * n

    return sorted(((m, n) for m in space.m for n in space.n), key=rank)


def guided(
    space: Space,
    rate: Rate,
    *,
    units: int,
    tiles: Sequence[tuple[int, int]],
    budget_s: float,
    clock: Callable[[], float] = perf_counter,
) -> Found:
    """The best shape found within `budget_s`, by the stages in the module's docstring."""
    began = clock()
    seen: dict[Shape, float] = {}

    def screen(shapes: Iterable[Shape], until: float) -> None:
        for shape in shapes:
            if seen and clock() - began > until * budget_s:
                return
            if shape not in seen:
                seen[shape] = rate(shape, budget_s / WINDOWS_IN_BUDGET)

    def best(number: int) -> list[Shape]:
        return sorted(seen, key=seen.__getitem__, reverse=True)[:number]

    middle = space.k[len(space.k) // 2]
    screen(((m, middle, n) for m, n in outputs(space, units, tiles)), SHARES["outputs"])
    screen(((m, k, n) for m, _, n in best(3) for k in space.k), SHARES["k"])
    screen((near for shape in best(3) for near in space.neighbours(shape)), SHARES["neighbours"])
    winner, flop_per_s = final(best(FINALISTS), seen, rate, lambda: budget_s - (clock() - began))
    return Found(winner, flop_per_s, clock() - began)


def final(
    shapes: Sequence[Shape], seen: Mapping[Shape, float], rate: Rate, left_s: Callable[[], float]
) -> tuple[Shape, float]:
    """The best of a few shapes, and its rate.

    A turn times each shape twice, in one order and in the reverse. Then the half with the lower
    median rates is dropped. All turns take the same time, so windows grow as the shapes get fewer.
    A turn that does not fit into the time left is not begun: then the rates in `seen` decide.
    """
    left = list(shapes)
    again: dict[Shape, list[float]] = {shape: [] for shape in left}
    while len(left) > 1:
        turns = math.ceil(math.log2(len(left)))
        window = left_s() / turns / (2 * len(left))
        # A shape has two windows, each of two calls at least, the first of them untimed.
        calls = 2 * 2
        shortest_turn_s = sum(calls * flops_of(shape) / seen[shape] for shape in left)
        if shortest_turn_s > left_s():
            break
        for shape in (*left, *reversed(left)):
            again[shape].append(rate(shape, window))
        left.sort(key=lambda shape: median(again[shape]), reverse=True)
        left = left[: math.ceil(len(left) / 2)]
    winner = left[0]
    return winner, median(again[winner] or [seen[winner]])


def flops_of(shape: Shape) -> int:
    return 2 * math.prod(shape)


# BLAS libraries compute outputs in blocks of about these sizes.
CPU_TILES = ((64, 64), (48, 32))
GPU_TILES = ((128, 256), (128, 128))


def units_of(device: torch.device) -> int:
    """The number of units that work on tiles at once: SMs of a GPU, threads of a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).max_compute_units)
    return torch.get_num_threads()


def space_of(
    device: torch.device, most_flops: float = math.inf, most_elements: float = math.inf
) -> Space:
    """Sizes at which a device is fast.

    The largest product costs at most `most_flops`, and its matrices have at most `most_elements`
    each.
    """
    if device.type == "cpu":
        sizes: tuple[int, ...] = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
        depths = sizes
    else:
        multiples = {1024 * each for each in (1, 2, 3, 4, 6, 8, 10, 12, 16)}
        sizes = tuple(sorted(multiples | whole_waves(units_of(device))))
        depths = tuple(1024 * each for each in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32))
    while len(sizes) > 2 and (2 * sizes[-1] ** 3 > most_flops or sizes[-1] ** 2 > most_elements):
        sizes = sizes[:-1]
    side = sizes[-1]

    def fits(k: int) -> bool:
        return 2 * side**2 * k <= most_flops and side * k <= most_elements

    return Space(sizes, tuple(filter(fits, depths)) or depths[:1], sizes)


def whole_waves(units: int) -> set[int]:
    """Sides of the outputs whose tiles are one whole wave, with one tile for each unit.

    132 SMs compute 11 by 12 tiles of 128 x 256. The set is empty if the tiles would form a strip.

    >>> sorted(whole_waves(132))
    [1408, 1536, 2816, 3072]
    """
    rows = max(each for each in range(1, math.isqrt(units) + 1) if units % each == 0)
    columns = units // rows
    if columns > 4 * rows:
        return set()
    return {tiles * side for tiles in (rows, columns) for side in GPU_TILES[0]}


def rate_on(
    operands: Operands,
    timer: Callable[[], Any],
    clock_share: Callable[[], float | None] = lambda: None,
    *,
    idle_s: float = 0.0,
) -> Rate:
    """A rate that times the calls of a window, after the device has rested for `idle_s`.

    If `clock_share` knows the share of the highest clock, the rate is scaled to the highest. Under
    a power limit the clock depends on the work of the last half second. Without the scaling, a
    short window would measure the shapes before it.
    """

    def rate(shape: Shape, window_s: float) -> float:
        multiply, flops = operands.multiply(*shape)
        # The library chooses a kernel in the first call.
        multiply()
        if idle_s:
            timing.synchronise(operands.device)
            sleep(idle_s)
        shares: list[float | None] = []
        times = sorted(calls_s(multiply, timer, window_s, lambda: shares.append(clock_share())))
        share = shares[0] or 1.0
        return flops / times[len(times) // 4] / share

    return rate


def calls_s(
    function: Callable[[], object],
    timer: Callable[[], Any],
    window_s: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[float]:
    """Seconds of each call within a window, of one call at least.

    Readings are subtracted only after the window, because subtracting waits for the device, which
    would then rest between calls. Before the subtraction, while an accelerator still works,
    `meanwhile` is called.
    """
    start = timer()
    function()
    once = max(timer() - start, 1e-9)
    moments = []
    for _ in range(int(window_s / once)):
        start = timer()
        function()
        moments.append((start, timer()))
    meanwhile()
    return [max(stop - start, 1e-9) for start, stop in moments] or [once]
