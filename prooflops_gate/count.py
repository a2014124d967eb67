"""Counts the instructions of both sides' benchmarks, in pairs of processes under valgrind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from prooflops_gate import sides
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.history.records import Timed
from prooflops_gate.history.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.instructions import (
    FEWER,
    LOOKS,
    MORE,
    UNSTEADY,
    Count,
    by_both,
    decide,
    level_of,
    tally,
)
from prooflops_gate.machine import cpu
from prooflops_gate.options import files_of
from prooflops_gate.process import Counted, OutOfTime, Replicate, ReplicateFailed, Side
from prooflops_gate.session import Session

# Times as long: start and imports without instrumentation, and a benchmark's calls, three of four of them so.
START_FACTOR, CALLS_FACTOR, START_S = 25, 150, 5.0
SHARE, BUSY_SHARE = (
    1 / 3,
    2 / 3,
)  # of the time left, where time decides, too; beside other work, that no count notices
RESERVE = 0.1  # of a pair's time: the next pairs take a little longer or shorter
BLIND = "instructions don't show waiting, sockets, threads, GPUs, the width of vectors, and where memory lies"


def share_of(timed: Collection[Timed]) -> float:
    """The share of the time left that counting gets, by how much of the first pair ran beside other work.

    >>> [share_of([Timed(1.0, {}, {}, contended=said) for said in words]) for words in (("", "busy"), ("busy", "busy"))]
    [0.3333333333333333, 0.6666666666666666]
    """
    return BUSY_SHARE if 2 * sum(bool(each.contended) for each in timed) > len(timed) else SHARE


class Counting:
    """Pairs of processes under valgrind. `rounds_s`: the fastest round of each benchmark."""

    def __init__(
        self,
        session: Session,
        here: Side,
        other: Side,
        rounds_s: Mapping[str, float],
        start_cpu_s: float,
    ) -> None:
        self.session, self.here, self.other = session, here, other
        self.at_once = len(cpu.allowed_cores()) > 1
        self.costs_s = {name: CALLS_FACTOR * round_s for name, round_s in rounds_s.items()}
        self.start_s = START_S + START_FACTOR * start_cpu_s

    def fitting(self, left_s: float) -> list[str]:
        """The benchmarks whose first look fits into this time, the shortest first."""
        names = sorted(self.costs_s, key=lambda name: self.costs_s[name])
        while names and LOOKS[0] * self.pair_s(names) > left_s:
            names.pop()
        return names

    def pair_s(self, names: Sequence[str]) -> float:
        """The expected duration of a pair with these benchmarks."""
        return (1 if self.at_once else 2) * (
            self.start_s + sum(self.costs_s[name] for name in names)
        )

    def run(self, timed: Sequence[Replicate], ends: float) -> dict[str, Count]:
        """The decisions by pairs until `ends`, by benchmark; those without one could not be counted.

        `timed`: processes that show what a benchmark needs: no driver of a GPU runs under valgrind.
        """
        say, lines = self.session.progress.always, self.session.lines
        if driver := next(
            (done.footprint["driver"] for done in timed if done.footprint.get("driver")), ""
        ):
            lines.append(f"instructions are not counted: the benchmarks load {driver}")
            return {}
        names = self.fitting(ends - time.monotonic())
        if not names:
            lines.append(
                f"instructions are not counted: a pair may take {minutes(self.pair_s([]))} under valgrind"
            )
            return {}
        level, limit = level_of(len(names)), self.session.settings.min_instructions
        taken: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in names}
        found: dict[str, Count] = {}
        took_s = 0.0
        pairs = 0
        latest = min(
            2 * ends - time.monotonic(), self.session.ends
        )  # of a first look: without it a pair says nothing
        while names and time.monotonic() + took_s < (
            until := latest if 0 < pairs < LOOKS[0] else ends
        ):
            say(f"instructions: pair {pairs + 1}, {len(names)} benchmarks under valgrind")
            began, pairs = time.monotonic(), pairs + 1
            # The first pair counts as many benchmarks as the next ones have time for.
            start = began + (1 - RESERVE) * (ends - began) / LOOKS[0] if pairs == 1 else math.inf
            try:
                before, after = (done.counts or {} for done in self.pair(names, start, until))
            except OutOfTime:
                pairs -= 1
                break
            except ReplicateFailed as failed:
                lines.append(f"instructions are not counted: {str(failed).splitlines()[-1]}")
                names = []
                break
            for name in names:
                if name in before and name in after:
                    taken[name][0].append(max(before[name], 1))
                    taken[name][1].append(max(after[name], 1))
                if (count := decide(*taken[name], limit, level)) is not None:
                    found[name] = count
            names = [name for name in names if name not in found and len(taken[name][0]) == pairs]
            took_s = time.monotonic() - began
        for name in names:
            if (count := decide(*taken[name], limit, level, ended=True)) is not None:
                found[name] = count
        if left := sum(name not in found for name in names):
            lines.append(
                f"{many(left, 'benchmark')} left open by instructions: {many(pairs, 'pair')} had the time"
            )
        if found:
            lines.append("; ".join([BLIND, *by_features(timed)]))
        unsteady = sum(count.verdict == UNSTEADY for count in found.values())
        self.session.details.append(
            f"instructions of {len(found)} of {len(self.costs_s)} benchmarks: {tally(found.values())}, "
            f"{unsteady} do not repeat; time alone decides {len(self.costs_s) - len(found)} without a count; "
            f"{pairs} pairs"
        )
        return found

    def pair(self, names: Sequence[str], until: float, ends: float) -> list[Replicate]:
        """A process of the other side and one of this, both at once where there are two cores.

        No test begins after `until`. Raises OutOfTime where one takes until `ends`.
        """
        replicates = self.session.replicates
        replicates.share_hash_seed()
        asked = [(side, sides.existing(files_of(names), side)) for side in (self.other, self.here)]
        with replicates.until(ends):
            if self.at_once:
                return replicates.run(asked, names, counted=Counted(until))
            halfway = (time.monotonic() + until) / 2  # each side gets half of the time
            return [
                replicates.run([each], names, counted=Counted(end))[0]
                for each, end in zip(asked, (halfway, until), strict=True)
            ]


def by_features(timed: Sequence[Replicate]) -> list[str]:
    """Which packages, loaded by these processes, run other kernels under valgrind."""
    names = sorted({name for done in timed for name in done.footprint.get("by_features", ())})
    return (
        [f"{' and '.join(names)} may run other kernels under valgrind, by the processor's features"]
        if names
        else []
    )


def resolved(
    rows: Sequence[Row], counts: Mapping[str, Count], smallest: Callable[[str], float]
) -> list[Row]:
    """The rows, times by the tier that decides them, and a row for each number of instructions that changed.

    `smallest`: the change of time that counts.
    """
    slower = [row.name for row in rows if row.quantity == TIME and row.verdict == "SLOWER"]
    changed = [
        Row(name, INSTRUCTIONS, *count.row_values, count.verdict)
        for name, count in counts.items()
        if count.verdict in (MORE, FEWER)
    ]
    timed = [
        by_both(row, counts.get(row.name), smallest(row.name), alone=slower == [row.name])
        if row.quantity == TIME and row.effect
        else row
        for row in rows
    ]
    return [*timed, *changed]
