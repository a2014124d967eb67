"""Measures in N fresh processes, and stores their records as the baseline NAME.

`--gate-record NAME --gate-replicates N`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest

from prooflops_gate import counted_history
from prooflops_gate.comparison import Comparison
from prooflops_gate.console.tables import engineering, many
from prooflops_gate.history import records
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import timed_in
from prooflops_gate.instruments.pace import FIRST
from prooflops_gate.pairs import files_there
from prooflops_gate.question import Question
from prooflops_gate.rows import TIME
from prooflops_gate.statistics.noise import spread
from prooflops_gate.task import Task

# The number of processes without --gate-replicates.
USUAL_PROCESSES = 5
HEAD = ("benchmark", "processes", "time", "spread", "slowest", "contended")


def record(question: Question) -> Comparison:
    """Runs these tests in N processes, and stores those as a baseline if a name is given.

    Raises OSError.
    """
    selection, settings, here = question.selection, question.settings, question.here
    tests = (*selection.benchmarks, *selection.others)
    if not tests:
        why = "no test is selected, and a baseline of none lets everything pass"
        raise pytest.UsageError(f"--gate-record: {why}")
    wanted = settings.replicates or USUAL_PROCESSES
    task = Task(tests=tests, benchmarks_only=False, paces=FIRST)
    files: list[Path] = []
    failed: set[str] = set()
    taken: dict[str, list[Timed]] = {}
    for number in range(wanted):
        question.say(f"process {number + 1} of {wanted}")
        done = question.processes.run([(here, files_there(here, task))], task)[0]
        question.heard(done)
        failed |= done.failed
        if done.fingerprint is None:
            why = "the plugin prooflops_gate.plugin is not active in a fresh process"
            raise pytest.UsageError(f"--gate-record: {why}")
        kept = {**done.record, "prooflops": {**done.record["prooflops"], "pace": FIRST}}
        files.append(records.append_record(settings.folder, kept, done.fingerprint))
        for name, timed in timed_in(done, settings.exact).items():
            taken.setdefault(name, []).append(timed)
    notes = []
    if settings.record and failed:
        notes.append(f"not stored as {settings.record}: {many(len(failed), 'test')} failed")
    elif settings.record:
        stored = records.store_baseline(settings.record, files)
        notes.append(f"baseline {settings.record}: {wanted} records, named in {stored}")
        if settings.by != TIME:
            notes.append(counted_history.store(question))
    title = f"{len(files)} fresh processes recorded"
    return Comparison(title, notes=tuple(notes), table=tuple(spread_table(taken)))


def spread_table(taken: Mapping[str, Sequence[Timed]]) -> list[Sequence[str]]:
    """The median time of each benchmark over the processes, and the spread between them."""
    rows: list[Sequence[str]] = [HEAD]
    for name, group in taken.items():
        times = [timed.time_s for timed in group]
        middle = median(times)
        contended = sum(bool(timed.contended) for timed in group)
        slowest = f"{max(times) / middle - 1:+.1%}"
        apart = f"{spread(times):.1%}"
        row = (name, str(len(group)), engineering(middle, "s"), apart, slowest)
        rows.append((*row, str(contended or "")))
    return rows
