"""What an instrument of the gate is.

It measures pairs of processes, decides on benchmarks, and explains.

`times` and `instructions` ask for pairs; `memory` rides on those of times. The one loop that takes
the pairs is in `prooflops_gate.comparison`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from prooflops_gate.history.records import Timed
from prooflops_gate.rows import Row
from prooflops_gate.task import Pair, Task


@dataclass(frozen=True)
class Measured:
    """What a pair of processes left: both, and each benchmark that both have, before and after."""

    pair: Pair
    pairs: Mapping[str, tuple[Timed, Timed]]


@dataclass(frozen=True)
class Explanation:
    """What an instrument says of the whole run: notes for everybody, details under -v."""

    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class Instrument(Protocol):
    """One way to compare two sides."""

    def next_task(self, now: float, /) -> Task | None:
        """What the next pair of processes is to do; None: nothing more is asked for."""

    def progress(self) -> str:
        """What is open, in a line."""

    def measure(self, measured: Measured, took_s: float, /) -> None:
        """Keeps what a pair left, which took so long."""

    def decide(self) -> list[Row]:
        """A row for each benchmark, by all that was measured."""

    def explain(self) -> Explanation:
        """What everybody should know of the run."""
