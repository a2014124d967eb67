"""The clock of each device, and timing by it; CUDA is tried on the simulated card."""

import pytest
import torch

from meta_tests.card.api import simulated
from meta_tests.card.card import SLEEP_HZ, Card
from prooflops import timing

THREE_MS = round(0.003 * SLEEP_HZ)


def test_cuda_time_is_between_events_that_only_a_subtraction_waits_for():
    with simulated(card := Card()):
        timer = timing.clock("cuda")
        start = timer()
        torch.cuda._sleep(THREE_MS)
        between = timer()
        torch.cuda._sleep(THREE_MS)
        stop = timer()
        assert not card.counts.synchronisations, "reading the clock should not wait for the device"
        spans = stop - start, stop - between
    assert spans == pytest.approx((0.006, 0.003), abs=2e-5)


def test_all_rounds_on_cuda_are_queued_before_any_is_waited_for():
    waits = []
    with simulated(card := Card()):

        def act():
            torch.cuda._sleep(THREE_MS)
            waits.append(card.counts.synchronisations)

        timed = timing.time(act, "cuda", warmup=1, rounds=4)
    assert waits == [0] * 5, "no call should follow a wait"
    assert timed.times_s == pytest.approx([0.003] * 4, abs=2e-5)


def test_only_the_calls_after_the_warm_up_are_timed(monkeypatch):
    now = [0.0]
    calls = iter([100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0])

    def wait(seconds):
        now[0] += seconds

    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    found = timing.time(lambda: wait(next(calls)), warmup=2, rounds=5)
    assert found.times_s == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.median_s == 3.0
    assert found.spread == pytest.approx((4 - 2) / 3)
