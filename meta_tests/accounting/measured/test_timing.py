"""The clock of each device, and timing by it; CUDA is tried on a stand-in for its events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import pytest
import torch

from accounting import measured
from accounting.measured import timing


class Event:
    """A CUDA event on a device whose queue takes 3 ms between two of them; nothing is known before it is waited for."""

    recorded: list["Event"]

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing, "an event without timing has no time"
        self.reached = False

    def record(self, stream: object) -> None:
        self.at_ms = 3.0 * len(Event.recorded)
        Event.recorded.append(self)

    def synchronize(self) -> None:
        for event in Event.recorded[: Event.recorded.index(self) + 1]:
            event.reached = True

    def elapsed_time(self, later: "Event") -> float:
        assert self.reached, "the device has not come to the first event"
        assert later.reached, "the device has not come to the second event"
        return later.at_ms - self.at_ms


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    monkeypatch.setattr(Event, "recorded", [], raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    return Event.recorded


def test_the_clock_of_the_cpu_is_the_hosts() -> None:
    assert measured.clock("cpu") is perf_counter


def test_cuda_time_is_between_events_that_only_a_subtraction_waits_for(events: list[Event]) -> None:
    timer = measured.clock("cuda")
    start, between, stop = timer(), timer(), timer()
    assert not any(event.reached for event in events), "reading the clock should not wait for the device"
    spans = stop - start, stop - between
    assert spans == pytest.approx((0.006, 0.003)), f"{spans} s, but should be 6 and 3 ms"


def test_all_rounds_on_cuda_are_queued_before_any_is_waited_for(events: list[Event]) -> None:
    waited = []
    timing = measured.time(lambda: waited.append(any(event.reached for event in events)), "cuda", warmup=1, rounds=4)
    assert waited == [False] * 5, f"{waited}, but no call should follow a wait"
    assert timing.times_s == pytest.approx([0.003] * 4), f"{timing}"


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
