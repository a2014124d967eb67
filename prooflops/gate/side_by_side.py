"""Compares two sides by pairs of processes, one of each, the order within the pairs alternating: ABBA.

The first pair runs one process after the other. The next ones live at the same time and run their benchmarks in turn
(`prooflops.gate.turns`), where the machine has room for both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops.gate import process_plan, sides, turns
from prooflops.gate.decisions import ReplicateRule
from prooflops.gate.measurement import Measurement
from prooflops.gate.pacing import Pair
from prooflops.gate.processes import Replicate, ReplicateFailed, Side
from prooflops.history.rows import TIME
from prooflops.machine import cpu
from prooflops.statistics.effects import Effect

# What a pair in turn may take: a lock that one process holds as long as it lives stops the other for ever. Noisy
# benchmarks have longer rounds than in the first pair, which take no longer together than that.
START_S, MORE = 60.0, 4


class SideBySide:
    """Benchmarks of `here` beside those of `other`, which may be the same side.

    `asked`: what names the other side, for messages; empty where it is this one.
    """

    def __init__(self, measurement: Measurement, here: Side, other: Side, asked: str) -> None:
        self.measurement, self.here, self.other, self.asked = measurement, here, other, asked
        self.paces: process_plan.Paces = process_plan.FIRST
        self.swapped = False
        self.in_turn = False  # from the second pair on, where nothing speaks against it
        self.limit_s = math.inf  # of a pair in turn

    def compare(self, benchmarks: Sequence[str], *, only: bool = False) -> str:
        """Sets the rows. Returns the fingerprint of this side. `only`: nothing else of the other side is compared."""
        measurement, whole = self.measurement, bool(self.asked) and not only
        measurement.timing_since = time.monotonic()
        measurement.progress.always("a first pair of processes shows how long the rest will take")
        # The other side runs whole files first, with the same -k and -m: what it has is not known yet.
        targets = sides.targets(measurement.config, self.other) if whole else None
        before, after = self.pair(benchmarks, targets)
        then, now = measurement.summary_of(before).benchmarks, measurement.summary_of(after).benchmarks
        if self.asked:
            sides.check_origins(before, after, self.here.root, self.asked)
            then = {name: timed for name, timed in then.items() if measurement.is_compared(name, benchmarks)}
        this = f"this side ({sides.commit_of(self.here.root)})"
        measurement.title = (
            f"{self.other.label} (before) beside {this} (after)" if self.asked else f"{this} beside itself"
        )
        rounds_s = {name: now[name].time_s for name in now if name in then}
        measurement.replicates.examined = list(rounds_s)
        rule = measurement.rule(len(rounds_s), paired=True)
        too_long, look = self.plan(before, after, rounds_s, rule)
        self.in_turn = self.may_take_turns(before, after)
        first: dict[str, Pair] = {name: (then.get(name), timed) for name, timed in now.items()}
        stored = {name: [] if name in now else [timed] for name, timed in then.items()}
        measurement.compare(first, stored, self.take, rule, given_up=too_long, look=look)
        failed_there = {report["nodeid"] for report in before.reports if report.get("outcome") == "failed"}
        measurement.rows = [
            replace(row, note="it fails on the other side")
            if row.verdict == "NEW" and row.quantity == TIME and row.name in failed_there
            else row
            for row in measurement.rows
        ]
        return measurement.summary_of(after).fingerprint_id

    def take(self, names: Sequence[str]) -> dict[str, Pair]:
        """These benchmarks once more, the sides in the other order: those that both have."""
        old, new = (self.measurement.summary_of(done).benchmarks for done in self.pair(names))
        return {name: (old[name], new[name]) for name in new if name in old}

    def pair(self, names: Sequence[str], targets: Sequence[str] | None = None) -> tuple[Replicate, Replicate]:
        """A process of the other side, over all that is in `targets` if they are given, and one of this."""
        self.measurement.replicates.share_hash_seed()
        here_first, self.swapped = self.swapped, not self.swapped
        if self.in_turn and (both := self.pair_in_turn(names, here_first)):
            return both
        if here_first:
            after = self.measurement.run(self.here, names, paces=self.paces)
            return self.before(names, targets), after
        return self.before(names, targets), self.measurement.run(self.here, names, paces=self.paces)

    def pair_in_turn(self, names: Sequence[str], here_first: bool) -> tuple[Replicate, Replicate] | None:
        """Both processes at the same time; None, and never again, where that breaks one of them."""
        order = (self.here, self.other) if here_first else (self.other, self.here)
        if done := self.measurement.run_in_turn(order, names, self.paces, self.limit_s):
            return (done[1], done[0]) if here_first else (done[0], done[1])
        self.in_turn = False
        self.measurement.lines.append(
            "one process after the other: in turn, a test failed or waited for what the other side holds"
        )
        return None

    def before(self, names: Sequence[str], targets: Sequence[str] | None) -> Replicate:
        """A process of the other side. Raises UsageError with what named that side, where it breaks."""
        try:
            if targets:
                return self.measurement.replicates.run(self.other, targets, None, paces=self.paces)
            return self.measurement.run(self.other, names, paces=self.paces)
        except ReplicateFailed as failed:
            if not self.asked:
                raise
            lacks = sides.lacking(self.other, self.here.root)
            raise pytest.UsageError(f"{self.asked}: {failed}{lacks}") from failed

    def may_take_turns(self, before: Replicate, after: Replicate) -> bool:
        """Whether the next processes may live at the same time; says why not, unless a setting forbids it."""
        self.limit_s = START_S + MORE * (before.wall_s + after.wall_s)
        if not self.measurement.settings.in_turn:
            return False
        why = turns.why_not([before.footprint, after.footprint], cpu.free_bytes())
        if why:
            self.measurement.lines.append(f"one process after the other: {why}")
        return not why

    def plan(
        self, before: Replicate, after: Replicate, rounds_s: Mapping[str, float], rule: ReplicateRule
    ) -> tuple[dict[str, str], process_plan.Look]:
        """Plans what follows the first pair and says so. Returns which benchmarks are too long and why, and what
        chooses the pace before each pair."""
        measurement = self.measurement
        ends = measurement.begun + measurement.settings.budget_s
        plan = process_plan.plan_of(before, after, rounds_s, rule.plan, ends - measurement.timing_since)
        too_long = plan.too_long()
        names = [name for name in plan.costs if name not in too_long]
        each_s = plan.each_s(names, ends - time.monotonic(), plan.most_pairs - 1, plan.usual_s(names))
        planned = plan.sentence(each_s, too_long)
        measurement.progress.always(planned)
        measurement.lines.append(planned)

        def look(effects: Mapping[str, Effect], to_go: int) -> None:
            pairs, left_s = max(to_go, rule.plan.confirming_pairs), ends - time.monotonic()
            noisy = [name for name, effect in effects.items() if process_plan.is_noisy(effect, plan.pairs)]
            more_s = plan.each_s(list(effects), left_s, pairs, plan.usual_s(noisy))
            plain = [name for name, effect in effects.items() if process_plan.is_plain(effect)]
            own_s = plan.own_s(each_s, noisy, more_s) | dict.fromkeys(plain, process_plan.LEAST_S)
            self.paces = process_plan.paces(each_s, own_s)

        why = f"{plan.pairs} pairs do not fit into the budget: --gate-budget {plan.minutes_for(list(plan.costs))}"
        return {name: f"a process takes {plan.costs[name].call_s:.1f} s for it, and {why}" for name in too_long}, look
