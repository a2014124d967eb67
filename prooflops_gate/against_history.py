"""Compares processes of this side with stored ones; pairs decide the benchmarks that those cannot call SAME.

Between stored processes and today's lies whatever the machine did in the meantime, so history alone finds little
(docs/gate.md). Where the commit of the baseline is at hand, history only sorts out the surely unchanged benchmarks, and
the rest is measured side by side with that commit. Otherwise history decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops_gate import count, counted_history, decide, pairs, sides, single_run
from prooflops_gate.console.tables import many
from prooflops_gate.history import records
from prooflops_gate.history.records import Summary, Timed
from prooflops_gate.history.rows import TIME, Row, counts
from prooflops_gate.options import selects_by_expression
from prooflops_gate.pace import FIRST
from prooflops_gate.process import Paces
from prooflops_gate.schedule import Pair, Schedule
from prooflops_gate.session import Session
from prooflops_gate.statistics.effects import UNKNOWN_FLOOR


class AgainstHistory:
    """This side's benchmarks beside a baseline."""

    def __init__(self, session: Session, benchmarks: Sequence[str]) -> None:
        self.session, self.benchmarks = session, benchmarks
        self._run_first(FIRST)

    def _run_first(self, paces: Paces) -> None:
        """A first process. Its fingerprint says which records of the baseline it is compared with."""
        settings, began = self.session.settings, time.monotonic()
        self.paces = paces
        done = self.session.run(self.session.here, self.benchmarks, paces=paces)
        self.first = mine = self.session.summary_of(done)
        self.took_s = time.monotonic() - began
        self.then = single_run.baseline_of(settings, mine.fingerprint_id, self.benchmarks)
        is_elsewhere = self.then[-1].fingerprint_id != mine.fingerprint_id
        self.refusal = (
            single_run.refusal(settings, self.then[-1], done.fingerprint or {})
            if is_elsewhere
            else ""
        )
        known = records.noise_floors(settings.folder, mine.fingerprint_id)
        self.floors = {name: float(row["floor"]) for name, row in known.items() if row.get("floor")}

    def compare(self) -> list[Row]:
        """The rows of all benchmarks; `then` holds the records of the baseline."""
        session = self.session
        commit, why = sides.commit_of_records(self.then, session.here.root)
        session.title = (
            f"against the baseline {session.settings.baseline} ({len(self.then)} processes)"
        )
        ends = time.monotonic() + count.SHARE * session.settings.budget_s
        self.counts = session.counts = counted_history.compare(
            session, list(self.first.benchmarks), ends
        )
        if self.refusal and not self.counts:
            raise pytest.UsageError(self.refusal)
        if self.refusal:
            session.lines.append(
                "the baseline's times are another machine's: instructions alone are compared"
            )
            return counted_history.rows_of(self.counts)
        if commit:
            found = self._with_pairs(commit)
            if not isinstance(found, str):
                return found
            why = found
        session.lines.append(
            f"history alone decides, without pairs beside the baseline's commit: {why}"
        )
        # Processes of another pace have other fastest rounds.
        if (stored := self.then[-1].pace or {}) != self.paces:
            self._run_first(stored)
        if floorless := [name for name in self.first.benchmarks if name not in self.floors]:
            session.lines.append(
                f"drift between sessions is unknown for {many(len(floorless), 'benchmark')}, and {UNKNOWN_FLOOR:.0%} "
                "is assumed: more than 1% of runs may alarm without a change; measure it with --gate-noise-floor, in "
                "two sessions"
            )
        return self._beside_stored(decide.ReplicateRule)

    def _beside_stored(self, kind: type[decide.ReplicateRule]) -> list[Row]:
        """The rows of this side's processes beside the stored ones, by a rule of this kind."""
        session, stored = self.session, self._stored()
        shared = len(stored.keys() & self.first.benchmarks.keys())
        rule = session.rule(shared, kind=kind, paired=False, floors=self.floors)

        def alone(summary: Summary) -> dict[str, Pair]:
            return {name: (None, timed) for name, timed in summary.benchmarks.items()}

        def take(names: Sequence[str], paces: Paces) -> Mapping[str, Pair]:
            return alone(session.summary_of(session.run(session.here, names, paces=paces)))

        rows = Schedule(session, rule, take, paces=self.paces).compare(
            alone(self.first), stored, self.took_s
        )
        return count.resolved(rows, self.counts, session.smallest)

    def _with_pairs(self, commit: str) -> list[Row] | str:
        """Sorts out by history, and measures the rest beside the baseline's commit. Why that fails, as text."""
        session, root = self.session, self.session.here.root
        by_history = self._beside_stored(decide.SieveRule)
        compared = [row for row in by_history if row.quantity == TIME and row.effect]
        suspected = [row.name for row in compared if row.verdict != "SAME"]
        lines, title = session.lines, session.title
        said = f"history calls {len(compared) - len(suspected)} of {many(len(compared), 'benchmark')} SAME"
        if not suspected:
            session.lines = [said, *lines]
            return by_history
        session.lines, session.details = [], []
        label = f"the baseline's commit {commit[:9]}"
        try:
            other = sides.checkout(commit, label, root, session.replicates)
            here = replace(session.here, paths=sides.import_paths(root, root))
            rows, _ = pairs.compare(session, here, other, label, suspected, only=True)
        except pytest.UsageError as error:
            session.lines, session.details = [], []
            return str(error)
        paired = {row.name: row for row in rows if row.quantity == TIME and row.effect}
        merged = [paired.get(row.name, row) if row.quantity == TIME else row for row in by_history]
        found = counts([row for row in merged if row.quantity == TIME and row.name in suspected])
        said += f" and suspects {len(suspected)}; side by side with its commit {commit[:9]} those are {found}"
        session.title, session.lines = title, [said, *lines, *session.lines]
        return merged

    def _stored(self) -> dict[str, list[Timed]]:
        """The stored benchmarks that this run is asked about: others are not missing."""
        session, benchmarks = self.session, self.benchmarks
        stored: dict[str, list[Timed]] = {}
        for record in self.then:
            for name, timed in record.benchmarks.items():
                stored.setdefault(name, []).append(timed)
        asked = {
            name: group for name, group in stored.items() if session.is_compared(name, benchmarks)
        }
        if selects_by_expression(
            session.config
        ):  # -k and -m may exclude stored benchmarks that are not here
            if unknown := asked.keys() - set(benchmarks):
                session.lines.append(
                    f"not selected, so not compared: {many(len(unknown), 'benchmark')} of the baseline"
                )
            asked = {name: group for name, group in asked.items() if name in benchmarks}
        return asked
