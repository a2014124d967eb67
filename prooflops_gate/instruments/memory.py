"""The memory that a call uses: measured in an untimed call of the first processes of each side.

MORE MEMORY needs every process of one side to exceed every one of the other. A figure with two
values agrees within each of two sides of five, and differs between them, with a chance of 1 in 1024
at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Decided, Measured
from prooflops_gate.instruments.exact import Sides
from prooflops_gate.rows import MEMORY, Row

PROCESSES_PER_SIDE = 5
# Smaller changes are never reported.
LEAST_BYTES = 4096


class Memory:
    """The memory of benchmarks.

    It needs no process of its own: the processes that time measure it, too.
    """

    def __init__(self, min_effect: float, is_measured: bool = True) -> None:
        self.min_effect, self.is_measured = min_effect, is_measured
        self.both: dict[str, tuple[list[Timed], list[Timed]]] = {}
        self.has_begun = False

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """The benchmarks whose memory the next pair measures; None: all of them."""
        if not self.is_measured:
            return ()
        if not self.has_begun:
            return None
        return tuple(name for name, sides in self.both.items() if self._is_open(sides))

    def _is_open(self, sides: Sides) -> bool:
        before, after = sides
        if len(after) >= PROCESSES_PER_SIDE:
            return False
        pairs = zip(before, after, strict=True)
        return all(is_memory_open(old, new, self.min_effect) for old, new in pairs)

    def measure(self, measured: Measured, _: float) -> None:
        self.has_begun = True
        for name, (before, after) in measured.pairs.items():
            if after.resources:
                old, new = self.both.setdefault(name, ([], []))
                old.append(before)
                new.append(after)

    def decide(self) -> Decided:
        return Decided(tuple(memory_rows(self.both, self.min_effect)))


def _lies_above(low: Sequence[float], high: Sequence[float], min_effect: float) -> bool:
    return min(high) - max(low) >= max(LEAST_BYTES, min_effect * max(low))


def is_memory_open(before: Timed, after: Timed, min_effect: float) -> bool:
    """True if a call may use more or less memory, by one process of each side.

    More of them can only refute it.

    >>> held = [Timed(1.0, {}, resources={"memory": each}) for each in (100_000, 104_000, 106_000)]
    >>> [is_memory_open(held[0], each, 0.05) for each in held]
    [False, False, True]
    """
    for key in MEMORY:
        both = before.resources.get(key, 0.0), after.resources.get(key, 0.0)
        if _lies_above([min(both)], [max(both)], min_effect):
            return True
    return False


def memory_rows(both: Mapping[str, Sides], min_effect: float) -> list[Row]:
    """A row per benchmark and kind of memory that separates the sides.

    Every process of one side lies above every one of the other.
    """
    rows = []
    for name, (before, after) in both.items():
        for key in MEMORY:
            old = [timed.resources[key] for timed in before if key in timed.resources]
            new = [timed.resources[key] for timed in after if key in timed.resources]
            if min(len(old), len(new)) < PROCESSES_PER_SIDE:
                continue
            if _lies_above(old, new, min_effect):
                rows.append(Row(name, key, median(old), median(new), "MORE MEMORY"))
            elif _lies_above(new, old, min_effect):
                rows.append(Row(name, key, median(old), median(new), "LESS MEMORY"))
    return rows
