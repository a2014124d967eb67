"""Runs pairs of processes, one of each side, the order within the pairs alternating: ABBA.

The first pair runs one process after the other. In the next ones both live at the same time and run
their benchmarks in turn (`prooflops_gate.child.turns`), where the machine has room for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prooflops_gate import sides
from prooflops_gate.child import turns
from prooflops_gate.instruments import Measured, measured_in
from prooflops_gate.instruments.instructions import apart
from prooflops_gate.instruments.pace import FIRST
from prooflops_gate.machine import limits
from prooflops_gate.origins import check_origins
from prooflops_gate.question import Question
from prooflops_gate.selection import files_of
from prooflops_gate.task import Layout, Paces, Pair, Replicate, ReplicateFailed, Side, Task
from prooflops_gate.unpatched import time

# A pair in turn may last this, and this many first pairs: a lock of one stops the other.
START_S, FIRST_PAIRS = 60.0, 4


class Pairs:
    """Processes of `here` beside those of `other`.

    The question's `heard` is called with each process of this side that counts.
    """

    def __init__(self, question: Question) -> None:
        self.question, self.processes = question, question.processes
        self.here, self.other, self.heard = question.here, question.other, question.heard
        self.here_first = False
        # The limit of a pair in turn; 0: one process after the other.
        self.in_turn_s = 0.0
        self.notes: list[str] = []

    def first(self, paces: Paces = FIRST, memory: tuple[str, ...] | None = None) -> Pair:
        """The first pair, in which the other side runs whole files.

        Its benchmarks are not known yet. It measures the memory of all unless `memory` names some.
        """
        question = self.question
        task = Task(
            tests=question.selection.benchmarks,
            paces=paces,
            memory=memory if question.settings.memory != "off" else (),
            longest_s=question.longest_s,
        )
        pair = self.sample(task, question.targets)
        if question.asked:
            check_origins(pair, self.here.root, question.asked)
        return pair

    def sample(self, task: Task, targets: Sequence[str] | None = None) -> Pair:
        """The next pair; the other side runs all tests in `targets` if they are given."""
        task = replace(task, layout=Layout.drawn())
        if task.counting:
            return self._counted(task)
        here_first, self.here_first = self.here_first, not self.here_first
        if self.in_turn_s:
            both = self._in_turn(task, here_first)
            if both:
                return both
        if here_first:
            after = self.alone(self.here, task)
            return Pair(self._before(task, targets), after)
        return Pair(self._before(task, targets), self.alone(self.here, task))

    def measure(self, task: Task) -> Measured:
        """The quantities that the next pair measures of the benchmarks that both sides have."""
        return measured_in(self.sample(task), self.question.settings.exact)

    def alone(self, side: Side, task: Task) -> Replicate:
        """One process of `side` on those files of the tests that exist there."""
        done = self.processes.run([(side, files_there(side, task))], task)[0]
        if side is self.here:
            self.heard(done)
        return done

    def _in_turn(self, task: Task, here_first: bool) -> Pair | None:
        """Both processes at the same time.

        None, and never again, where a test or process fails then.
        """
        order = (self.here, self.other) if here_first else (self.other, self.here)
        asked = [(side, files_there(side, task)) for side in order]
        try:
            done = self.processes.run(asked, replace(task, limit_s=self.in_turn_s))
        except ReplicateFailed:
            done = []
        if done and not any(each.failed for each in done):
            pair = Pair(done[1], done[0]) if here_first else Pair(done[0], done[1])
            self.heard(pair.after)
            return pair
        self.in_turn_s = 0.0
        failed = "a test failed or hung while both sides ran at once"
        self.notes.append(f"one process after the other: {failed}")
        return None

    def _before(self, task: Task, targets: Sequence[str] | None) -> Replicate:
        """A process of the other side.

        Raises UsageError with the option that named it, where it breaks.
        """
        try:
            if targets:
                return self.processes.run([(self.other, targets)], replace(task, tests=None))[0]
            return self.alone(self.other, task)
        except ReplicateFailed as failed:
            asked = self.question.asked
            if not asked:
                raise
            lacks = sides.lacking(self.other, self.here.root, str(failed))
            raise pytest.UsageError(f"{asked}: {failed}\n{lacks}".rstrip()) from failed

    def _counted(self, task: Task) -> Pair:
        """Both processes at once where there are two cores, else one after the other."""
        asked = [(side, files_there(side, task)) for side in (self.other, self.here)]
        if limits.usable_cores() > 1:
            return Pair(*self.processes.run(asked, task))
        tasks = apart(task, time.monotonic())
        both = [self.processes.run([each], its)[0] for each, its in zip(asked, tasks, strict=True)]
        return Pair(*both)

    def allow_turns(self, first: Pair) -> None:
        """Lets the next processes run in turn, unless the footprint of the first forbids it."""
        why = turns.why_not([side.footprint for side in first], limits.free_bytes())
        if why:
            self.notes.append(f"one process after the other: {why}")
        else:
            self.in_turn_s = START_S + FIRST_PAIRS * sum(side.wall_s for side in first)


def files_there(side: Side, task: Task) -> list[str]:
    """The files of a task's tests, as far as this side has them.

    Raises ReplicateFailed where it has none.
    """
    files = files_of(task.tests or ())
    there = sides.existing(files, side)
    if not there:
        raise ReplicateFailed(f"{side.label} has none of {', '.join(files)}")
    return there
