"""The storages that a block of code allocates and frees on fake tensors, in order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from accounting.predicted.scratch import Call, Kernel, kernels_of


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
        self.ends: list[int] = []  # the number of events before each mark, the end of the block the last
        self.calls: list[CallMade] = []  # of operators that may need scratch
        self.kernels: dict[Call, Kernel] | None = None  # None: not measured
        self.moment = 0
        self._scratch_at: dict[tuple[int, int], int] = {}
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._first: dict[int, int] = {}  # of a storage that took over others: the first of them

    def see(self, tensor: Tensor, recomputed: bool = False, successor_of: int | None = None) -> None:
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

    def _allocate(self, size: int, recomputed: bool = False, successor_of: int | None = None) -> int:
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
                if event.successor_of == number and self.storages[event.storage].size == self.storages[number].size:
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
                raise RuntimeError(f"{made.call.operator} returns {kernel.output_bytes} bytes, but its fake {fake}")

    @property
    def knows_scratch(self) -> bool:
        """Whether the scratch of every operator is known."""
        return self.kernels is not None or not self.calls

    def scratch_at(self, phase: int, position: int) -> int:
        """Bytes of the kernels' scratch in this phase when `position` events have happened."""
        return self._scratch_at.get((phase, position), 0)
