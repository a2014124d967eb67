"""Time by the device's own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from accounting.checks import validated_choice, validated_int

# Raised whenever the way of measuring changes: figures of different methods are not compared.
METHOD = 5


class _DeviceMoment:
    """A moment on a device's own time line. `later - earlier` waits until the device has reached
    both; in seconds.
    """

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def __sub__(self, earlier: _DeviceMoment) -> float:
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def clock(device: str | torch.device = "cpu") -> Callable[[], Any]:
    """A timer of `device`.

    The difference of two readings is the time between them in seconds. CUDA and XPU run
    asynchronously: a reading is an event in the current stream, and only the subtraction waits. On
    MPS, a reading waits for the device and takes the host's clock. Fits pytest-benchmark's `timer`
    option. Resolution: about 0.5 µs for events, below 0.1 µs on the host.

    Domain of validity: work of the current stream only. If the device is idle at the first reading,
    the time includes the wait for the next launch (some 5 µs on CUDA). Give it work first, or time
    several calls at once.

    Raises ValueError for a device without a clock (meta) or that torch does not see.

    >>> timer = clock("cpu")
    >>> start = timer()
    >>> timer() - start < 1
    True
    """
    device = torch.device(device)
    if device.type == "cpu":
        return perf_counter
    api = _timed_api(device)

    def event() -> _DeviceMoment:
        recorded = api.Event(enable_timing=True)
        recorded.record(api.current_stream(device))
        return _DeviceMoment(recorded)

    def synchronised_perf_counter() -> float:
        api.synchronize()
        return perf_counter()

    # torch.mps has events, but no current stream to record them in.
    return synchronised_perf_counter if device.type == "mps" else event


def synchronise(device: str | torch.device) -> None:
    """Waits until all streams of `device` have done their work.

    A CPU's calls return only when done.

    Raises ValueError for a device without a clock (meta) or that torch does not see.

    >>> synchronise("cpu")
    """
    device = torch.device(device)
    if device.type != "cpu":
        _timed_api(device).synchronize(*(() if device.type == "mps" else (device,)))


def _timed_api(device: torch.device) -> Any:
    validated_choice("device", device.type, ("cpu", "cuda", "xpu", "mps"))
    api = getattr(torch, device.type)
    present = torch.backends.mps.is_available() if device.type == "mps" else api.is_available()
    if not present:
        raise ValueError(
            f"device must be present, got {str(device)!r}, and torch sees no {device.type} device"
        )
    return api


@dataclass(frozen=True)
class Timing:
    """Seconds of each round, in order."""

    times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def spread(self) -> float:
        """The range of the middle half of the rounds, as a share of the median."""
        low, _, high = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return (high - low) / self.median_s


def time(
    fn: Callable[[], object], device: str | torch.device = "cpu", *, warmup: int, rounds: int
) -> Timing:
    """Seconds that `fn()` takes on `device`, in `rounds` rounds.

    `warmup` calls before them are not timed. On CUDA all run in the current stream, and the host
    may queue all rounds before the first has run.

    Domain of validity: as `clock`. `fn` must take longer than the resolution, and on CUDA than its
    launch.

    Raises ValueError for fewer than 2 rounds: one has no spread.

    >>> time(lambda: sum(range(1000)), warmup=1, rounds=5).median_s > 0
    True
    """
    validated_int("warmup", warmup)
    validated_int("rounds", rounds, minimum=2)
    timer = clock(device)
    moments = []
    for turn in range(warmup + rounds):
        start = timer()
        fn()
        stop = timer()
        if turn >= warmup:
            moments.append((start, stop))
    return Timing(tuple(stop - start for start, stop in moments))


def alternating(
    one: Callable[[], float], other: Callable[[], float]
) -> Iterator[tuple[float, float]]:
    """Figures (one(), other()), without end, called in the order A B, B A, A B, ...

    A drift with time (a clock that falls, another process that starts) then affects both sides
    alike.

    >>> from itertools import islice
    >>> order = []
    >>> pairs = alternating(lambda: order.append("A") or 1.0, lambda: order.append("B") or 2.0)
    >>> list(islice(pairs, 2)), order
    ([(1.0, 2.0), (1.0, 2.0)], ['A', 'B', 'B', 'A'])
    """
    while True:
        first = one()
        yield first, other()
        second = other()
        yield one(), second


def median_interval(
    values: Iterable[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """The confidence interval of the median; None if there are too few values.

    It lies between two order statistics. The number of values below the true median is binomial of
    n and 1/2, whatever the distribution, if the values are independent. The interval is the
    narrowest whose chance of missing the median on each side is below (1 - confidence) / 2. This
    needs 6 values at 95 %, 8 at 99 %. Equal to the interval of scipy.stats.quantile_test, which
    takes a second to import.

    Raises ValueError for a confidence that is not between 0 and 1.
    Source: Conover, "Practical Nonparametric Statistics", 3rd edition, 3.2.

    >>> median_interval(range(1, 12)), median_interval([1, 2, 3, 4, 5])
    ((2, 10), None)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    ordered = sorted(values)
    size = len(ordered)
    # Times fall below or above the median in 2**size ways: `exactly` of them have `below` below,
    # `at_most` have no more.
    below, exactly, at_most = 0, 1, 1
    while at_most / 2**size < (1 - confidence) / 2:
        exactly = exactly * (size - below) // (below + 1)
        below += 1
        at_most += exactly
    return (ordered[below - 1], ordered[size - below]) if below else None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch's operators to one thread inside the block.

    Then it restores the earlier number. Threads that wait for one another are most of a busy
    machine's noise, and kernels hold scratch per thread. Other libraries and the workers of a data
    loader keep their threads.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
