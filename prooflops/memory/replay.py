"""The bytes of each phase, from the order in which storages were allocated and freed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from prooflops.memory.caching_allocator import Block, CachingAllocator, OutOfMemory
from prooflops.memory.ledger import Event, Ledger
from prooflops.memory.phases import PhaseBytes

LARGEST_SHOWN = 10


@dataclass(frozen=True)
class HeldTensor:
    """A storage that is held at a peak: its bytes, its class, and what allocated it."""

    held_bytes: int
    in_class: str
    operator: str
    module: str
    line: str

    def __str__(self) -> str:
        places = ", ".join(filter(None, [self.operator, self.module, self.line]))
        return f"{self.held_bytes:,} B of {self.in_class}: {places}"


@dataclass(frozen=True)
class PredictedBytes(PhaseBytes):
    """The predicted bytes of one phase; levels are relative to the start of the block.

    `live_bytes` and `peak_bytes` are what tensors request, on CUDA also cuBLAS's workspaces and the
    known scratch of kernels. `charged_…` are the blocks that CUDA's caching allocator sets aside
    for them (`torch.cuda.memory_allocated`), `reserved_…` the segments that these blocks are cut
    from (`torch.cuda.memory_reserved`), in a process that begins with an empty cache; None on the
    CPU.

    A storage that outlives the phase that allocated it belongs to the class of that phase (a
    training step's: see `CLASSES`). The others are "recomputed", if a checkpointed segment
    allocates them again, or "temporaries". `largest_at_peak` are the ten largest storages that are
    held at the peak, with the module and the line that allocated each.
    """

    live_by_class: dict[str, int]
    peak_by_class: dict[str, int]
    peak_by_module: dict[str, int]
    largest_at_peak: tuple[HeldTensor, ...]
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


class Descriptions:
    """The class, the module and the line of each storage."""

    def __init__(
        self, ledger: Ledger, classes: Mapping[str, str], modules: Mapping[int, str]
    ) -> None:
        self._storages = ledger.storages
        self._phase_classes = [*(classes.get(name, name) for name in ledger.phase_names), "rest"]
        self._modules = modules

    def by_class(self, numbers: Iterable[int]) -> dict[str, int]:
        return self._summed((self._class(number), number) for number in numbers)

    def by_module(self, numbers: Iterable[int]) -> dict[str, int]:
        return self._summed((self._module(number), number) for number in numbers)

    def largest(self, numbers: Iterable[int]) -> tuple[HeldTensor, ...]:
        """The largest of these storages, the largest first."""
        largest = nlargest(LARGEST_SHOWN, numbers, key=lambda number: self._storages[number].size)
        return tuple(map(self._described, largest))

    def _described(self, number: int) -> HeldTensor:
        storage = self._storages[number]
        return HeldTensor(
            held_bytes=storage.size,
            in_class=self._class(number),
            operator=str(storage.operator),
            module=self._module(number),
            line="" if storage.place.line is None else str(storage.place.line),
        )

    def _class(self, number: int) -> str:
        storage = self._storages[number]
        if storage.class_name is not None:
            return storage.class_name
        if storage.is_temporary:
            return "recomputed" if storage.is_recomputed else "temporaries"
        return self._phase_classes[storage.phase]

    def _module(self, number: int) -> str:
        module = self._storages[number].place.module
        return "" if module is None else self._modules.get(module, "")

    def _summed(self, named: Iterable[tuple[str, int]]) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for name, number in named:
            sums[name] += self._storages[number].size
        return {name: size for name, size in sums.items() if size}


def replay(
    ledger: Ledger,
    classes: Mapping[str, str],
    modules: Mapping[int, str],
    allocator: CachingAllocator | None,
) -> list[PredictedBytes]:
    """The bytes of each phase; those of CUDA's caching allocator where one is given.

    Raises OutOfMemory where the allocator has a capacity that the block exceeds.
    """
    descriptions = Descriptions(ledger, classes, modules)
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
                live_by_class=descriptions.by_class(sorted(states.held)),
                peak_by_class=descriptions.by_class(at_peak),
                peak_by_module=descriptions.by_module(at_peak),
                largest_at_peak=descriptions.largest(at_peak),
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
        """Whether torch's allocator gets through all phases with so much memory.

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

        def is_too_large(size: int) -> bool:
            return not self.of_size(size).fits_into(capacity_bytes)

        beyond = 1
        while beyond <= ceiling and not is_too_large(beyond):
            beyond *= 2
        found = range(beyond // 2 + 1, min(beyond, ceiling + 1))
        return beyond // 2 + bisect_left(found, True, key=is_too_large)
