"""The clock of each device, and timing by it; CUDA is tried on the simulated card."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import pytest
import torch

from accounting import measured
from accounting.measured import timing
from meta_tests.simulated_card.api import simulated
from meta_tests.simulated_card.card import SLEEP_HZ, Card

THREE_MS = round(0.003 * SLEEP_HZ)


def test_the_clock_of_the_cpu_is_the_hosts() -> None:
    assert measured.clock("cpu") is perf_counter


def test_cuda_time_is_between_events_that_only_a_subtraction_waits_for() -> None:
    with simulated(card := Card()):
        timer = measured.clock("cuda")
        start = timer()
        torch.cuda._sleep(THREE_MS)
        between = timer()
        torch.cuda._sleep(THREE_MS)
        stop = timer()
        assert not card.counts.synchronisations, "reading the clock should not wait for the device"
        spans = stop - start, stop - between
    assert spans == pytest.approx((0.006, 0.003), abs=2e-5), f"{spans} s, but should be 6 and 3 ms"


def test_all_rounds_on_cuda_are_queued_before_any_is_waited_for() -> None:
    waits = []
    with simulated(card := Card()):

        def act() -> None:
            torch.cuda._sleep(THREE_MS)
            waits.append(card.counts.synchronisations)

        timing = measured.time(act, "cuda", warmup=1, rounds=4)
    assert waits == [0] * 5, f"{waits}, but no call should follow a wait"
    assert timing.times_s == pytest.approx([0.003] * 4, abs=2e-5), f"{timing}"


@contextmanager
def host_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A clock of the host that stands still but for what is passed to `wait`."""
    now = [0.0]
    with monkeypatch.context() as patch:
        patch.setattr(timing, "perf_counter", lambda: now[0])
        yield lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_only_the_calls_after_the_warm_up_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_clock(monkeypatch) as wait:
        calls = iter([100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0])
        timing = measured.time(lambda: wait(next(calls)), warmup=2, rounds=5)
    assert timing.times_s == (1.0, 2.0, 3.0, 4.0, 5.0), f"{timing}"
    assert timing.median_s == 3.0, f"{timing.median_s}"
    assert timing.spread == pytest.approx((4 - 2) / 3), f"{timing.spread}"
