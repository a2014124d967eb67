"""A core that its host shares is seen to be slow, waited for, and named."""

import math
import os
import threading
from collections.abc import Iterable

import pytest

from prooflops.machine import core_speed
from prooflops.machine.core_speed import ENOUGH, EVERY_S, MOST_CORES, PATIENCE_S, SLOW, CoreSpeed, OtherCores, slow_core

LOOP_S = 25e-6


class Host:
    """A clock, and a core that takes `times` as long from the first moment on, until the second."""

    def __init__(self, *slow: tuple[float, float, float]) -> None:
        self.now, self.slow = 100.0, [(100.0 + start, 100.0 + end, times) for start, end, times in slow]
        self.threads = 1  # that are busy

    def clock(self) -> float:
        return self.now

    def cpu_clock(self) -> float:
        return self.threads * self.now

    def loop(self, clock: object) -> float:
        taken = LOOP_S * next((times for start, end, times in self.slow if start <= self.now < end), 1.0)
        self.now += taken
        return taken


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    def use(host: Host, fastest_s: float = LOOP_S) -> CoreSpeed:
        monkeypatch.setattr(core_speed, "perf_counter", host.clock)
        monkeypatch.setattr(core_speed, "process_time", host.cpu_clock)
        monkeypatch.setattr(core_speed, "_timed_work", host.loop)
        return CoreSpeed(fastest_s)

    return use


def test_a_process_waits_for_full_speed_and_no_longer_than_its_patience(on) -> None:
    host = Host((0.0, 0.02, 1.8), (1.0, 99.0, 1.8))
    speed = on(host)
    speed.look()
    assert 100.02 <= host.now < 100.021, host.now
    assert speed.was_fast

    host.now = began = 101.0
    for _ in range(4):
        speed.begin()
        speed.look()
    assert host.now - began == pytest.approx(PATIENCE_S - 0.02, abs=1e-3), "four benchmarks share one patience"


@pytest.mark.parametrize(("stretches", "waits"), [(ENOUGH - 1, True), (ENOUGH, False)])
def test_a_benchmark_with_enough_fast_stretches_waits_no_more(on, stretches: int, waits: bool) -> None:
    host = Host((0.1, 0.2, 1.8))
    speed = on(host)
    for _ in range(stretches + 1):
        speed.look()
        host.now += 1.5 * EVERY_S
    host.now = 100.1
    speed.look()
    assert (host.now >= 100.2) == waits
    speed.begin()
    speed.look()
    assert host.now >= 100.2, "the next benchmark has none yet"


def test_only_a_stretch_between_two_fast_looks_counts_as_fast(on) -> None:
    host = Host((0.001, 0.01, 1.8))
    speed = on(host)
    speed.look()
    host.now += 0.003  # rounds that became slow
    speed.look(last=True)
    assert slow_core(speed.stretch_s, speed.fastest_s) == "this core ran at 56% of its speed"

    host.now = 100.02
    speed.look()
    host.now += 0.003
    speed.look(last=True)
    assert slow_core(speed.stretch_s, speed.fastest_s) == ""


def test_without_a_figure_of_earlier_processes_the_fastest_loop_so_far_is_full_speed(on) -> None:
    host = Host((0.0, 0.004, SLOW + 0.1))
    speed = on(host, math.inf)
    speed.look()
    host.now += 0.005
    speed.look()
    assert speed.fastest_s == pytest.approx(LOOP_S)
    assert slow_core(speed.stretch_s, speed.fastest_s)


class Others:
    """Other cores, which are slow until some look."""

    def __init__(self, *slowness: float) -> None:
        self.left = list(slowness)

    def __len__(self) -> int:
        return 1

    def slowness(self) -> float:
        return self.left.pop(0) if self.left else 1.0


def test_a_benchmark_that_uses_several_cores_waits_for_the_others_too(on, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(1.8, 1.8, 1.8)
    monkeypatch.setattr(core_speed, "OtherCores", lambda: others)
    host = Host()
    speed = on(host)
    for threads, left in ((1, 3), (2, 0)):
        host.threads = threads
        speed.begin()
        speed.look()
        host.now += 2 * EVERY_S
        speed.look()
        assert len(others.left) == left, f"{threads} threads"
    others.left = [1.8]
    host.now += 3 * EVERY_S
    speed.look(last=True)
    assert slow_core(speed.stretch_s, speed.fastest_s) == "this core ran at 56% of its speed"


class Cores:
    """Core 0 becomes slow, and this thread is on it; on core 1 the host is fast."""

    def __init__(self, host: Host, count: int = 2, refused: bool = False) -> None:
        self.host, self.all, self.refused = host, set(range(count)), refused
        self.allowed, self.set = self.all, list[set[int]]()

    def change(self, thread: int, cores: Iterable[int]) -> None:
        assert thread == 0
        if self.refused:
            raise PermissionError(1, "Operation not permitted")
        self.allowed = set(cores)
        self.set.append(self.allowed)
        if self.allowed == {1}:
            self.host.slow = []


@pytest.mark.parametrize(
    ("count", "refused", "threads", "waits"),
    [(2, False, 1, False), (2, True, 1, True), (1, False, 1, True), (MOST_CORES + 1, False, 1, True),
     (2, False, 2, True)],
)  # fmt: skip
def test_where_this_core_is_slow_another_is_tried_and_all_are_allowed_again(
    on, monkeypatch: pytest.MonkeyPatch, count: int, refused: bool, threads: int, waits: bool
) -> None:
    host = Host((1.0, 99.0, 1.8))
    cores = Cores(host, count, refused)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores.allowed, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", cores.change, raising=False)
    monkeypatch.setattr(core_speed, "OtherCores", Others)
    speed = on(host)
    host.threads = threads
    speed.look()
    host.now = 101.0
    speed.look()
    assert speed.waited_s == pytest.approx(PATIENCE_S if waits else 0.0, abs=1e-3)
    assert cores.allowed == cores.all
    assert bool(cores.set) == (not waits)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinities")
def test_each_core_is_looked_at_beside_its_own_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([*[1e-5] * 3, *[0.1e-5, 1.5e-5, 1.9e-5], *[1e-5] * 3])
    monkeypatch.setattr(core_speed, "_timed_work", lambda clock: next(times))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    others = OtherCores()
    assert len(others) == 1
    assert [others.slowness() for _ in range(3)] == pytest.approx([1.0, 1.5, 1.0])


def test_of_many_cores_none_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MOST_CORES + 1)), raising=False)
    assert (len(OtherCores()), OtherCores().slowness()) == (0, 1.0)
    assert threading.active_count() == before
