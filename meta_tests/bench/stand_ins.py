"""Stand-ins for pytest-benchmark's fixture, and what the tests of the benchmarks have in common."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measuring import Measure
from bench.pace import Pace
from bench.products import Product, Unsupported, product

CPU = torch.device("cpu")
SHORT = Pace(0.001, 0.003, 0.005, 1.0, width=0.05)


class Rounds:
    """Stands for pytest-benchmark's fixture: runs the rounds as its `pedantic` does, and keeps them."""

    def __init__(self, timer: Callable[[], Any] = perf_counter) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats: Any = None
        self.kept: list[float] = []
        self._timer = timer

    def pedantic(
        self, function: Callable[[], object], setup: Callable[[], object] | None, rounds: int, iterations: int, **_: int
    ) -> None:
        assert setup is None or iterations == 1, "pytest-benchmark refuses a set-up with several iterations"
        for _ in range(rounds):
            if setup is not None:
                assert setup() is None, "what a set-up returns is taken for arguments"
            start = self._timer()
            for _ in range(iterations):
                function()
            self.kept.append((self._timer() - start) / iterations)

        class Stats(dict[str, float]):
            stats = SimpleNamespace(data=self.kept)

        self.stats = Stats(median=median(self.kept))


class SteadyRounds:
    """Stands for pytest-benchmark's fixture: every round takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats = {"median": seconds}

    def pedantic(self, function: Callable[[], object], **_: object) -> None:
        function()


def measure(timer: Callable[[], Any] = perf_counter, pace: Pace = SHORT, **options: Any) -> Measure:
    return Measure(Rounds(timer), CPU, pace, timer=timer, **options)


def supported(dtype: str, m: int = 48, k: int = 96, n: int = 64) -> Product:
    try:
        return product(dtype, m, k, n, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
