"""Compares two sides by pairs of processes, one of each, the order within the pairs alternating: ABBA."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops.gate import process_plan, sides
from prooflops.gate.measurement import Measurement
from prooflops.gate.pacing import Pair
from prooflops.gate.processes import Replicate, ReplicateFailed, Side
from prooflops.gate.selection import files_of
from prooflops.history.rows import TIME


class SideBySide:
    """This side's benchmarks beside those of `other`, which may be this side itself."""

    def __init__(self, measurement: Measurement, benchmarks: Sequence[str], other: Side) -> None:
        self.measurement, self.benchmarks, self.other = measurement, benchmarks, other
        self.versus = measurement.settings.versus
        self.paces: process_plan.Paces = process_plan.FIRST
        self.swapped = False

    def compare(self) -> str:
        """Sets the rows. Returns the fingerprint of this side."""
        measurement, benchmarks, versus = self.measurement, self.benchmarks, self.versus
        targets = sides.targets(measurement.config, self.other) if versus else files_of(benchmarks)
        # The other side runs whole files first, with the same -k and -m: what it has is not known yet.
        before, after = self.pair(targets, None if versus else benchmarks, benchmarks)
        then, now = measurement.summary_of(before).benchmarks, measurement.summary_of(after).benchmarks
        if versus:
            sides.check_origins(before, after, measurement.config.rootpath, versus)
            then = {name: timed for name, timed in then.items() if measurement.is_compared(name, benchmarks)}
        this = f"this side ({sides.commit_of(measurement.config.rootpath)})"
        measurement.title = f"{self.other.label} (before) beside {this} (after)" if versus else f"{this} beside itself"
        rounds_s = {name: now[name].time_s for name in now if name in then}
        measurement.replicates.examined = list(rounds_s)
        too_long, look = self.plan(before, after, rounds_s)
        first: dict[str, Pair] = {name: (then.get(name), timed) for name, timed in now.items()}
        stored = {name: [] if name in now else [timed] for name, timed in then.items()}
        measurement.compare(first, stored, self.take, paired=True, given_up=too_long, look=look)
        failed_there = {report["nodeid"] for report in before.reports if report.get("outcome") == "failed"}
        measurement.rows = [
            replace(row, note="it fails on the other side")
            if row.verdict == "NEW" and row.quantity == TIME and row.name in failed_there
            else row
            for row in measurement.rows
        ]
        return measurement.summary_of(after).fingerprint_id

    def take(self, names: list[str]) -> dict[str, Pair]:
        """These benchmarks once more, the sides in the other order."""
        self.swapped = not self.swapped
        pair = self.pair(sides.existing(files_of(names), self.other), names, names)
        old, new = (self.measurement.summary_of(done).benchmarks for done in pair)
        return {name: (old[name], new[name]) for name in new if name in old}

    def pair(
        self, targets: Sequence[str], theirs: Sequence[str] | None, mine: Sequence[str]
    ) -> tuple[Replicate, Replicate]:
        """A process of the other side and one of this, which runs first if it is `swapped`'s turn."""

        def before() -> Replicate:
            try:
                return self.measurement.replicates.run(self.other, targets, theirs, paces=self.paces)
            except ReplicateFailed as failed:
                if not self.versus:
                    raise
                raise pytest.UsageError(f"--gate-versus {self.versus}: {failed}") from failed

        if self.swapped:
            after = self.measurement.run_here(mine, paces=self.paces)
            return before(), after
        return before(), self.measurement.run_here(mine, paces=self.paces)

    def plan(
        self, before: Replicate, after: Replicate, rounds_s: Mapping[str, float]
    ) -> tuple[dict[str, str], process_plan.Look]:
        """Plans what follows the first pair and says so. Returns which benchmarks are too long and why, and what
        chooses the pace before each pair."""
        measurement = self.measurement
        rule = measurement.rule(len(rounds_s), paired=True)
        ends = measurement.begun + measurement.settings.budget_s
        plan = process_plan.plan_of(before, after, rounds_s, rule.plan, ends - measurement.timing_since)
        too_long = plan.too_long()
        names = [name for name in plan.costs if name not in too_long]
        each_s = plan.each_s(names, ends - time.monotonic(), plan.most_pairs - 1)
        planned = plan.sentence(each_s, too_long)
        measurement.progress.always(planned)
        measurement.lines.append(planned)

        def look(noise: Mapping[str, float], to_go: int) -> None:
            pairs, left_s = max(to_go, rule.plan.confirming_pairs), ends - time.monotonic()
            more_s = plan.each_s(list(noise), left_s, pairs, process_plan.MOST_S)
            noisy = [name for name, spread in noise.items() if process_plan.NOISY < spread < math.inf]
            self.paces = process_plan.paces(each_s, dict.fromkeys(noisy, max(each_s, more_s)))

        why = f"{plan.pairs} pairs do not fit into the budget: --gate-budget {plan.minutes_for(list(plan.costs))}"
        return {name: f"a process takes {plan.costs[name].call_s:.1f} s for it, and {why}" for name in too_long}, look
