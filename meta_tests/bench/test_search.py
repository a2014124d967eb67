"""The search for the fastest shape, on a simulated device and on this one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bench import ceilings as module
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


def test_a_real_search_finds_a_shape_of_its_list_and_reports_its_progress(monkeypatch):
    monkeypatch.setitem(module.SEARCH, "cpu", 1)
    said = []
    ceilings = Ceilings(CPU, SHORT, lambda text, ahead_s=0.0: said.append(text))
    found = ceilings.best("fp32")
    assert found.flop_per_s > 0
    assert found.shape in ceilings.shapes("fp32")
    assert said == ["searching for the fastest product of fp32"]
