"""The storages that a block of code allocates and frees on fake tensors, in order, and the bytes of its phases."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from accounting.allocator import charge_bounds
from prooflops.measured.phases import PhaseBytes
from prooflops.predicted.scratch import Call, Kernel, kernels_of


class Event(NamedTuple):
    """A storage is allocated or freed."""

    storage: int
    allocated: bool
    moment: int  # the number of operations dispatched before
    successor_of: int | None = None  # the storage that a plain tensor's kernel may write to instead


class CallMade(NamedTuple):
    """A call of an operator that may need scratch."""

    call: Call
    phase: int
    position: int  # the number of events before it needs its scratch; its outputs are among them
    outputs: tuple[int, ...]  # the storages that it allocates


@dataclass
class Storage:
    """The bytes of one storage."""

    size: int
    recomputed: bool
    name: str | None = None  # of its class, where it was given one


class Ledger:
    """Every storage of one device type that was allocated and freed, in order."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: list[Storage] = []
        self.events: list[Event | None] = []  # None: an allocation that took over a freed storage
        self.names: list[str] = []
        self.ends: list[
            int
        ] = []  # the number of events before each mark, the end of the block the last
        self.calls: list[CallMade] = []  # of operators that may need scratch
        self.kernels: dict[Call, Kernel] | None = None  # None: not measured
        self.moment = 0
        self._scratch_at: dict[tuple[int, int], int] = {}
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._first: dict[int, int] = {}  # of a storage that took over others: the first of them

    def see(
        self, tensor: Tensor, recomputed: bool = False, successor_of: int | None = None
    ) -> None:
        """Enters the tensor's storage if it is on this device and was not seen before."""
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            number = self._known[key][1]
            if self.storages[number].size == size:
                return
            self._end(key, number)  # resized
        number = self._allocate(size, recomputed, successor_of)
        self._known[key] = (weakref.ref(storage, lambda _: self._end(key, number)), number)

    def _allocate(
        self, size: int, recomputed: bool = False, successor_of: int | None = None
    ) -> int:
        number = len(self.storages)
        self.storages.append(Storage(size, recomputed))
        self.events.append(Event(number, True, self.moment, successor_of))
        return number

    def _end(self, key: int, number: int) -> None:
        if self._known.get(key, (None, None))[1] == number:
            del self._known[key]
            self._free(number)

    def _free(self, number: int) -> None:
        """Enters the end of a storage, unless the operation just dispatched writes to it in a real run."""
        for position in reversed(range(len(self.events))):
            event = self.events[position]
            if event is None or event.moment != self.moment:
                break
            if event.allocated:
                if (
                    event.successor_of == number
                    and self.storages[event.storage].size == self.storages[number].size
                ):
                    self._first[event.storage] = self._first.get(number, number)
                    self.events[position] = None
                    return
                break
        self.events.append(Event(self._first.get(number, number), False, self.moment))

    def lend(self, size: int) -> Callable[[], None]:
        """Enters a storage that no Python object refers to; returns the function that frees it, once."""
        lent = [self._allocate(size)]

        def end() -> None:
            if lent:
                self._free(lent.pop())

        return end

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the tensor's storage; None if it was not seen."""
        return self._known.get(tensor.untyped_storage()._cdata, (None, None))[1]

    def name(self, name: str, tensor: Tensor) -> None:
        """Puts the tensor's storage into a class of that name."""
        number = self.number_of(tensor)
        if number is not None:
            self.storages[self._first.get(number, number)].name = name

    def mark(self, name: str | None) -> None:
        """Ends the phase `name`; None ends the block."""
        if name is not None:
            self.names.append(name)
        self.ends.append(len(self.events))

    def measure_scratch(self) -> None:
        """Measures each distinct call once. Raises RuntimeError where a kernel's outputs differ from its fake ones."""
        self.kernels = kernels_of({made.call for made in self.calls}, self.device)
        for made in self.calls:
            kernel = self.kernels[made.call]
            place = (made.phase, made.position)
            self._scratch_at[place] = max(self._scratch_at.get(place, 0), kernel.scratch_bytes)
            fake = tuple(self.storages[number].size for number in made.outputs)
            if fake != kernel.output_bytes:
                raise RuntimeError(
                    f"{made.call.operator} returns {kernel.output_bytes} bytes, but its fake {fake}"
                )

    @property
    def knows_scratch(self) -> bool:
        """Whether the scratch of every operator is known."""
        return self.kernels is not None or not self.calls

    def scratch_at(self, phase: int, position: int) -> int:
        """Bytes of the kernels' scratch in this phase when `position` events have happened."""
        return self._scratch_at.get((phase, position), 0)


@dataclass(frozen=True)
class PredictedBytes(PhaseBytes):
    """The predicted bytes of one phase; levels are relative to the start of the block, as in `prooflops.measured`.

    A storage that outlives the phase that allocated it belongs to the class of that phase (a training step's: see
    `CLASSES`). The others are "recomputed", if a checkpointed segment allocates them again, or "temporaries".
    `charged_…` are the least and the most that CUDA's caching allocator may set aside for the live storages
    (`accounting.allocator.charge_bounds`); None on the CPU. `peak_bytes` is without kernels' scratch.
    """

    peak_bytes_with_scratch: int | None  # None where an operator's scratch is not known
    live_by_class: dict[str, int]
    peak_by_class: dict[str, int]
    charged_live_bytes: tuple[int, int] | None
    charged_peak_bytes: tuple[int, int] | None


def replay(ledger: Ledger, classes: Mapping[str, str]) -> list[PredictedBytes]:
    """The bytes of each phase, from the order in which storages were allocated and freed."""
    class_of = classes_of(ledger, classes)
    is_cuda = ledger.device == "cuda"
    live = low = high = start = 0
    by_class: Counter[str] = Counter()
    phases = []
    for phase, end in enumerate(ledger.ends):
        allocated = freed = 0
        peak = peak_with_scratch = live
        peak_by_class, peak_low, peak_high = dict(by_class), low, high
        for position in range(start, end + 1):
            peak_with_scratch = max(peak_with_scratch, live + ledger.scratch_at(phase, position))
            event = ledger.events[position] if position < end else None
            if event is None:
                continue
            size = ledger.storages[event.storage].size
            sign = 1 if event.allocated else -1
            live += sign * size
            by_class[class_of[event.storage]] += sign * size
            if is_cuda:
                charges = charge_bounds(size)
                low, high = low + sign * charges[0], high + sign * charges[1]
                peak_low, peak_high = max(peak_low, low), max(peak_high, high)
            if event.allocated:
                allocated += size
            else:
                freed += size
            if live > peak:
                peak, peak_by_class = live, dict(by_class)
        phases.append(
            PredictedBytes(
                allocated_bytes=allocated,
                freed_bytes=freed,
                live_bytes=live,
                peak_bytes=peak,
                peak_bytes_with_scratch=max(peak, peak_with_scratch)
                if ledger.knows_scratch
                else None,
                live_by_class={name: size for name, size in by_class.items() if size},
                peak_by_class={name: size for name, size in peak_by_class.items() if size},
                charged_live_bytes=(low, high) if is_cuda else None,
                charged_peak_bytes=(peak_low, peak_high) if is_cuda else None,
            )
        )
        start = end
    return phases


def classes_of(ledger: Ledger, classes: Mapping[str, str]) -> dict[int, str]:
    """The class of each storage by its number."""
    found: dict[int, str] = {}
    phases: dict[int, int] = {}  # that allocated each storage which is still held
    for position, event in enumerate(ledger.events[: ledger.ends[-1]]):
        if event is None:
            continue
        storage = ledger.storages[event.storage]
        if event.allocated:
            phase = phases[event.storage] = bisect_right(ledger.ends, position)
            name = ledger.names[phase] if phase < len(ledger.names) else "rest"
            found[event.storage] = storage.name or classes.get(name, name)
        elif position < ledger.ends[phases[event.storage]] and storage.name is None:
            found[event.storage] = "recomputed" if storage.recomputed else "temporaries"
    return found
