"""The simulated card: its rates, queues, clocks, memory and error, and counts of what it was asked
for.
"""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from accounting.devices import ACCELERATORS, bandwidth_bytes_per_s, peak_flop_per_s
from accounting.formats import FORMATS
from meta_tests.card.caching import MIB, CardMemory
from prooflops import precision

SHORTEST_KERNEL_S = 2e-6
# The clock by which `torch.cuda._sleep` counts.
SLEEP_HZ = 1.7e9
PAGES_PINNED_BYTES_PER_S = 4e9
TIMES_THE_CACHE_IS_FASTER_THAN_MEMORY = 3
SHORTEST_HOST_OPERATOR_S = 1.5e-6
HOST_THREAD_FLOP_PER_S = 1e11
HOST_THREAD_BYTES_PER_S = 2e10
# This Python does the card's work too: it is so much slower than that of a host with a card.
PYTHON_SLOWNESS = 100
_wall_s = time.perf_counter


@dataclass
class Rates:
    """What a card does per second: plain numbers, each of which a test may lower.

    `flop_per_s` goes by dtype; the link takes pinned memory to the device; the host launches.
    """

    flop_per_s: dict[str, float]
    memory_bytes_per_s: float
    link_bytes_per_s: float = 55e9
    to_host_bytes_per_s: float = 50e9
    pageable_bytes_per_s: float = 20e9
    launches_per_s: float = 250e3
    # Share of the nominal clock.
    clock: float = 1.0
    joules_per_s: float = 300.0

    @classmethod
    def of(cls, row):
        """80 % of the peaks and 90 % of the bandwidth of a row of the peak table."""
        flops = {
            dtype: 0.8 * (peak_flop_per_s(row, dtype) or 10e12)
            for dtype in (*FORMATS, "tf32", "int8")
        }
        return cls(flops, 0.9 * (bandwidth_bytes_per_s(row) or 1e12))

    def lower(self, name, share):
        """Lowers the rate of a dtype or of one of those below.

        Raises ValueError for another name.
        """
        of = {
            "memory": ["memory_bytes_per_s"],
            "link": ["link_bytes_per_s", "to_host_bytes_per_s", "pageable_bytes_per_s"],
            "to-device": ["link_bytes_per_s"],
            "to-host": ["to_host_bytes_per_s"],
            "launch": ["launches_per_s"],
            "clock": ["clock"],
            "power": ["joules_per_s"],
        }
        if name in self.flop_per_s:
            self.flop_per_s[name] *= share
        elif name in of:
            for rate in of[name]:
                setattr(self, rate, share * getattr(self, rate))
        else:
            raise ValueError(f"name must be a dtype or one of {', '.join(of)}, got {name!r}")


@dataclass
class Counts:
    """What the card was asked for so far."""

    # Kernels launched, storages allocated, events recorded.
    operations: int = 0
    # The host waited: item, cpu, equal, nonzero, synchronize, an event that is read.
    synchronisations: int = 0


@dataclass(eq=False)
class Stream:
    """A queue: `ready_s` is when all that was put into it will have run."""

    stream_id: int = 0
    ready_s: float = 0.0


@dataclass(eq=False)
class Card:
    """One card of the peak table, with less memory."""

    label: str = "H100 SXM5 80GB"
    memory_bytes: int = 2048 * MIB
    cache_bytes: int = 50 * MIB
    counts: Counts = field(default_factory=Counts)
    # Large results need no values.
    only_timed: bool = False
    # What NVML reads of it, in NVML's own units.
    readings: dict[str, int] = field(
        default_factory=lambda: {
            "reasons": 0,
            "power_limit": 700_000,
            "temperature": 50,
            "generation": 5,
            "width": 16,
            "errors": 0,
            "rows_to_remap": 0,
            "processes": 1,
        }
    )
    # Sticky: each later operation fails with it.
    error: str = ""

    def __post_init__(self):
        self.row = ACCELERATORS[self.label]
        self.rates = Rates.of(self.row)
        self.name = self.row.names[0] if self.row.names else self.label
        self.device = torch.device("cuda", 0)
        self.memory = CardMemory(self.memory_bytes)
        self.default_stream = self.stream = Stream()
        self._queue_s = self._python_s = 0.0
        self._within = False
        self._looked = self._host()
        # Bytes of storages that the last level of cache holds, the latest last.
        self._cached = {}
        self._arriving = []

    # ---- the host's clock ----

    def now(self):
        """The host's clock: the queue's, and what a host's Python would take."""
        return self.queue_now() + self._python_s / PYTHON_SLOWNESS

    def queue_now(self):
        """The host's time as the queue sees it: launches, waits and sleep, however busy this
        machine is.
        """
        wall_s, ran_s, sleeps = self._host()
        before = self._looked
        self._looked = wall_s, ran_s, sleeps
        if self._within:
            pass
        elif sleeps > before[2]:
            self._queue_s += wall_s - before[0]
        else:
            self._python_s += max(0.0, ran_s - before[1])
        return self._queue_s

    @staticmethod
    def _host():
        """Wall time, this thread's own, and how often it slept."""
        # The first: Linux alone.
        usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
        return _wall_s(), time.thread_time(), usage.ru_nvcsw

    def let_pass(self, seconds):
        self._queue_s += seconds

    @contextmanager
    def in_its_place(self):
        """The CPU does the card's work within, and that takes no time."""
        self.queue_now()
        before = self._within
        self._within = True
        try:
            yield
        finally:
            self.queue_now()
            self._within = before

    # ---- the queue ----

    def launch(self, seconds):
        """Puts a kernel of so many seconds at full clock into the current stream; returns when it
        will have run.
        """
        self.check()
        self.counts.operations += 1
        self.let_pass(1 / self.rates.launches_per_s)
        self.stream.ready_s = (
            max(self.stream.ready_s, self.queue_now())
            + (SHORTEST_KERNEL_S + seconds) / self.rates.clock
        )
        return self.stream.ready_s

    def copy(self, nbytes, pinned, to_host):
        """Puts a copy over the link into the current stream, at any clock; returns when it will
        have run.
        """
        rates = self.rates
        pinned_rate = rates.to_host_bytes_per_s if to_host else rates.link_bytes_per_s
        rate = pinned_rate if pinned else rates.pageable_bytes_per_s
        return self.launch(nbytes / rate * self.rates.clock)

    def synchronise(self, until_s=None):
        """The host waits, by default for all streams."""
        self.check()
        self.counts.synchronisations += 1
        if until_s is None:
            until_s = max(self.stream.ready_s, self.default_stream.ready_s)
        self.let_pass(max(0.0, until_s - self.queue_now()))
        self.settle()

    def arrive_later(self, ready_s, copy):
        """A copy to pinned memory shows in the host's only when the stream has come to it."""
        self._arriving.append((ready_s, copy))

    def settle(self):
        """Writes what has arrived by now."""
        now = self.queue_now()
        arrived = [copy for ready_s, copy in self._arriving if ready_s <= now]
        self._arriving = [(ready_s, copy) for ready_s, copy in self._arriving if ready_s > now]
        with self.in_its_place():
            for copy in arrived:
                copy()

    def check(self):
        if self.error:
            raise torch.AcceleratorError(self.error)

    # ---- kernels ----

    @property
    def uses_tf32(self):
        """Whether products of fp32 are rounded."""
        return precision.format_of("cuda.matmul") == "tf32" and float(self.row.arch) >= 8

    def from_memory(self, moved):
        """The bytes that the memory moves for these storages; the cache's count by their shorter
        time.
        """
        size = 0
        for key, nbytes in moved.items():
            is_cached = self._cached.pop(key, None) is not None
            size += nbytes // TIMES_THE_CACHE_IS_FASTER_THAN_MEMORY if is_cached else nbytes
            self._cached[key] = nbytes
        # The longest unused goes first.
        while sum(self._cached.values()) > self.cache_bytes:
            del self._cached[next(iter(self._cached))]
        return size

    def kernel_s(self, flops, moved_bytes, dtype):
        """The roofline: the longer of arithmetic and memory."""
        return max(
            flops / self.rates.flop_per_s.get(dtype, 8e12),
            moved_bytes / self.rates.memory_bytes_per_s,
        )
