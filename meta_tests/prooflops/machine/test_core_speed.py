"""A core that its host shares is seen to be slow, waited for or left, and named; on a simulated clock."""

import math
import os
from collections.abc import Callable, Iterable

import pytest

from prooflops.machine import core_speed
from prooflops.machine.core_speed import ENOUGH, EVERY_S, MOST_CORES, PATIENCE_S, SLOW, CoreSpeed, OtherCores, slow_core

WORK_S = 25e-6
Speed = Callable[..., CoreSpeed]


class Host:
    """A clock, and cores on which work takes `times` as long from `start` to `end`."""

    def __init__(self, *slow: tuple[float, float, float]) -> None:
        self.now, self.slow = 100.0, [(100.0 + start, 100.0 + end, times) for start, end, times in slow]
        self.threads = 1  # that are busy
        self.others = 1.0  # the slowness of other cores

    def work(self, clock: object) -> float:
        taken = WORK_S * next((times for start, end, times in self.slow if start <= self.now < end), 1.0)
        self.now += taken
        return taken


class Others:
    """The other cores of a host."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def __len__(self) -> int:
        return 1

    def slowness(self) -> float:
        slowness, self.host.others = self.host.others, 1.0
        return slowness


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Speed:
    def use(host: Host, fastest_s: float = WORK_S) -> CoreSpeed:
        monkeypatch.setattr(core_speed, "perf_counter", lambda: host.now)
        monkeypatch.setattr(core_speed, "process_time", lambda: host.threads * host.now)
        monkeypatch.setattr(core_speed, "_timed_work", host.work)
        monkeypatch.setattr(core_speed, "OtherCores", lambda: Others(host))
        return CoreSpeed(fastest_s)

    return use


def stretch(speed: CoreSpeed, host: Host, seconds: float = 2 * EVERY_S) -> str:
    """Runs a benchmark for `seconds`, and says if its core was slow."""
    speed.look()
    host.now += seconds
    speed.look(last=True)
    return slow_core(speed.stretch_s, speed.fastest_s)


def test_a_process_waits_for_full_speed_and_no_longer_than_its_patience(on: Speed) -> None:
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
def test_a_benchmark_with_enough_fast_stretches_waits_no_more(on: Speed, stretches: int, waits: bool) -> None:
    host = Host((0.1, 0.2, 1.8))
    speed = on(host)
    for _ in range(stretches + 1):
        speed.look()
        host.now += 1.5 * EVERY_S
    host.now = 100.1
    speed.look()
    assert (host.now >= 100.2) == waits


def test_only_a_stretch_between_two_fast_looks_counts_as_fast(on: Speed) -> None:
    host = Host((0.001, 0.01, 1.8))
    speed = on(host)
    assert stretch(speed, host) == "this core ran at 56% of its speed"
    host.now = 100.02
    assert stretch(speed, host) == ""


def test_without_a_figure_of_earlier_processes_the_fastest_work_so_far_is_full_speed(on: Speed) -> None:
    host = Host((0.0, 0.003, SLOW + 0.1))
    speed = on(host, math.inf)
    assert stretch(speed, host)
    assert speed.fastest_s == pytest.approx(WORK_S)


def test_a_benchmark_that_uses_several_cores_is_as_slow_as_the_slowest(on: Speed) -> None:
    for threads, slow in ((1, ""), (2, "this core ran at 56% of its speed")):
        host = Host()
        host.threads, host.others = threads, 1.8
        assert stretch(on(host), host) == slow, f"{threads} threads"


@pytest.mark.parametrize(
    ("count", "refused", "threads", "waits"),
    [(2, False, 1, False), (2, True, 1, True), (1, False, 1, True), (MOST_CORES + 1, False, 1, True),
     (2, False, 2, True)],
)  # fmt: skip
def test_if_this_core_is_slow_another_is_tried_and_all_are_allowed_again(
    on: Speed, monkeypatch: pytest.MonkeyPatch, count: int, refused: bool, threads: int, waits: bool
) -> None:
    host = Host((1.0, 99.0, 1.8))
    every = set(range(count))
    allowed = [every]

    def change(thread: int, cores: Iterable[int]) -> None:
        if refused:
            raise PermissionError(1, "Operation not permitted")
        allowed.append(set(cores))
        host.slow = [] if allowed[-1] == {1} else host.slow

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed[-1], raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", change, raising=False)
    speed = on(host)
    host.threads = threads
    speed.look()
    host.now = 101.0
    speed.look()
    assert speed.waited_s == pytest.approx(PATIENCE_S if waits else 0.0, abs=1e-3)
    assert allowed[-1] == every
    assert (len(allowed) > 1) == (not waits)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinities")
def test_each_core_is_compared_with_its_own_fastest_work(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([*[1e-5] * 3, *[0.1e-5, 1.5e-5, 1.9e-5], *[1e-5] * 3])
    monkeypatch.setattr(core_speed, "_timed_work", lambda clock: next(times))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    others = OtherCores()
    assert [others.slowness() for _ in range(3)] == pytest.approx([1.0, 1.5, 1.0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MOST_CORES + 1)))
    assert len(OtherCores()) == 0
