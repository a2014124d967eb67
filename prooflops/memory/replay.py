"""The bytes of each phase, from the order in which storages were allocated and freed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest

from prooflops.memory.caching_allocator import Block, CachingAllocator, OutOfMemory
from prooflops.memory.ledger import Event, Ledger, Storage
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

    def __init__(self, ledger: Ledger, allocator: CachingAllocator | None) -> None:
        self.allocator = allocator
        self.live_bytes = 0
        # In the order in which they were allocated.
        self.held: dict[int, None] = {}
        self._ledger = ledger
        self._blocks: dict[int, Block | None] = {}

    def follow(self, event: Event) -> int:
        """Follows an event; returns the bytes that it adds, or frees if negative."""
        size = self._ledger.storages[event.storage].size
        if event.is_allocated:
            self.held[event.storage] = None
            if self.allocator is not None:
                self._blocks[event.storage] = self.allocator.allocate(size)
        else:
            del self.held[event.storage]
            size = -size
            if self.allocator is not None:
                self.allocator.free(self._blocks.pop(event.storage))
        self.live_bytes += size
        return size

    def charged(self) -> tuple[int, int]:
        """Charged and reserved bytes of the allocator; zeros without one."""
        if self.allocator is None:
            return 0, 0
        return self.allocator.allocated_bytes, self.allocator.reserved_bytes


def replay(
    ledger: Ledger,
    classes: Mapping[str, str],
    modules: Mapping[int, str],
    allocator: CachingAllocator | None,
) -> list[PredictedBytes]:
    """The bytes of each phase; those of CUDA's caching allocator where one is given.

    Raises OutOfMemory where the allocator has a capacity that the block exceeds.
    """
    class_of = classes_of(ledger, classes)
    states = Replayed(ledger, allocator)
    # A second run stops at the first one's peaks, where it reads what is held.
    at_peaks = Replayed(ledger, None)
    phases: list[PredictedBytes] = []
    start = 0
    for end in ledger.phase_ends:
        figures, peak_at = _phase(ledger, range(start, end), states)
        _advance(at_peaks, ledger.events[start:peak_at])
        at_peak = list(at_peaks.held)
        sizes = {number: ledger.storages[number].size for number in at_peak}
        _advance(at_peaks, ledger.events[peak_at:end])
        phases.append(
            PredictedBytes(
                allocated_bytes=figures.allocated,
                freed_bytes=figures.freed,
                live_bytes=states.live_bytes,
                peak_bytes=figures.peak,
                live_by_class=_summed((class_of[n], ledger.storages[n].size) for n in states.held),
                peak_by_class=_summed((class_of[n], size) for n, size in sizes.items()),
                peak_by_module=_summed(
                    (_module_of(ledger.storages[n], modules), size) for n, size in sizes.items()
                ),
                largest_at_peak=_largest(at_peak, ledger, class_of, modules),
                charged_live_bytes=allocator.allocated_bytes if allocator else None,
                charged_peak_bytes=figures.charged_peak if allocator else None,
                reserved_live_bytes=allocator.reserved_bytes if allocator else None,
                reserved_peak_bytes=figures.reserved_peak if allocator else None,
            )
        )
        start = end
    return phases


def fits_into(ledger: Ledger, capacity_bytes: int) -> bool:
    """Whether torch's allocator gets through all phases with so much memory.

    Segments are returned to the driver and requested again where that makes room.
    """
    states = Replayed(ledger, CachingAllocator(capacity_bytes))
    try:
        _advance(states, ledger.events)
    except OutOfMemory:
        return False
    return True


@dataclass
class _Figures:
    allocated: int
    freed: int
    peak: int
    charged_peak: int
    reserved_peak: int


def _phase(ledger: Ledger, positions: range, states: Replayed) -> tuple[_Figures, int]:
    """The figures of one phase, and the position before which it is at its peak."""
    found = _Figures(0, 0, states.live_bytes, *states.charged())
    peak_at = positions.start
    for position in positions:
        change = states.follow(ledger.events[position])
        found.allocated += max(0, change)
        found.freed -= min(0, change)
        if states.live_bytes > found.peak:
            found.peak, peak_at = states.live_bytes, position + 1
        charged, reserved = states.charged()
        found.charged_peak = max(found.charged_peak, charged)
        found.reserved_peak = max(found.reserved_peak, reserved)
    return found, peak_at


def _advance(states: Replayed, events: Iterable[Event]) -> None:
    for event in events:
        states.follow(event)


def _largest(
    numbers: Iterable[int], ledger: Ledger, class_of: Mapping[int, str], modules: Mapping[int, str]
) -> tuple[HeldTensor, ...]:
    """The largest of these storages, the largest first."""
    found = []
    for number in nlargest(LARGEST_SHOWN, numbers, key=lambda each: ledger.storages[each].size):
        storage = ledger.storages[number]
        line = "" if storage.place.line is None else str(storage.place.line)
        module = _module_of(storage, modules)
        operator = str(storage.operator)
        found.append(HeldTensor(storage.size, class_of[number], operator, module, line))
    return tuple(found)


def _module_of(storage: Storage, modules: Mapping[int, str]) -> str:
    module = storage.place.module
    return "" if module is None else modules.get(module, "")


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, size in pairs:
        sums[name] += size
    return {name: size for name, size in sums.items() if size}


def classes_of(ledger: Ledger, classes: Mapping[str, str]) -> dict[int, str]:
    """The class of each storage by its number."""
    found: dict[int, str] = {}
    # The phase that allocated each storage which is still held.
    phases: dict[int, int] = {}
    for position, event in enumerate(ledger.events):
        storage = ledger.storages[event.storage]
        if event.is_allocated:
            phase = phases[event.storage] = bisect_right(ledger.phase_ends, position)
            name = ledger.phase_names[phase] if phase < len(ledger.phase_names) else "rest"
            found[event.storage] = storage.class_name or classes.get(name, name)
        elif position < ledger.phase_ends[phases[event.storage]] and storage.class_name is None:
            found[event.storage] = "recomputed" if storage.is_recomputed else "temporaries"
    return found
