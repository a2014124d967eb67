"""Stand-ins for pytest-benchmark's fixture, and a scripted clock."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measuring import Measure
from bench.products import Product, Unsupported, product
from bench.rounds import PACES, Pace
from bench.timing import Schedule

CPU = torch.device("cpu")
SHORT = Pace(0.001, 0.003, 0.005, 1.0, width=0.05)


class Rounds:
    """Stands for pytest-benchmark's fixture: runs the rounds as its `pedantic` does, or says each
    takes `seconds`.
    """

    def __init__(
        self, timer: Callable[[], Any] = perf_counter, seconds: float | None = None
    ) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats: Any = None
        self.kept: list[float] = []
        self._timer, self._seconds = timer, seconds

    def pedantic(
        self,
        function: Callable[[], object],
        setup: Callable[[], object] | None,
        rounds: int,
        iterations: int,
        **_: int,
    ) -> None:
        assert setup is None or iterations == 1, (
            "pytest-benchmark refuses a set-up with several iterations"
        )
        for _ in range(rounds):
            if setup is not None:
                assert setup() is None, "what a set-up returns is taken for arguments"
            start = self._timer()
            for _ in range(iterations):
                function()
            measured_s = (self._timer() - start) / iterations
            self.kept.append(measured_s if self._seconds is None else self._seconds)

        class Stats(dict[str, float]):
            stats = SimpleNamespace(data=self.kept)

        self.stats = Stats(median=median(self.kept))


def measure(timer: Callable[[], Any] = perf_counter, pace: Pace = SHORT, **options: Any) -> Measure:
    return Measure(Rounds(timer), CPU, Schedule(pace), clock=timer, **options)


def steady(seconds: float, *rates: Any) -> Measure:
    """A measurement in which every round takes `seconds`."""
    return Measure(Rounds(seconds=seconds), CPU, Schedule(PACES["quick"]), *rates)


def supported(dtype: str, m: int = 48, k: int = 96, n: int = 64) -> Product:
    try:
        return product(dtype, m, k, n, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
