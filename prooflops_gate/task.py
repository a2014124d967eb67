"""The input and the output of a process of the gate, as values that nobody changes."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# pytest-benchmark's options by test; "" has those of all others.
Paces = Mapping[str, Mapping[str, Any]]

PAGE_BYTES = 4096
# Why a process skips a benchmark by its `longest_s`, before the seconds.
TOOK_TOO_LONG = "too long for the budget of the gate: after"


@dataclass(frozen=True)
class Side:
    """One of the two things compared: which interpreter runs which checkout.

    `paths` go first on PYTHONPATH. A `fresh` side was checked out for this run: it has neither
    built extensions nor submodules.
    """

    label: str
    python: str
    root: Path
    paths: tuple[str, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class Counting:
    """The count of a process in place of timing: instructions under valgrind, or bytecodes.

    No test begins after `until`. Without `valgrind` only bytecodes are counted.
    """

    until: float = math.inf
    by_function: bool = False
    valgrind: bool = True


@dataclass(frozen=True)
class Layout:
    """The layout of a process's memory: its hash seed, and the size of its environment.

    The size is modulo a page. Both move memory, and with it times (Mytkowicz et al., ASPLOS 2009).
    The processes of a pair share them, so their noise cancels. An empty seed lets each process draw
    its own, as Python does.
    """

    hash_seed: str = ""
    environment_bytes: int = 0

    @staticmethod
    def drawn() -> Layout:
        """Another layout each time."""
        seed = int.from_bytes(os.urandom(4), "little")
        text = "" if "PYTHONHASHSEED" in os.environ else str(seed)
        return Layout(text, random.randrange(PAGE_BYTES))


@dataclass(frozen=True)
class Task:
    """The task of a process: which tests it runs, at which pace, and what it measures.

    `tests` are names by `identity.stable_names`; None asks for all. A process skips in `examined`
    tests what an earlier one has checked. `memory` names the tests whose memory is measured, which
    costs up to 50 times a call; None: all. A benchmark whose calls take more than `longest_s`
    together is skipped. Only a `patient` process waits for a core at full speed. No process
    outlives `ends`, on the monotonic clock, nor takes longer than `limit_s`. None begins where less
    than `needs_s` are left until then.
    """

    tests: tuple[str, ...] | None = None
    paces: Paces = field(default_factory=dict)
    examined: tuple[str, ...] = ()
    memory: tuple[str, ...] | None = ()
    counting: Counting | None = None
    longest_s: float = math.inf
    patient: bool = True
    layout: Layout = Layout()
    ends: float = math.inf
    needs_s: float = 0.0
    limit_s: float = math.inf

    def for_child(self) -> dict[str, Any]:
        """The part that the child's plugin reads, as JSON takes it."""
        counting = self.counting
        return {
            "tests": None if self.tests is None else list(self.tests),
            "paces": self.paces,
            "examined": list(self.examined),
            "memory": None if self.memory is None else list(self.memory),
            "counting": counting and vars(counting),
            "longest_s": self.longest_s,
        }


@dataclass(frozen=True)
class Replicate:
    """One ended process and what it left.

    `record` is pytest-benchmark's JSON with this project's part. `modules` are the files of what it
    imported without the standard library, and of the shared libraries that it has mapped;
    `collected` the benchmarks it found.
    `calls` holds per test the seconds of its call, and whether its pace is fixed. `wall_s` leaves
    out the turns of others, `start_cpu_s` is the CPU time of start, imports, collection and
    fixtures. The last three are there where it counted: instructions, bytecodes by function,
    and callgrind's files.
    """

    side: Side
    record: dict[str, Any]
    prefix: str
    modules: Mapping[str, str]
    reports: list[dict[str, Any]]
    calls: Mapping[str, Mapping[str, Any]]
    wall_s: float
    collected: tuple[str, ...] = ()
    footprint: Mapping[str, Any] = field(default_factory=dict)
    start_cpu_s: float = 0.0
    counts: Mapping[str, int] | None = None
    steps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    dumps: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> set[str]:
        """The tests that failed in it."""
        return {report["nodeid"] for report in self.reports if report.get("outcome") == "failed"}


class Pair(NamedTuple):
    """A process of the other side, and one of this."""

    before: Replicate
    after: Replicate


class ReplicateFailed(RuntimeError):
    """A process ended without a record: the message says which, how, and its last output."""


class OutOfTime(RuntimeError):
    """The process was ended because the comparison's time is up."""
