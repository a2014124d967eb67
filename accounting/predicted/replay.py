"""The bytes of each phase of a block, at its end and at its peak, from the order of allocations and frees."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from accounting.allocator import charge_bounds
from accounting.measured.phases import PhaseBytes
from accounting.predicted.ledger import Ledger, Storage


@dataclass(frozen=True)
class PredictedBytes(PhaseBytes):
    """The predicted bytes of one phase; levels are relative to the start of the block, as in `accounting.measured`.

    Storages that outlive the phase that allocated them belong to the class of its name (a training step's: see
    `CLASSES`); of the others, "recomputed" are those that a checkpointed segment allocates as it runs again, and
    "temporaries" the rest. `charged_…` are the least and the most that CUDA's caching allocator may set aside for the
    live storages (`accounting.allocator.charge_bounds`); None on the CPU. `peak_bytes` is without kernels' scratch.
    """

    peak_bytes_with_scratch: int | None  # None where an operator's scratch is not known
    live_by_class: dict[str, int]
    peak_by_class: dict[str, int]
    charged_live_bytes: tuple[int, int] | None
    charged_peak_bytes: tuple[int, int] | None


def replay(ledger: Ledger, classes: Mapping[str, str]) -> list[PredictedBytes]:
    """The bytes of each phase, from the order in which storages were allocated and freed."""
    first, last, inherited = _successions(ledger)
    allocated_in: dict[int, int] = {}
    freed_at: dict[int, int] = {}
    for position, event in enumerate(ledger.events[: ledger.ends[-1]]):
        if event.allocated:
            allocated_in[event.storage] = bisect_right(ledger.ends, position)
        else:
            freed_at[event.storage] = position

    def class_of(number: int) -> str:
        storage, phase = ledger.storages[number], allocated_in[number]
        if storage.name is not None:
            return storage.name
        if freed_at.get(last.get(number, number), len(ledger.events)) >= ledger.ends[phase]:
            name = ledger.names[phase] if phase < len(ledger.names) else "rest"
            return classes.get(name, name)
        return "recomputed" if storage.recomputed else "temporaries"

    levels = _Levels(
        ledger.device == "cuda", {number: class_of(number) for number in allocated_in if number not in first}
    )
    segments, start = [], 0
    for phase, end in enumerate(ledger.ends):
        levels.begin_phase()
        for position in range(start, end + 1):
            levels.add_scratch(ledger.scratch_at(phase, position))
            if position < end and position not in inherited:
                event = ledger.events[position]
                number = first.get(event.storage, event.storage)
                levels.enter(number, ledger.storages[number], event.allocated)
        segments.append(levels.bytes(ledger.knows_scratch))
        start = end
    return segments


def _successions(ledger: Ledger) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """Storages that are one and the same in a real run: later -> first, first -> last; and the events to leave out."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    inherited: set[int] = set()
    for position, event in enumerate(ledger.events):
        ancestor = event.successor_of
        if ancestor is None or ledger.storages[ancestor].size != ledger.storages[event.storage].size:
            continue
        for later in range(position + 1, len(ledger.events)):
            other = ledger.events[later]
            if other.allocated or other.moment != event.moment:
                break
            if other.storage == ancestor:
                root = first.get(ancestor, ancestor)
                first[event.storage] = root
                last[root] = event.storage
                inherited |= {position, later}
                break
    return first, last, inherited


class _Levels:
    """Levels and their peaks while storages come and go."""

    def __init__(self, has_charges: bool, class_of: Mapping[int, str]) -> None:
        self._has_charges = has_charges
        self._class_of = class_of
        self._live = self._low = self._high = 0
        self._by_class: Counter[str] = Counter()

    def begin_phase(self) -> None:
        self._allocated = self._freed = 0
        self._peak, self._peak_by_class = self._live, dict(self._by_class)
        self._peak_with_scratch = self._live
        self._charged_peak = (self._low, self._high)

    def enter(self, number: int, storage: Storage, allocated: bool) -> None:
        sign = 1 if allocated else -1
        self._live += sign * storage.size
        self._by_class[self._class_of[number]] += sign * storage.size
        if self._has_charges:
            low, high = charge_bounds(storage.size)
            self._low, self._high = self._low + sign * low, self._high + sign * high
        if not allocated:
            self._freed += storage.size
            return
        self._allocated += storage.size
        self._charged_peak = (max(self._charged_peak[0], self._low), max(self._charged_peak[1], self._high))
        if self._live > self._peak:
            self._peak, self._peak_by_class = self._live, dict(self._by_class)

    def add_scratch(self, scratch: int) -> None:
        self._peak_with_scratch = max(self._peak_with_scratch, self._live + scratch)

    def bytes(self, knows_scratch: bool) -> PredictedBytes:
        return PredictedBytes(
            allocated_bytes=self._allocated,
            freed_bytes=self._freed,
            live_bytes=self._live,
            peak_bytes=self._peak,
            peak_bytes_with_scratch=max(self._peak, self._peak_with_scratch) if knows_scratch else None,
            live_by_class=_without_zeros(self._by_class),
            peak_by_class=_without_zeros(self._peak_by_class),
            charged_live_bytes=(self._low, self._high) if self._has_charges else None,
            charged_peak_bytes=self._charged_peak if self._has_charges else None,
        )


def _without_zeros(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}
