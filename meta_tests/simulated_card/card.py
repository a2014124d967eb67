"""The simulated card itself: what it is, its queues and clocks, its memory, its error, and what was asked of it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch

from accounting.devices import ACCELERATORS, bandwidth_bytes_per_s, peak_flop_per_s
from meta_tests.simulated_card.caching import MIB, CachingAllocator

LAUNCH_S = 4e-6  # what the host needs to launch a kernel
KERNEL_S = 2e-6  # the shortest kernel
PINNED_BYTES_PER_S = 4e9  # at which the system pins pages
BUS_BYTES_PER_S = {True: 50e9, False: 20e9}  # of pinned memory, of pageable
CACHE_SPEED = 3  # how many times as fast the last level of cache is as the memory
HOST_S = 1.5e-6  # the shortest operator of the CPU
HOST_FLOP_PER_S, HOST_BYTES_PER_S = 1e11, 2e10  # of a thread
SLOWNESS = 100  # this Python, which does the card's work too, against that of a host with a card
_wall_s = time.perf_counter


@dataclass
class Counts:
    """What was asked of the card so far."""

    launches: int = 0
    synchronisations: int = 0  # the host waited: item, cpu, equal, nonzero, synchronize, an event that is read
    to_card: int = 0
    to_host: int = 0
    allocations: int = 0
    events: int = 0
    pinned_blocks: int = 0  # that the host's cache did not have
    host_operators: int = 0  # those that ran on the CPU meanwhile

    @property
    def operations(self) -> int:
        """How often the card had anything to do."""
        return self.launches + self.allocations + self.events

    def since(self, before: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


@dataclass(eq=False)
class Stream:
    """A queue: `ready_s` is when all that was put into it will have run."""

    stream_id: int = 0
    ready_s: float = 0.0


@dataclass(eq=False)
class Card:
    """One card of the peak table, with less memory. `kind` is the device type that torch shall name."""

    label: str = "H100 SXM5 80GB"
    kind: str = "cuda"
    memory_bytes: int = 2048 * MIB
    cache_bytes: int = 50 * MIB
    throttles_after_s: float = float("inf")  # of work: then the clock falls to 60 %
    refused: frozenset[torch.dtype] = frozenset()
    counts: Counts = field(default_factory=Counts)
    only_timed: bool = False  # large results need no values
    error: str = ""  # sticky: whatever is asked of the card fails with it

    def __post_init__(self) -> None:
        self.row = ACCELERATORS[self.label]
        self.name = self.row.names[0] if self.row.names else self.label
        self.memory = CachingAllocator(self.memory_bytes)
        self.default_stream = self.stream = Stream()
        self.busy_s = self._queue_s = self._python_s = 0.0
        self._within = False
        self._looked = self._host()
        self._cached: dict[int, int] = {}  # bytes of storages that the last level of cache holds, the latest last
        self._arriving: list[tuple[float, Callable[[], object]]] = []

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind, 0)

    # ---- the host's clock -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """The host's clock: the queue's, and what a host's Python would take."""
        return self.queue_now() + self._python_s / SLOWNESS

    def queue_now(self) -> float:
        """The host's time as the queue sees it: launches, waits and sleep, the same however busy this machine is."""
        (wall_s, ran_s, sleeps), before = self._host(), self._looked
        self._looked = wall_s, ran_s, sleeps
        if self._within:
            pass
        elif sleeps > before[2]:
            self._queue_s += wall_s - before[0]
        else:
            self._python_s += max(0.0, ran_s - before[1])
        return self._queue_s

    @staticmethod
    def _host() -> tuple[float, float, int]:
        """Wall time, this thread's own, and how often it slept."""
        usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))  # the first: Linux alone
        return _wall_s(), time.thread_time(), usage.ru_nvcsw

    def let_pass(self, seconds: float) -> None:
        self._queue_s += seconds

    @contextmanager
    def in_its_place(self) -> Iterator[None]:
        """What the CPU does within, it does in the card's place, and in no time."""
        self.queue_now()
        before, self._within = self._within, True
        try:
            yield
        finally:
            self.queue_now()
            self._within = before

    # ---- the queue ------------------------------------------------------------------------------------------------

    def launch(self, seconds: float) -> float:
        """Puts a kernel of so many seconds at full clock into the current stream; returns when it will have run."""
        self.check()
        self.counts.launches += 1
        self.let_pass(LAUNCH_S)
        seconds = (KERNEL_S + seconds) / (0.6 if self.throttled else 1.0)
        self.busy_s += seconds
        self.stream.ready_s = max(self.stream.ready_s, self.queue_now()) + seconds
        return self.stream.ready_s

    @property
    def throttled(self) -> bool:
        return self.busy_s > self.throttles_after_s

    def synchronise(self, until_s: float | None = None) -> None:
        """The host waits, by default for all streams."""
        self.check()
        self.counts.synchronisations += 1
        until_s = max(self.stream.ready_s, self.default_stream.ready_s) if until_s is None else until_s
        self.let_pass(max(0.0, until_s - self.queue_now()))
        self.settle()

    def arrive_later(self, ready_s: float, copy: Callable[[], object]) -> None:
        """A copy to pinned memory, which shows in the host's memory only when the stream has come to it."""
        self._arriving.append((ready_s, copy))

    def settle(self) -> None:
        """Writes what has arrived by now."""
        now = self.queue_now()
        arrived = [copy for ready_s, copy in self._arriving if ready_s <= now]
        self._arriving = [(ready_s, copy) for ready_s, copy in self._arriving if ready_s > now]
        with self.in_its_place():
            for copy in arrived:
                copy()

    def check(self) -> None:
        if self.error:
            raise torch.AcceleratorError(self.error)

    def from_memory(self, moved: dict[int, int]) -> int:
        """What a kernel that moves so many bytes of these storages takes of the memory's time, in bytes."""
        size = sum(nbytes // (CACHE_SPEED if key in self._cached else 1) for key, nbytes in moved.items())
        for key, nbytes in moved.items():
            self._cached.pop(key, None)
            self._cached[key] = nbytes
        while sum(self._cached.values()) > self.cache_bytes:  # the longest unused goes first
            del self._cached[next(iter(self._cached))]
        return size

    # ---- numbers and rates -----------------------------------------------------------------------------------------

    @property
    def is_amd(self) -> bool:
        return self.row.arch.startswith("gfx")

    @property
    def uses_tf32(self) -> bool:
        """Whether products of fp32 are rounded; an AMD device asks for one more variable."""
        return torch.get_float32_matmul_precision() != "highest" and not self.is_amd and float(self.row.arch) >= 8

    def kernel_s(self, flops: float, moved_bytes: int, dtype: str) -> float:
        """The roofline: the longer of arithmetic at 80 % of the peak of `dtype` and bytes at 90 % of the bandwidth."""
        peak = peak_flop_per_s(self.row, dtype) or 10e12
        return max(flops / (0.8 * peak), moved_bytes / (0.9 * (bandwidth_bytes_per_s(self.row) or 1e12)))
