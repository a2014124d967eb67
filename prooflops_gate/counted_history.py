"""Counts this checkout's instructions by fixed hash seeds, to store them and to compare them with stored ones.

Without pairs: the count of a commit hardly depends on the machine. The n-th process has the n-th seed everywhere.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from prooflops_gate import sides
from prooflops_gate.count import BLIND
from prooflops_gate.history import counts
from prooflops_gate.history.counts import CountRecord
from prooflops_gate.history.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.instructions import FEWER, LOOKS, MORE, UNSTEADY, Count, decide, level_of, tally
from prooflops_gate.options import files_of
from prooflops_gate.process import Counted, OutOfTime, Replicate, ReplicateFailed
from prooflops_gate.session import Session

PROCESSES = LOOKS[1]


def counted_here(
    session: Session, names: Sequence[str], seed: int, ends: float = math.inf
) -> Replicate | None:
    """A process of this side that counts these benchmarks; None, with a line that says why, where that fails.

    None, without a line, where it would take until `ends`.
    """
    replicates = session.replicates
    replicates.share_hash_seed(seed)
    try:
        files = sides.existing(files_of(names), session.here)
        with replicates.until(ends):
            return replicates.run([(session.here, files)], names, counted=Counted())[0]
    except OutOfTime:
        return None
    except ReplicateFailed as failed:
        session.lines.append(f"instructions are not counted: {str(failed).splitlines()[-1]}")
        return None


def store(session: Session, names: Sequence[str]) -> None:
    """Counts the benchmarks of this commit, and stores that beside the history of times."""
    if session.settings.by == TIME:
        return
    taken: list[Replicate] = []
    for seed in range(1, PROCESSES + 1):
        session.progress.always(f"instructions: process {seed} of {PROCESSES}, under valgrind")
        if (done := counted_here(session, names, seed)) is None:
            return
        taken.append(done)
    record = record_of(session, taken)
    with session.storing():
        counts.append(session.settings.folder, without_libraries(taken[0].builds), record)
    session.lines.append(
        f"instructions of {len(record.counts)} benchmarks stored, for any machine with these builds"
    )


def record_of(session: Session, taken: Sequence[Replicate]) -> CountRecord:
    """The counts of these processes, as far as all have them."""
    found = [done.counts or {} for done in taken]
    shared = {
        name: [max(each[name], 1) for each in found]
        for name in found[0]
        if all(name in each for each in found)
    }
    commit = sides.commit_of(session.here.root)
    return CountRecord(commit, session.settings.record or "", shared, taken[0].builds["libraries"])


def compare(session: Session, names: Sequence[str], ends: float) -> dict[str, Count]:
    """The decisions beside the stored counts of the baseline, by benchmark; none where there are no such counts."""
    settings = session.settings
    found: dict[str, Count] = {}
    taken: list[Replicate] = []
    asked = len(names)
    if settings.by == TIME or not counts.builds_in(settings.folder):
        return found
    then: CountRecord | None = None
    while names and len(taken) < PROCESSES and time.monotonic() < ends:
        session.progress.always(
            f"instructions: process {len(taken) + 1}, {len(names)} benchmarks under valgrind"
        )
        if (done := counted_here(session, names, len(taken) + 1, ends)) is None:
            break
        taken.append(done)
        now = record_of(session, taken)
        then = then or stored(settings.folder, done.builds, now, str(settings.baseline))
        if then is None:
            session.lines.append(
                "instructions are not compared: none are stored with this Python, libc and processor"
            )
            break
        found |= decisions(then, now, settings.min_instructions)
        names = [name for name in now.counts if name in then.counts and name not in found]
    if found and then:
        beside = f"instructions of {len(found)} of {asked} benchmarks beside {then.commit}"
        session.lines += [f"{beside}: {tally(found.values())}", BLIND]
    return found


def without_libraries(builds: Mapping[str, object]) -> dict[str, object]:
    """The builds that name a history's folder; libraries are compared record by record, as far as both import them."""
    return {key: each for key, each in builds.items() if key != "libraries"}


def stored(
    folder: Path, builds: Mapping[str, object], now: CountRecord, baseline: str
) -> CountRecord | None:
    """The newest counts of this baseline that compare with these."""
    known = counts.read(folder, counts.builds_id(without_libraries(builds)))
    fitting = [
        each for each in known if each.compares_with(now) and baseline in ("latest", each.baseline)
    ]
    return fitting[-1] if fitting else None


def decisions(before: CountRecord, after: CountRecord, limit: float) -> dict[str, Count]:
    """The decisions by the counts of two commits, seed by seed."""
    names = before.counts.keys() & after.counts.keys()
    level = level_of(len(names))
    found = {}
    for name in names:
        both = list(
            zip(before.counts[name], after.counts[name], strict=False)
        )  # as many as both have
        if (
            count := decide([old for old, _ in both], [new for _, new in both], limit, level)
        ) is not None:
            found[name] = count
    return found


def rows_of(found: Mapping[str, Count]) -> list[Row]:
    """The rows of counts without times."""
    return [
        Row(name, INSTRUCTIONS, *each.row_values, "INCONCLUSIVE", note="its count does not repeat")
        if each.verdict == UNSTEADY
        else Row(name, INSTRUCTIONS, *each.row_values, each.verdict)
        for name, each in found.items()
    ]


def steps(folder: Path, limit: float) -> list[str]:
    """A line for each change of instructions between two commits that were recorded one after the other."""
    lines = []
    for builds in counts.builds_in(folder):
        known = list(counts.read(folder, builds))
        lines.append(f"instructions of {len(known)} commits, with builds {builds}")
        for before, after in itertools.pairwise(known):
            if not before.compares_with(after):
                lines.append(f"  {after.moment} {after.commit}: not comparable, other libraries")
                continue
            lines += [
                f"  {after.moment} {after.commit}: {count.ratio - 1:+.2%} instructions in {name}"
                for name, count in sorted(decisions(before, after, limit).items())
                if count.verdict in (MORE, FEWER)
            ]
    return lines
