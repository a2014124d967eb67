"""The fastest of a few shapes (m, k, n), which stands for every product of a dtype.

Its m and n are one power of two, and k is half of it, the same, or twice. A guided search that
this replaced ended, on an H200 in bf16, at a shape a tenth slower than the square of 4096.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.products import Operands

Shape = tuple[int, int, int]

SIDES = {"cpu": (128, 256, 512, 1024, 2048), "other": (1024, 2048, 4096, 8192, 16384)}


@dataclass(frozen=True)
class Found:
    """The fastest shape, and its rate."""

    shape: Shape
    flop_per_s: float


def shapes(kind: str, most_flops: float = math.inf, most_elements: float = math.inf) -> list[Shape]:
    """The shapes for a kind of device, or the first of them if none is within the limits.

    A product costs at most `most_flops`, and each of its matrices has at most `most_elements`.

    >>> shapes("cpu", most_flops=2 * 256**3)
    [(128, 64, 128), (128, 128, 128), (128, 256, 128), (256, 128, 256), (256, 256, 256)]
    """
    sides = SIDES.get(kind, SIDES["other"])
    listed = [(side, k, side) for side in sides for k in (side // 2, side, 2 * side)]
    within = [
        (m, k, n)
        for m, k, n in listed
        if 2 * m * k * n <= most_flops and m * max(k, n) <= most_elements
    ]
    return within or listed[:1]


def fastest(
    shapes: Sequence[Shape], operands: Operands, timer: Callable[[], Any], window_s: float
) -> Shape:
    """The shape with the best rate in one of two windows.

    The second windows follow the reverse order. The better of two counts, because other work only
    makes a window slower.
    """
    best = dict.fromkeys(shapes, 0.0)
    for shape in (*shapes, *reversed(shapes)):
        multiply, flops = operands.multiply(*shape)
        # The library chooses a kernel in the first call.
        multiply()
        best[shape] = max(best[shape], flops / median(calls_s(multiply, timer, window_s)))
    return max(best, key=best.__getitem__)


def calls_s(
    function: Callable[[], object], timer: Callable[[], Any], window_s: float
) -> list[float]:
    """Seconds of each call within a window, of one call at least.

    Readings are subtracted only after the window, because subtracting waits for the device, which
    would then rest between calls.
    """
    start = timer()
    function()
    once = max(timer() - start, 1e-9)
    moments = []
    for _ in range(int(window_s / once)):
        start = timer()
        function()
        moments.append((start, timer()))
    return [max(stop - start, 1e-9) for start, stop in moments] or [once]
