"""Guided search for the shape (m, k, n) at which a device multiplies fastest.

Not a grid: the sizes of the output are ranked by how well their tiles fill whole waves of the
device's units (SMs or cores), in both orientations, because the transposed shape is another kernel;
k is then searched apart, and so are the neighbours of the best. Short windows choose, and only the
finalists are timed again, in turn and with windows that grow as they get fewer, so that the best of
many noisy figures does not flatter itself. A window's figure is the lower quartile of its calls:
interruptions only lengthen calls.
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
from prooflops import measured

Shape = tuple[int, int, int]
# FLOP/s of a shape, by calls for some seconds.
Rate = Callable[[Shape, float], float]

# The share of the budget that is spent at the end of each stage of the screening.
SHARES = {"outputs": 0.3, "k": 0.45, "neighbours": 0.6}
# Windows that the screening is cut into.
SCREENED = 100
FINALISTS = 6


@dataclass(frozen=True)
class Space:
    """The sizes among which is searched; a shape is any combination."""

    m: tuple[int, ...]
    k: tuple[int, ...]
    n: tuple[int, ...]

    @property
    def shapes(self) -> list[Shape]:
        return [(m, k, n) for m in self.m for k in self.k for n in self.n]

    def neighbours(self, shape: Shape) -> Iterator[Shape]:
        """The transposed shape, then those one step away in one size."""
        m, k, n = shape
        if n in self.m and m in self.n:
            yield n, k, m
        for place, sizes in enumerate((self.m, self.k, self.n)):
            at = sizes.index(shape[place])
            for other in sizes[max(at - 1, 0) : at + 2]:
                if other != shape[place]:
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
    """Share of the units' time that goes into outputs asked for: m·n / (waves·units·tile area)."""
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
    return m * n / (math.ceil(tiles / units) * units * tile[0] * tile[1])


def outputs(space: Space, units: int, tiles: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All (m, n): the first of the ranking of each tile and its transpose, then the second, and so
    on.

    A tile ranks by how well whole waves are filled, larger first among equals.
    """
    rankings = [
        sorted(
            ((m, n) for m in space.m for n in space.n),
            key=lambda size, tile=tile: (
                -round(wave_efficiency(*size, units, tile), 2),
                -size[0] * size[1],
            ),
        )
        for tile in sorted({turned for tile in tiles for turned in (tile, tile[::-1])})
    ]
    return list(dict.fromkeys(size for places in zip(*rankings, strict=True) for size in places))


def guided(
    space: Space,
    rate: Rate,
    *,
    units: int,
    tiles: Sequence[tuple[int, int]],
    budget_s: float,
    clock: Callable[[], float] = perf_counter,
) -> Found:
    """The best shape found within `budget_s`, by the stages that the module's docstring tells.

    Raises ValueError for a budget that is not positive.
    """
    if not budget_s > 0:
        raise ValueError(f"budget_s must be above 0, got {budget_s}")
    began = clock()
    seen: dict[Shape, float] = {}

    def screen(shapes: Iterable[Shape], until: float) -> None:
        for shape in shapes:
            if seen and clock() - began > until * budget_s:
                return
            if shape not in seen:
                seen[shape] = rate(shape, budget_s / SCREENED)

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
    """The best of a few shapes and its rate, timed in turn, there and back; the worse half goes
    after every turn.

    Each turn takes the same time, so windows grow as the shapes get fewer. A shape's figure is the
    median of its own. A turn that does not fit into the time left is not begun: then the rates in
    `seen` decide.
    """
    left = list(shapes)
    again: dict[Shape, list[float]] = {shape: [] for shape in left}
    while len(left) > 1:
        turns = math.ceil(math.log2(len(left)))
        window = left_s() / turns / (2 * len(left))
        # A window makes two calls at least, the first of them untimed.
        if sum(2 * 2 * 2 * math.prod(shape) / seen[shape] for shape in left) > left_s():
            break
        for shape in (*left, *reversed(left)):
            again[shape].append(rate(shape, window))
        left = sorted(left, key=lambda shape: median(again[shape]), reverse=True)[
            : math.ceil(len(left) / 2)
        ]
    return left[0], median(again[left[0]] or [seen[left[0]]])


# Tiles of outputs: about the blocks of BLAS libraries.
CPU_TILES = ((64, 64), (48, 32))
GPU_TILES = ((128, 256), (128, 128))


def units_of(device: torch.device) -> int:
    """The units that work on tiles side by side: SMs of a GPU, threads of a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).max_compute_units)
    return torch.get_num_threads()


def space_of(
    device: torch.device, most_flops: float = math.inf, most_elements: float = math.inf
) -> Space:
    """Sizes at which a device is fast: the largest product costs at most `most_flops`, its matrices
    at most `most_elements` each."""
    if device.type == "cpu":
        sizes: tuple[int, ...] = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
        deepest = sizes
    else:
        sizes = tuple(
            sorted(
                {1024 * each for each in (1, 2, 3, 4, 6, 8, 10, 12, 16)}
                | whole_waves(units_of(device))
            )
        )
        deepest = tuple(1024 * each for each in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32))
    while len(sizes) > 2 and (2 * sizes[-1] ** 3 > most_flops or sizes[-1] ** 2 > most_elements):
        sizes = sizes[:-1]
    deepest = (
        tuple(
            k
            for k in deepest
            if 2 * sizes[-1] ** 2 * k <= most_flops and sizes[-1] * k <= most_elements
        )
        or deepest[:1]
    )
    return Space(sizes, deepest, sizes)


def whole_waves(units: int) -> set[int]:
    """Sides of the outputs whose tiles are a whole wave, a tile a unit: 11 by 12 tiles of 128 x 256
    on 132 SMs.

    >>> sorted(whole_waves(132))
    [1408, 1536, 2816, 3072]
    """
    rows = max(each for each in range(1, math.isqrt(units) + 1) if units % each == 0)
    columns = units // rows
    return (
        {tiles * side for tiles in (rows, columns) for side in GPU_TILES[0]}
        if columns <= 4 * rows
        else set()
    )


def rate_on(
    operands: Operands,
    timer: Callable[[], Any],
    clock_share: Callable[[], float | None] = lambda: None,
    *,
    idle_s: float = 0.0,
) -> Rate:
    """Times products by the calls of a window; with `idle_s`, the device rests before each window.

    A rate is that at the highest clock, if the share of it that runs is known: under a power limit
    the clock follows the work of half a second, and short windows would rank those before them.
    """

    def rate(shape: Shape, window_s: float) -> float:
        multiply, flops = operands.multiply(*shape)
        # The first call chooses its kernel.
        multiply()
        if idle_s:
            measured.synchronise(operands.device)
            sleep(idle_s)
        shares: list[float | None] = []
        times = sorted(calls_s(multiply, timer, window_s, lambda: shares.append(clock_share())))
        share = (shares[0] if shares else None) or 1.0
        return flops / times[len(times) // 4] / share

    return rate


def calls_s(
    function: Callable[[], object],
    timer: Callable[[], Any],
    window_s: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[float]:
    """Seconds of each call within a window, of one call at least.

    Readings are subtracted after the window: that waits for the device, which would rest between
    the calls. `meanwhile` is called before that, while an accelerator still works.
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
