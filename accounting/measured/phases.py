"""A block of code in phases, and what can be read of each when it has ended: measured or predicted alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Levels(Protocol):
    """The bytes of one phase."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def freed_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...


L = TypeVar("L", bound=Levels)


class Phases(Generic[L]):
    """The names of a block's phases and, once it has ended, the bytes of each and of all."""

    def __init__(self, kind: str) -> None:
        self._kind = kind  # "measured" or "predicted"
        self._names: list[str] = []
        self._segments: Sequence[L] | None = None

    def _check_new(self, name: str) -> None:
        if self._segments is not None:
            raise RuntimeError(f"mark({name!r}) came after the {self._kind} block had ended")
        if name in self._names:
            raise ValueError(f"name must be new, got {name!r}; marked already: {', '.join(self._names)}")

    def _known(self) -> Sequence[L]:
        if self._segments is None:
            raise RuntimeError(f"bytes are known only after the {self._kind} block has ended")
        return self._segments

    @property
    def phases(self) -> dict[str, L]:
        """Bytes of each marked phase. What follows the last mark is in the figures of the whole block only."""
        return dict(zip(self._names, self._known(), strict=False))

    @property
    def allocated_bytes(self) -> int:
        return sum(segment.allocated_bytes for segment in self._known())

    @property
    def freed_bytes(self) -> int:
        return sum(segment.freed_bytes for segment in self._known())

    @property
    def live_bytes(self) -> int:
        """Bytes held at the end of the block, less those held at its start."""
        return self._known()[-1].live_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at any moment of the block, less those held at its start."""
        return max(segment.peak_bytes for segment in self._known())
