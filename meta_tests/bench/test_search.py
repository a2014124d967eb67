"""The search for the fastest shape, on a simulated device and on this one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bench.ceilings import Ceilings
from bench.search import fastest, shapes
from meta_tests.bench.stand_ins import CPU, SHORT

LISTED = shapes("cpu")


@pytest.mark.parametrize("best", [LISTED[0], LISTED[7], LISTED[-1]])
@pytest.mark.parametrize("busy_turn", [0, 1])
def test_the_fastest_shape_is_found_beside_other_work_in_one_turn(best, busy_turn):
    now, visits = 0.0, dict.fromkeys(LISTED, 0)

    def product(*shape):
        slowdown = 4 if visits[shape] == busy_turn else 1
        visits[shape] += 1
        seconds = 2 * math.prod(shape) / (2e9 if shape == best else 1.9e9) * slowdown

        def multiply():
            nonlocal now
            now += seconds

        return multiply, 2 * math.prod(shape)

    operands = SimpleNamespace(multiply=product, device=CPU)
    assert fastest(LISTED, operands, lambda: now, window_s=0.01) == best


@pytest.mark.parametrize(
    ("dtype", "flop_per_s", "largest"),
    [
        # Five matrices of 2^19 numbers in fp64, or of 2^20 in fp32, fill the room.
        ("fp64", math.inf, (512, 1024, 512)),
        ("bf16", math.inf, (1024, 1024, 1024)),
        # A product takes a quarter of the longest call.
        ("bf16", 4 * 2 * 256**3, (256, 256, 256)),
    ],
)
def test_a_search_tries_what_fits_the_memory_and_the_pace(dtype, flop_per_s, largest):
    room_bytes = 5 * 8 * 2**19
    ceilings = Ceilings(CPU, SHORT, room_bytes=lambda: room_bytes, _probed={dtype: flop_per_s})
    assert ceilings.shapes(dtype)[-1] == largest
