"""The bytes of each phase, from the order in which storages were allocated and freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prooflops.memory.caching_allocator import Block, CachingAllocator, OutOfMemory
from prooflops.memory.ledger import Event, Ledger, Storage
from prooflops.memory.phases import PhaseBytes
from prooflops.memory.repetition import SECOND
from prooflops.memory.search import largest_size


@dataclass(frozen=True)
class PredictedBytes(PhaseBytes):
    """The predicted bytes of one phase; levels are relative to the start of the block.

    `live_bytes` and `peak_bytes` are what tensors request, on CUDA also cuBLAS's workspaces and the
    known scratch of kernels. `charged_…` are the blocks that CUDA's caching allocator sets aside
    for them (`torch.cuda.memory_allocated`). `reserved_…` are the segments of these blocks
    (`torch.cuda.memory_reserved`), in a process that begins with an empty cache. Both are None on
    the CPU.

    A storage that outlives the phase that allocated it belongs to the class of that phase (a
    training step's: see `CLASSES`). The others are "recomputed", if a checkpointed segment
    allocates them again, or "temporaries".
    """

    live_by_class: dict[str, int]
    peak_by_class: dict[str, int]
    charged_live_bytes: int | None
    charged_peak_bytes: int | None
    reserved_live_bytes: int | None
    reserved_peak_bytes: int | None


class Replayed:
    """Storages as they come and go, and the blocks of an allocator that they lie in."""

    def __init__(self, sizes: Sequence[int], allocator: CachingAllocator | None) -> None:
        self.live_bytes = 0
        self.held: set[int] = set()
        self._sizes = sizes
        self._allocator = allocator
        self._blocks: dict[int, Block | None] = {}

    def follow(self, event: Event) -> None:
        """Raises OutOfMemory where the allocator has a capacity that is exceeded."""
        size = self._sizes[event.storage]
        if event.is_allocated:
            self.held.add(event.storage)
            self.live_bytes += size
            if self._allocator is not None:
                self._blocks[event.storage] = self._allocator.allocate(size)
        else:
            self.held.remove(event.storage)
            self.live_bytes -= size
            if self._allocator is not None:
                self._allocator.free(self._blocks.pop(event.storage))


class PhasePeaks:
    """The highest levels of one phase, and the storages that are held at its peak."""

    def __init__(self, states: Replayed, allocator: CachingAllocator | None) -> None:
        self._states = states
        self._allocator = allocator
        self._since_peak: list[Event] = []
        self.bytes = states.live_bytes
        self.charged = allocator.allocated_bytes if allocator else None
        self.reserved = allocator.reserved_bytes if allocator else None

    def note(self, event: Event) -> None:
        """Notes the levels after an event."""
        self._since_peak.append(event)
        if self._states.live_bytes > self.bytes:
            self.bytes = self._states.live_bytes
            self._since_peak.clear()
        if self._allocator is not None:
            self.charged = max(self.charged or 0, self._allocator.allocated_bytes)
            self.reserved = max(self.reserved or 0, self._allocator.reserved_bytes)

    def held(self) -> list[int]:
        """The storages held at the peak, in the order of their allocation."""
        held = set(self._states.held)
        for storage, is_allocated in reversed(self._since_peak):
            if is_allocated:
                held.remove(storage)
            else:
                held.add(storage)
        return sorted(held)


def phase_classes(ledger: Ledger, classes: Mapping[str, str]) -> list[str]:
    """The class of each storage: by its name, else by the phase which allocated it.

    Micro-batches and the second step share the classes of the first, as "second forward 1" does.
    """
    names = []
    for name in ledger.phase_names:
        kind = name.removeprefix(SECOND).partition(" ")[0]
        names.append(classes.get(kind, name))
    names.append("rest")
    return [each.class_name or names[each.phase] for each in ledger.storages]


def _class_of(storage: Storage, phase_class: str) -> str:
    if storage.class_name is None and storage.is_temporary:
        return "recomputed" if storage.is_recomputed else "temporaries"
    return phase_class


def replay(
    ledger: Ledger,
    classes: Mapping[str, str],
    allocator: CachingAllocator | None,
) -> list[PredictedBytes]:
    """The bytes of each phase; those of CUDA's caching allocator where one is given.

    Raises OutOfMemory where the allocator has a capacity that the block exceeds.
    """
    of_each = list(map(_class_of, ledger.storages, phase_classes(ledger, classes)))

    def by_class(numbers: Iterable[int]) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for number in numbers:
            sums[of_each[number]] += ledger.storages[number].size
        return {name: size for name, size in sums.items() if size}

    states = Replayed([storage.size for storage in ledger.storages], allocator)
    phases: list[PredictedBytes] = []
    start = 0
    for end in ledger.phase_ends:
        events = ledger.events[start:end]
        peaks = PhasePeaks(states, allocator)
        for event in events:
            states.follow(event)
            peaks.note(event)
        at_peak = peaks.held()
        sizes = [(ledger.storages[event.storage].size, event.is_allocated) for event in events]
        phases.append(
            PredictedBytes(
                allocated_bytes=sum(size for size, is_allocated in sizes if is_allocated),
                freed_bytes=sum(size for size, is_allocated in sizes if not is_allocated),
                live_bytes=states.live_bytes,
                peak_bytes=peaks.bytes,
                live_by_class=by_class(sorted(states.held)),
                peak_by_class=by_class(at_peak),
                charged_live_bytes=allocator.allocated_bytes if allocator else None,
                charged_peak_bytes=peaks.charged,
                reserved_live_bytes=allocator.reserved_bytes if allocator else None,
                reserved_peak_bytes=peaks.reserved,
            )
        )
        start = end
    return phases


@dataclass(frozen=True)
class Requests:
    """The requests and frees of a block to CUDA's caching allocator, in order.

    It also has the bytes of each storage.
    """

    events: Sequence[Event]
    sizes: Sequence[int]

    @property
    def reserved_bytes(self) -> int:
        """The most that `torch.cuda.memory_reserved` will read where memory is no limit."""
        allocator = CachingAllocator()
        self._replay(allocator)
        # Nothing is returned to the driver.
        return allocator.reserved_bytes

    def fits_into(self, capacity_bytes: int) -> bool:
        """True if torch's allocator gets through all phases with so much memory.

        Segments are returned to the driver and requested again where that makes room.
        """
        try:
            self._replay(CachingAllocator(capacity_bytes))
        except OutOfMemory:
            return False
        return True

    def _replay(self, allocator: CachingAllocator) -> None:
        states = Replayed(self.sizes, allocator)
        for event in self.events:
            states.follow(event)


@dataclass(frozen=True)
class Growth:
    """The requests of a step of any size, each on the line through those of two sizes."""

    size: int
    requests: Requests
    other_size: int
    other: Requests

    def of_size(self, size: int) -> Requests:
        """The requests of a size that was not predicted."""
        span = self.other_size - self.size
        both = zip(self.requests.sizes, self.other.sizes, strict=True)
        steps = size - self.size
        sizes = [max(0, first + steps * (second - first) // span) for first, second in both]
        return Requests(self.requests.events, sizes)

    def largest(self, capacity_bytes: int, ceiling: int) -> int:
        """The largest size up to `ceiling` that fits, if sizes above it do not; 0 where none does.

        >>> events = [Event(0, True), Event(1, True), Event(1, False), Event(0, False)]
        >>> mib = 2**20
        >>> one, two = (Requests(events, [100 * mib, size * 40 * mib]) for size in (1, 2))
        >>> Growth(1, one, 2, two).largest(500 * mib, ceiling=1000)
        10
        """

        def does_fit(size: int) -> bool:
            return self.of_size(size).fits_into(capacity_bytes)

        reserved = self.requests.reserved_bytes
        slope = (self.other.reserved_bytes - reserved) // (self.other_size - self.size)
        near = max(1, self.size + (capacity_bytes - reserved) // max(1, slope))
        return largest_size(does_fit, lambda: near, near, ceiling)
