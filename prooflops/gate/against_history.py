"""Compares processes of this side with stored ones; pairs decide what those cannot call SAME.

Between stored processes and today's lies whatever the machine did in the meantime, so history alone finds little
(docs/gate.md). Where the commit of the baseline is at hand, it only tells what is surely the same: the rest is measured
side by side with that commit. Where it is not, history decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops.gate import decisions, process_plan, sides, single_run
from prooflops.gate.measurement import Measurement
from prooflops.gate.pacing import Pair
from prooflops.gate.selection import selects_by_expression
from prooflops.gate.side_by_side import SideBySide
from prooflops.gate.summary import counts
from prooflops.history import records
from prooflops.history.records import Summary, Timed
from prooflops.history.rows import TIME, Row
from prooflops.statistics.effects import UNKNOWN_FLOOR


class AgainstHistory:
    """This side's benchmarks beside a baseline."""

    def __init__(self, measurement: Measurement, benchmarks: Sequence[str]) -> None:
        self.measurement, self.benchmarks = measurement, benchmarks
        self.then: list[Summary]  # with the next, since `first`
        self.floors: Mapping[str, float]

    def compare(self) -> list[Summary]:
        """Sets the rows, and returns the records of the baseline."""
        measurement, pace = self.measurement, process_plan.FIRST
        first = self.first(pace)
        commit, why = sides.commit_of_records(self.then, measurement.here.root)
        measurement.title = f"against the baseline {measurement.settings.baseline} ({len(self.then)} processes)"
        if commit:
            why = self.confirm(first, commit)
        if why:
            measurement.lines.append(f"history alone decides, without pairs beside the baseline's commit: {why}")
            # Unlike paces are unlike fastest rounds.
            if (stored := self.then[-1].pace or {}) != pace:
                first = self.first(stored)
            self.decide_alone(first, stored)
        return self.then

    def first(self, pace: process_plan.Paces) -> Summary:
        """A first process, whose fingerprint says which records of the baseline it is compared with."""
        settings = self.measurement.settings
        done = self.measurement.run_here(self.benchmarks, paces=pace)
        mine = self.measurement.summary_of(done)
        self.then = single_run.baseline_of(settings, mine.fingerprint_id, self.benchmarks)
        if self.then[-1].fingerprint_id != mine.fingerprint_id:
            raise pytest.UsageError(single_run.refusal(settings, self.then[-1], done.fingerprint or {}))
        known = records.noise_floors(settings.folder, mine.fingerprint_id)
        self.floors = {name: float(row["floor"]) for name, row in known.items() if row.get("floor")}
        return mine

    def decide_alone(self, first: Summary, pace: process_plan.Paces) -> None:
        """Has as many processes decide as the plan wants."""
        if floorless := [name for name in first.benchmarks if name not in self.floors]:
            self.measurement.lines.append(
                f"drift between sessions is unknown for {len(floorless)} benchmarks, and {UNKNOWN_FLOOR:.0%} is "
                "assumed: more than 1% of runs may alarm without a change; measure it with --gate-noise-floor, in two "
                "sessions"
            )
        self.beside_stored(first, pace, decisions.ReplicateRule)

    def beside_stored(
        self, first: Summary, pace: process_plan.Paces, kind: type[decisions.ReplicateRule]
    ) -> dict[str, Row]:
        """Sets the rows by a rule of this kind, and returns those of times that both sides have."""
        measurement, stored = self.measurement, self.asked_for()
        shared = len(stored.keys() & first.benchmarks.keys())
        rule = measurement.rule(shared, kind=kind, paired=False, floors=self.floors)

        def alone(summary: Summary) -> dict[str, Pair]:
            return {name: (None, timed) for name, timed in summary.benchmarks.items()}

        def take(names: list[str]) -> dict[str, Pair]:
            return alone(measurement.summary_of(measurement.run_here(names, paces=pace)))

        measurement.compare(alone(first), stored, take, rule)
        return {row.name: row for row in measurement.rows if row.quantity == TIME and row.effect}

    def confirm(self, first: Summary, commit: str) -> str:
        """Measures what history doesn't call SAME beside the baseline's commit. Returns why that cannot be run here."""
        measurement, root = self.measurement, self.measurement.here.root
        rows = self.beside_stored(first, process_plan.FIRST, decisions.SieveRule)
        suspected = [name for name, row in rows.items() if row.verdict != "SAME"]
        by_history, lines, title = measurement.rows, measurement.lines, measurement.title
        said = f"history calls {len(rows) - len(suspected)} of {len(rows)} benchmarks SAME"
        if not suspected:
            measurement.lines = [said, *lines]
            return ""
        measurement.lines = []
        label, before = f"the baseline's commit {commit[:9]}", measurement.here
        try:
            other = sides.checkout(commit, label, root, measurement.replicates)
            measurement.here = replace(before, paths=sides.import_paths(root, root))
            SideBySide(measurement, measurement.here, other, label).compare(suspected, only=True)
        except pytest.UsageError as error:
            measurement.here, measurement.lines = before, []
            return str(error)
        paired = {row.name: row for row in measurement.rows if row.quantity == TIME and row.effect}
        measurement.rows = [paired.get(row.name, row) if row.quantity == TIME else row for row in by_history]
        found = counts([row for row in measurement.rows if row.quantity == TIME and row.name in suspected])
        said += f" and suspects {len(suspected)}; side by side with its commit {commit[:9]} those are {found}"
        measurement.title, measurement.lines = title, [said, *lines, *measurement.lines]
        return ""

    def asked_for(self) -> dict[str, list[Timed]]:
        """The stored benchmarks that this run is asked about: others are not missing."""
        measurement, benchmarks = self.measurement, self.benchmarks
        stored: dict[str, list[Timed]] = {}
        for record in self.then:
            for name, timed in record.benchmarks.items():
                stored.setdefault(name, []).append(timed)
        asked = {name: group for name, group in stored.items() if measurement.is_compared(name, benchmarks)}
        if selects_by_expression(measurement.config):  # which of the stored ones -k and -m would select is not known
            if unknown := asked.keys() - set(benchmarks):
                measurement.lines.append(
                    f"{len(unknown)} benchmarks of the baseline are not selected, and not compared"
                )
            asked = {name: group for name, group in asked.items() if name in benchmarks}
        return asked
