"""The storages that a block of code allocates and frees on fake tensors, in order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from prooflops.memory.calls import Call
from prooflops.memory.kernels import Kernel, Refusal, kernels_of
from prooflops.memory.places import NOWHERE, Place

WORKSPACES = "workspaces"


class Event(NamedTuple):
    """A storage is allocated or freed."""

    storage: int
    allocated: bool
    # The number of operations dispatched before.
    moment: int
    # The storage that a plain tensor's kernel may write to instead.
    successor_of: int | None = None


class CallMade(NamedTuple):
    """A call of an operator that may need scratch."""

    call: Call
    phase: int
    # The number of events before it needs its scratch; its outputs are among them.
    position: int
    # The storages that it allocates.
    outputs: tuple[int, ...]


@dataclass
class Storage:
    """The bytes of one storage, and what made it."""

    size: int
    recomputed: bool = False
    operator: object = ""
    place: Place = NOWHERE
    # Of its class, where it was given one.
    name: str | None = None


class Ledger:
    """Every storage of one device type that was allocated and freed, in order."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: list[Storage] = []
        # None: an allocation that took over a freed storage.
        self.events: list[Event | None] = []
        self.names: list[str] = []
        # The number of events before each mark, the end of the block the last.
        self.ends: list[int] = []
        # Of operators that may need scratch.
        self.calls: list[CallMade] = []
        # None: not measured.
        self.kernels: dict[Call, Kernel | Refusal] | None = None
        self.moment = 0
        # The place among the events of the last allocation.
        self._last_allocation = 0
        # What the operation that is being entered is, and where it was called.
        self.operator: object = ""
        self.place = NOWHERE
        self._scratch_at: dict[tuple[int, int], int] = {}
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        # The first of a chain of storages that took one another over.
        self._first: dict[int, int] = {}

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
            # It was resized.
            self._end(key, number)
        number = self._allocate(size, recomputed, successor_of)
        self._known[key] = (weakref.ref(storage, lambda _: self._end(key, number)), number)

    def _allocate(
        self, size: int, recomputed: bool = False, successor_of: int | None = None
    ) -> int:
        number = len(self.storages)
        self.storages.append(Storage(size, recomputed, self.operator, self.place))
        self._last_allocation = len(self.events)
        self.events.append(Event(number, True, self.moment, successor_of))
        return number

    def _end(self, key: int, number: int) -> None:
        if self._known.get(key, (None, None))[1] == number:
            del self._known[key]
            self._free(number)

    def _free(self, number: int) -> None:
        """Enters the end of a storage, unless the operation just dispatched writes to it."""
        position = self._last_allocation
        event = self.events[position] if self.events else None
        if event is not None and event.moment == self.moment and event.successor_of == number:
            is_same_size = self.storages[event.storage].size == self.storages[number].size
            if is_same_size:
                self._first[event.storage] = self._first.get(number, number)
                self.events[position] = None
                return
        self.events.append(Event(self._first.get(number, number), False, self.moment))

    def lend(self, size: int, name: str | None = None) -> Callable[[], None]:
        """Enters a storage that no Python object refers to; returns what frees it, once."""
        lent = [self._allocate(size)]
        self.storages[lent[0]].name = name

        def end() -> None:
            if lent:
                self._free(lent.pop())

        return end

    def lend_together(self, sizes: Sequence[int]) -> None:
        """Enters storages that are held at one moment and freed again."""
        for end in [self.lend(size) for size in sizes]:
            end()

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the tensor's storage; None if it was not seen."""
        return self._known.get(tensor.untyped_storage()._cdata, (None, None))[1]

    def storage_of(self, tensor: Tensor) -> Storage | None:
        """The tensor's storage, the first of those that took it over; None if it was not seen."""
        number = self.number_of(tensor)
        return None if number is None else self.storages[self._first.get(number, number)]

    def mark(self, name: str | None) -> None:
        """Ends the phase `name`; None ends the block."""
        if name is not None:
            self.names.append(name)
        self.ends.append(len(self.events))

    def measure_scratch(self) -> None:
        """Measures each distinct call once. Raises RuntimeError where outputs are not as faked."""
        self.kernels = kernels_of({made.call for made in self.calls}, self.device)
        for made in self.calls:
            kernel = self.kernels[made.call]
            if not isinstance(kernel, Kernel):
                continue
            place = (made.phase, made.position)
            self._scratch_at[place] = max(self._scratch_at.get(place, 0), kernel.scratch_bytes)
            sizes = [self.storages[number].size for number in made.outputs]
            # Where a kernel returns no tensor, as an LSTM no workspace without a graph, its fake
            # is an empty one.
            fake = tuple(filter(None, sizes))
            if fake != tuple(filter(None, kernel.output_bytes)):
                raise RuntimeError(
                    f"{made.call.operator} returns {kernel.output_bytes} bytes, but its fake {fake}"
                )

    def unmeasured_calls(self) -> list[CallMade]:
        """The calls whose scratch is neither known nor measured."""
        kernels = self.kernels or {}
        return [made for made in self.calls if not isinstance(kernels.get(made.call), Kernel)]

    def scratch_at(self, phase: int, position: int) -> int:
        """Bytes of kernels' measured scratch in this phase when `position` events have happened."""
        return self._scratch_at.get((phase, position), 0)
