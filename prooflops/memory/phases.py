"""The phases of a measured or predicted block of code, and the bytes of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True)
class PhaseBytes:
    """The bytes of one phase; levels are relative to the start of the *block*."""

    allocated_bytes: int  # during the phase
    freed_bytes: int  # during the phase
    live_bytes: int  # held at its end
    peak_bytes: int  # the most held at any moment of it, including what was live when it began


B = TypeVar("B", bound=PhaseBytes)


def highest(peaks: Iterable[int | None]) -> int | None:
    """The highest peak; None where one is not known."""
    peaks = list(peaks)
    return None if None in peaks else max(peak for peak in peaks if peak is not None)


class Phases(Generic[B]):
    """The names of a block's phases and, once it has ended, the bytes of each and of all."""

    def __init__(self, kind: str) -> None:
        self._kind = kind  # "measured" or "predicted", for messages
        self._names: list[str] = []
        self._segments: Sequence[B] | None = None

    def _check_new(self, name: str) -> None:
        if self._segments is not None:
            raise RuntimeError(f"mark({name!r}) came after the {self._kind} block had ended")
        if name in self._names:
            raise ValueError(
                f"name must be new, got {name!r}; marked already: {', '.join(self._names)}"
            )

    def _known(self) -> Sequence[B]:
        if self._segments is None:
            raise RuntimeError(f"bytes are known only after the {self._kind} block has ended")
        return self._segments

    @property
    def phases(self) -> dict[str, B]:
        """Bytes of each marked phase.

        What follows the last mark is in the figures of the whole block only.
        """
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
