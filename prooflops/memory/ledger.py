"""The storages that a block of code allocates and frees on fake tensors, in order."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor


class Event(NamedTuple):
    """A storage, by its number, is allocated or freed."""

    storage: int
    is_allocated: bool


@dataclass
class Storage:
    """The bytes of one storage, and when it was allocated."""

    size: int
    # The number of the phase that allocates it.
    phase: int
    class_name: str | None = None
    is_recomputed: bool = False
    # True if the phase that allocates it also frees it.
    is_temporary: bool = False


class SeenStorage(NamedTuple):
    """A storage of torch, and its number in the ledger."""

    reference: weakref.ref[Any]
    number: int


class Takeover(NamedTuple):
    """An output that a plain tensor's kernel writes into the storage of an operand."""

    operand: int
    output_key: int
    # The position of the output's allocation among the events.
    position: int


class Ledger:
    """Every storage of one device type that was allocated and freed, in order."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: list[Storage] = []
        self.events: list[Event] = []
        self.phase_names: list[str] = []
        # The number of events before each mark, the end of the block the last.
        self.phase_ends: list[int] = []
        # Operators whose scratch is not known.
        self.unknown: dict[str, None] = {}
        # Held at this moment.
        self.live_bytes = 0
        self.operator: object = ""
        self._seen: dict[int, SeenStorage] = {}
        self._takeover: Takeover | None = None

    def begin(self, operator: object) -> None:
        """Begins an operation: storages are allocated by it until the next one begins."""
        self.operator = operator
        self._takeover = None

    def see(self, tensor: Tensor, *, recomputed: bool = False, operand: int | None = None) -> None:
        """Enters the tensor's storage if it is on this device and was not seen before.

        `operand` is the storage that a plain tensor's kernel would write to instead, if it is freed
        before the next operation.
        """
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            if self.storages[self._seen[key].number].size == size:
                return
            # It was resized.
            self._end(key)
        number = self.allocate(size)
        self.storages[number].is_recomputed = recomputed
        self._seen[key] = SeenStorage(weakref.ref(storage, lambda _: self._end(key)), number)
        if operand is not None and self.storages[operand].size == size:
            self._takeover = Takeover(operand, key, len(self.events) - 1)

    def _end(self, key: int) -> None:
        if self._takeover is not None and self._takeover.output_key == key:
            self._takeover = None
        self.free(self._seen.pop(key).number)

    def allocate(self, size: int, class_name: str | None = None) -> int:
        """Enters a storage; returns its number, by which it is freed."""
        number, phase = len(self.storages), len(self.phase_ends)
        self.storages.append(Storage(size, phase, class_name))
        self.events.append(Event(number, True))
        self.live_bytes += size
        return number

    def free(self, number: int) -> None:
        """Enters the end of a storage, unless an output of this operation takes it over."""
        takeover = self._takeover
        if takeover is None or takeover.operand != number:
            self.events.append(Event(number, False))
            storage = self.storages[number]
            self.live_bytes -= storage.size
            storage.is_temporary = storage.phase == len(self.phase_ends)
            return
        self._takeover = None
        output = self._seen[takeover.output_key]
        self._seen[takeover.output_key] = output._replace(number=number)
        self.live_bytes -= self.storages[output.number].size
        del self.events[takeover.position]

    def borrow(self, sizes: Sequence[int]) -> None:
        """Enters storages that are allocated together and freed again."""
        for number in [self.allocate(size) for size in sizes]:
            self.free(number)

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the tensor's storage; None if it was not seen."""
        seen = self._seen.get(tensor.untyped_storage()._cdata)
        return None if seen is None else seen.number

    def storage_of(self, tensor: Tensor) -> Storage | None:
        """The tensor's storage; None if it was not seen."""
        number = self.number_of(tensor)
        return None if number is None else self.storages[number]

    def mark(self, name: str | None) -> None:
        """Ends the phase `name`; None ends the block."""
        if name is not None:
            self.phase_names.append(name)
        self.phase_ends.append(len(self.events))
        self._takeover = None

    @property
    def phases(self) -> list[list[Event]]:
        """The events of each phase that has ended."""
        return [self.events[start:end] for start, end in pairwise([0, *self.phase_ends])]

    def replace_phases(self, first: int, phases: Mapping[str, Sequence[Event]]) -> None:
        """Replaces all events and phases behind the first ones, whose number is `first`."""
        del self.events[self.phase_ends[first - 1] :]
        del self.phase_names[first:], self.phase_ends[first:]
        for name, events in phases.items():
            self.events += events
            self.mark(name)
