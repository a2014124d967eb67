"""The interface of an instrument of the gate.

It measures pairs of processes, and decides on benchmarks.

`times` and `instructions` plan pairs; `memory` is measured in those of times. The one loop that
runs the pairs is `prooflops_gate.loop`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from prooflops_gate.history.records import Timed, summary_of
from prooflops_gate.rows import Row
from prooflops_gate.task import Pair, Replicate, Task


@dataclass(frozen=True)
class Measured:
    """The results of a pair of processes: each benchmark that both have, before and after."""

    pair: Pair
    pairs: Mapping[str, tuple[Timed, Timed]]

    def without(self, names: Collection[str]) -> Measured:
        """The same without these benchmarks."""
        kept = {name: pair for name, pair in self.pairs.items() if name not in names}
        return replace(self, pairs=kept)


def timed_in(done: Replicate, exact: Sequence[str]) -> dict[str, Timed]:
    """The benchmarks of a process."""
    return dict(summary_of(done.record, Path("replicate"), exact).benchmarks)


def measured_in(pair: Pair, exact: Sequence[str]) -> Measured:
    """The results of a pair, for each benchmark that both sides have."""
    before, after = (timed_in(done, exact) for done in pair)
    both = {name: (before[name], after[name]) for name in after if name in before}
    return Measured(pair, both)


@dataclass(frozen=True)
class Decided:
    """A row for each benchmark, notes on the run, and details that -v prints."""

    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class Instrument(Protocol):
    """One way to compare two sides, by pairs of its own.

    What is measured in the pairs of another needs `measure` and `decide` alone.
    """

    def next_task(self, now: float, /) -> Task | None:
        """The task of the next pair of processes; None where no pair is needed."""

    @property
    def stage(self) -> object:
        """A value that changes with the plan; None while nothing new is to be said."""

    def progress(self) -> str:
        """The undecided benchmarks and the time that they are expected to take, in a line."""

    def measure(self, measured: Measured, took_s: float, /) -> None:
        """Adds what a pair measured in `took_s` seconds."""

    def decide(self) -> Decided:
        """Decides by all that was measured."""
