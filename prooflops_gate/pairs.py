"""Compares two sides by pairs of processes, one of each, the order within the pairs alternating: ABBA.

The first pair runs one process after the other. In the next ones both live at the same time and run their benchmarks in
turn (`prooflops_gate.child.turns`), where the machine has room for both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops_gate import count, pace, sides
from prooflops_gate.child import turns
from prooflops_gate.history.comparison import is_memory_open
from prooflops_gate.history.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.instructions import Count
from prooflops_gate.machine import cpu
from prooflops_gate.options import files_of
from prooflops_gate.process import Paces, Replicate, ReplicateFailed, Side
from prooflops_gate.schedule import Pair, Schedule
from prooflops_gate.session import Session
from prooflops_gate.where import explained

START_S, MORE = (
    60.0,
    4,
)  # limit of a pair in turn, and times the first pair: a lock that one holds stops the other


class Pairs:
    """Processes of `here` beside those of `other`. `asked`: the option that names it; empty where both are `here`."""

    def __init__(self, session: Session, here: Side, other: Side, asked: str) -> None:
        self.session, self.here, self.other, self.asked = session, here, other, asked
        self.here_first = False
        self.in_turn_s = 0.0  # limit of a pair in turn; 0: one process after the other

    def take(self, names: Sequence[str], paces: Paces) -> dict[str, Pair]:
        """The next pair's times of these benchmarks, as far as both sides have them."""
        old, new = (self.session.summary_of(done).benchmarks for done in self.pair(names, paces))
        return {name: (old[name], new[name]) for name in new if name in old}

    def pair(
        self, names: Sequence[str], paces: Paces, targets: Sequence[str] | None = None
    ) -> tuple[Replicate, Replicate]:
        """A process of the other side, over all tests in `targets` if they are given, and one of this."""
        self.session.replicates.share_hash_seed()
        here_first, self.here_first = self.here_first, not self.here_first
        if self.in_turn_s and (both := self._in_turn(names, paces, here_first)):
            return both
        if here_first:
            after = self.session.run(self.here, names, paces=paces)
            return self._before(names, paces, targets), after
        return self._before(names, paces, targets), self.session.run(self.here, names, paces=paces)

    def _in_turn(
        self, names: Sequence[str], paces: Paces, here_first: bool
    ) -> tuple[Replicate, Replicate] | None:
        """Both processes at the same time; None, and never again, where a test or process fails then."""
        order = (self.here, self.other) if here_first else (self.other, self.here)
        asked = [(side, sides.existing(files_of(names), side)) for side in order]
        try:
            done = self.session.replicates.run(asked, names, paces=paces, limit_s=self.in_turn_s)
        except ReplicateFailed:
            done = []
        if done and not any(
            report.get("outcome") == "failed" for each in done for report in each.reports
        ):
            for each in done:
                self.session.count(each)
            return (done[1], done[0]) if here_first else (done[0], done[1])
        self.in_turn_s = 0.0
        self.session.lines.append(
            "one process after the other: in turn, a test failed or waited for what the other side holds"
        )
        return None

    def _before(
        self, names: Sequence[str], paces: Paces, targets: Sequence[str] | None
    ) -> Replicate:
        """A process of the other side. Raises UsageError with the option that named it, where it breaks."""
        try:
            if targets:
                return self.session.replicates.run([(self.other, targets)], None, paces=paces)[0]
            return self.session.run(self.other, names, paces=paces)
        except ReplicateFailed as failed:
            if not self.asked:
                raise
            lacks = sides.lacking(self.other, self.here.root)
            raise pytest.UsageError(f"{self.asked}: {failed}{lacks}") from failed

    def allow_turns(self, before: Replicate, after: Replicate) -> None:
        """Has the next processes take turns, unless a setting forbids it, or the footprint of the first does."""
        if not self.session.settings.in_turn:
            return
        if why := turns.why_not([before.footprint, after.footprint], cpu.free_bytes()):
            self.session.lines.append(f"one process after the other: {why}")
        else:
            self.in_turn_s = START_S + MORE * (before.wall_s + after.wall_s)


def compare(
    session: Session,
    here: Side,
    other: Side,
    asked: str,
    benchmarks: Sequence[str],
    *,
    only: bool = False,
) -> tuple[list[Row], str]:
    """The rows of two sides, and the fingerprint of this one. `only`: compare these alone."""
    pairs, began = Pairs(session, here, other, asked), time.monotonic()
    session.progress.always("a first pair of processes shows how long the rest will take")
    # The other side runs whole files first, with the same -k and -m: its benchmarks are not known yet.
    targets = sides.targets(session.config, other) if asked and not only else None
    before, after = pairs.pair(benchmarks, pace.FIRST, targets)
    then, now = session.summary_of(before).benchmarks, session.summary_of(after).benchmarks
    this = f"this side ({sides.commit_of(here.root)})"
    session.title = f"{this} beside itself"
    if asked:
        sides.check_origins(before, after, here.root, asked)
        then = {
            name: timed for name, timed in then.items() if session.is_compared(name, benchmarks)
        }
        session.title = f"{other.label} (before) beside {this} (after)"
    rounds_s: Mapping[str, float] = {name: now[name].time_s for name in now if name in then}
    session.replicates.examined = list(rounds_s)
    limit = session.settings.min_memory_effect
    session.replicates.same_memory = [
        name for name in rounds_s if not is_memory_open(then[name], now[name], limit)
    ]
    rule = session.rule(len(rounds_s), paired=True)
    took_s, ends = time.monotonic() - began, session.ends
    plan = pace.plan_of(before, after, rounds_s, rule.plan, ends - began, ends - time.monotonic())
    session.progress.always(str(plan))
    session.details.append(plan.detail)
    session.replicates.repeated = plan.repeated
    pairs.allow_turns(before, after)
    by, counts = session.settings.by, dict[str, Count]()
    if by != TIME and asked:
        counting, began = (
            count.Counting(session, here, other, rounds_s, plan.start_cpu_s),
            time.monotonic(),
        )
        share = 1.0 if by == INSTRUCTIONS else count.share_of([*then.values(), *now.values()])
        counts = session.counts = counting.run([before, after], began + share * (ends - began))
        plan = plan.later(time.monotonic() - began)
        equal = {name for name, each in counts.items() if each.verdict == "SAME"}
        rule = session.rule(len(rounds_s), paired=True, equal=equal)
    first: dict[str, Pair] = {name: (then.get(name), timed) for name, timed in now.items()}
    stored = {name: [] if name in now else [timed] for name, timed in then.items()}
    schedule = Schedule(session, rule, pairs.take, plan)
    if by == INSTRUCTIONS and asked:
        schedule.deadline = 0.0
    rows = count.resolved(schedule.compare(first, stored, took_s), counts, session.smallest)
    failed_there = {
        report["nodeid"] for report in before.reports if report.get("outcome") == "failed"
    }
    rows = [
        replace(row, note="it fails on the other side")
        if row.verdict == "NEW" and row.quantity == TIME and row.name in failed_there
        else row
        for row in rows
    ]
    if asked:
        rows = explained(session, here, other, rows, valgrind=bool(counts))
    return rows, session.summary_of(after).fingerprint_id
