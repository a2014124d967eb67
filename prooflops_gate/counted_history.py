"""Counts this checkout's instructions by fixed hash seeds, to store them and to compare them with
stored ones.

Without pairs: the count of a commit hardly depends on the machine. The n-th process has the n-th
seed everywhere.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prooflops_gate import sides
from prooflops_gate.history import counts
from prooflops_gate.history.counts import CountRecord
from prooflops_gate.instruments.counts import FEWER, LOOKS, MORE, Count, decide, level_of, tally
from prooflops_gate.instruments.instructions import BLIND
from prooflops_gate.pairs import files_there
from prooflops_gate.question import Question
from prooflops_gate.task import Counting, Layout, OutOfTime, Replicate, ReplicateFailed, Side, Task

MOST_PROCESSES = LOOKS[1]


@dataclass(frozen=True)
class Counted:
    """The decisions beside stored counts, by benchmark, and what to say of them."""

    found: Mapping[str, Count] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def counted_here(
    question: Question, names: Sequence[str], seed: int, ends: float = math.inf
) -> Replicate:
    """A process of this side that counts these benchmarks. Raises OutOfTime and ReplicateFailed."""
    layout = Layout.fixed(seed)
    task = Task(tests=tuple(names), counting=Counting(), layout=layout, ends=ends)
    here = question.here
    return question.processes.run([(here, files_there(here, task))], task)[0]


def store(question: Question) -> str:
    """Counts the benchmarks of this commit, and stores that beside the history of times.

    What it did, in words.
    """
    settings, selection = question.settings, question.selection
    names = (*selection.benchmarks, *selection.others)
    taken: list[Replicate] = []
    for seed in range(1, MOST_PROCESSES + 1):
        question.say(f"instructions: process {seed} of {MOST_PROCESSES}, under valgrind")
        try:
            taken.append(counted_here(question, names, seed))
        except ReplicateFailed as failed:
            return f"instructions are not counted: {str(failed).splitlines()[-1]}"
    record = record_of(taken, question.here, settings.record or "")
    counts.append_counts(settings.folder, without_libraries(taken[0].builds), record)
    many = f"instructions of {len(record.counts)} benchmarks"
    return f"{many} stored, for any machine with these builds"


def record_of(taken: Sequence[Replicate], here: Side, baseline: str) -> CountRecord:
    """The counts of these processes, as far as all have them."""
    found = [done.counts or {} for done in taken]
    names = [name for name in found[0] if all(name in each for each in found)]
    shared = {name: [max(each[name], 1) for each in found] for name in names}
    commit = sides.commit_of(here.root)
    return CountRecord(commit, baseline, shared, taken[0].builds["libraries"])


def compare_with_stored(question: Question) -> Counted:
    """The decisions beside the stored counts of the baseline.

    None where there are no such counts.
    """
    settings, ends = question.settings, question.ends
    names: Sequence[str] = question.selection.benchmarks
    found: dict[str, Count] = {}
    taken: list[Replicate] = []
    then: CountRecord | None = None
    asked = len(names)
    if not counts.builds_in(settings.folder):
        return Counted()
    while names and len(taken) < MOST_PROCESSES and time.monotonic() < ends:
        question.say(
            f"instructions: process {len(taken) + 1}, {len(names)} benchmarks under valgrind"
        )
        try:
            taken.append(counted_here(question, names, len(taken) + 1, ends))
        except OutOfTime:
            break
        except ReplicateFailed as failed:
            return Counted(notes=(f"instructions are not counted: {str(failed).splitlines()[-1]}",))
        now = record_of(taken, question.here, "")
        then = then or stored(settings.folder, taken[0].builds, now, str(settings.baseline))
        if then is None:
            none = "none are stored with this Python, libc and processor"
            return Counted(notes=(f"instructions are not compared: {none}",))
        found |= decisions(then, now, settings.min_instructions)
        names = [name for name in now.counts if name in then.counts and name not in found]
    if not (found and then):
        return Counted()
    beside = f"instructions of {len(found)} of {asked} benchmarks beside {then.commit}"
    return Counted(found, (f"{beside}: {tally(found.values())}", BLIND))


def without_libraries(builds: Mapping[str, object]) -> dict[str, object]:
    """The builds that name a history's folder.

    Libraries are compared record by record, as far as both import them.
    """
    return {key: each for key, each in builds.items() if key != "libraries"}


def stored(
    folder: Path, builds: Mapping[str, object], now: CountRecord, baseline: str
) -> CountRecord | None:
    """The newest counts of this baseline that compare with these."""
    newest = None
    for each in counts.read_counts(folder, counts.builds_id(without_libraries(builds))):
        if each.compares_with(now) and baseline in ("latest", each.baseline):
            newest = each
    return newest


def decisions(before: CountRecord, after: CountRecord, limit: float) -> dict[str, Count]:
    """The decisions by the counts of two commits, seed by seed."""
    names = before.counts.keys() & after.counts.keys()
    level = level_of(len(names))
    found = {}
    for name in names:
        # As many seeds as both have.
        both = list(zip(before.counts[name], after.counts[name], strict=False))
        old, new = [each for each, _ in both], [each for _, each in both]
        count = decide(old, new, limit, level)
        if count is not None:
            found[name] = count
    return found


def steps(folder: Path, limit: float) -> list[str]:
    """A line for each change of instructions between two commits that were recorded one after the
    other.
    """
    lines = []
    for builds in counts.builds_in(folder):
        known = list(counts.read_counts(folder, builds))
        lines.append(f"instructions of {len(known)} commits, with builds {builds}")
        for before, after in itertools.pairwise(known):
            lines += step(before, after, limit)
    return lines


def step(before: CountRecord, after: CountRecord, limit: float) -> list[str]:
    """A line for each benchmark that takes more or fewer instructions in the second commit."""
    at = f"  {after.moment} {after.commit}:"
    if not before.compares_with(after):
        return [f"{at} not comparable, other libraries"]
    lines = []
    for name, count in sorted(decisions(before, after, limit).items()):
        if count.verdict in (MORE, FEWER):
            lines.append(f"{at} {count.ratio - 1:+.2%} instructions in {name}")
    return lines
