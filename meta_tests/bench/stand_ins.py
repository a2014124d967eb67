"""Stand-ins for pytest-benchmark's fixture, and a scripted clock."""

from statistics import median
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch

from bench.measuring import Measure
from bench.products import Unsupported, product
from bench.rounds import Pace
from bench.timing import CallTimer, Schedule

CPU = torch.device("cpu")
SHORT = Pace(0.001, 0.003, 0.005, 1.0, width=0.05)


class Rounds:
    """Stands for pytest-benchmark's fixture: runs the rounds as its `pedantic` does, or says each
    takes `seconds`.
    """

    def __init__(self, timer, seconds):
        self.extra_info = {}
        self.stats = None
        self.kept = []
        self._timer, self._seconds = timer, seconds

    def _make_runner(self, function):
        def run(iterations):
            start = self._timer()
            for _ in range(iterations):
                function()
            return self._timer() - start

        return run

    def pedantic(
        self,
        function,
        setup,
        rounds,
        iterations,
        **_,
    ):
        assert setup is None or iterations == 1, (
            "pytest-benchmark refuses a set-up with several iterations"
        )
        for _ in range(rounds):
            if setup is not None:
                assert setup() is None, "what a set-up returns is taken for arguments"
            measured_s = self._make_runner(function)(iterations) / iterations
            self.kept.append(measured_s if self._seconds is None else self._seconds)

        class Stats(dict[str, float]):
            stats = SimpleNamespace(data=self.kept)

        self.stats = Stats(median=median(self.kept))


def measure(timer=perf_counter, pace=SHORT, *, device=CPU, seconds=None, schedule=None, **options):
    """A measurement by a clock, or one in which every round takes `seconds`."""
    rounds = Rounds(timer, seconds)
    schedule = schedule or Schedule(pace)
    return Measure(rounds, device, schedule, CallTimer(device, timer), **options)


def supported(dtype, m=48, k=96, n=64):
    try:
        return product(dtype, m, k, n, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))


def skips(function):
    try:
        function()
    except pytest.skip.Exception:
        return True
    return False
