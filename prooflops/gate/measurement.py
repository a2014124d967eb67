"""What a run of the gate measures with, and what it has found so far: processes, reports, rows, the time spent."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prooflops import run_state
from prooflops.console.progress import Progress, minutes
from prooflops.gate import decisions, process_plan, sides, single_run
from prooflops.gate.pacing import Pacing, Pair, Take
from prooflops.gate.processes import Replicate, ReplicateFailed, Replicates, Side
from prooflops.gate.reporting import Reports
from prooflops.gate.selection import files_of, is_asked_for
from prooflops.gate.settings import Settings
from prooflops.history import records
from prooflops.history.comparison import exact_rows, resource_rows
from prooflops.history.records import Summary, Timed
from prooflops.history.rows import TIME, Row, interval, one_sided, with_skips

SILENT_S = 20.0  # between two lines of progress


class Measurement:
    """One run of the gate: how it starts processes of this side, what they reported, and the rows and lines to print.

    `table` is printed in place of that of the rows.
    """

    def __init__(self, config: pytest.Config, settings: Settings, replicates: Replicates) -> None:
        self.config, self.settings, self.replicates = config, settings, replicates
        self.markers = config.stash.get(run_state.MARKERS, {})
        self.progress = Progress(config, "gate")
        self.reports = Reports(config)
        self.here = Side("this side", sides.python_here(), config.rootpath)
        self.title, self.lines = "", list[str]()
        self.rows: list[Row] = []
        self.newest: Replicate | None = None  # of this side
        self.table: list[list[str]] = []
        self.begun = self.timing_since = self.said_at = time.monotonic()

    def run(
        self, side: Side, ids: Sequence[str], benchmarks_only: bool = True, paces: process_plan.Paces | None = None
    ) -> Replicate:
        """One process of a side, over the files of these tests that it has; the reports of this side count."""
        if not (files := sides.existing(files_of(ids), side)):
            raise ReplicateFailed(f"{side.label} has none of {', '.join(files_of(ids))}")
        done = self.replicates.run(side, files, ids, benchmarks_only, paces)
        self.count(done)
        return done

    def run_in_turn(
        self, order: Sequence[Side], ids: Sequence[str], paces: process_plan.Paces, limit_s: float
    ) -> list[Replicate]:
        """A process of each side, in which each test waits for its turn; none, where that breaks any of them."""
        asked = [(side, sides.existing(files_of(ids), side)) for side in order]
        try:
            done = self.replicates.run_in_turn(asked, ids, paces, limit_s)
        except ReplicateFailed:
            return []
        if any(report.get("outcome") == "failed" for each in done for report in each.reports):
            return []
        for each in done:
            self.count(each)
        return done

    def count(self, done: Replicate) -> None:
        """The reports of a process count where it is of this side."""
        if done.side == self.here:
            self.reports.add(done)
            self.newest = done

    def run_here(
        self, ids: Sequence[str], benchmarks_only: bool = True, paces: process_plan.Paces | None = None
    ) -> Replicate:
        """One process of this side."""
        return self.run(self.here, ids, benchmarks_only, paces)

    def summary_of(self, done: Replicate) -> Summary:
        return records.summary_of(done.record, Path("replicate"), self.settings.exact)

    def is_compared(self, name: str, benchmarks: Sequence[str]) -> bool:
        """Whether this run is asked about a benchmark of the other side, of which its marker may say `ignore`."""
        if self.markers.get(name, {}).get("ignore", False):
            return False
        return name in benchmarks or is_asked_for(name, self.config)

    def smallest(self, name: str) -> float:
        return float(self.markers.get(name, {}).get("min_effect", self.settings.min_effect))

    def directions(self) -> int:
        given = [self.settings.direction, *(row.get("direction") for row in self.markers.values())]
        return 2 if "both" in given else 1

    def rule(
        self,
        benchmarks: int,
        *,
        kind: type[decisions.ReplicateRule] = decisions.ReplicateRule,
        paired: bool = True,
        floors: Mapping[str, float] | None = None,
    ) -> decisions.ReplicateRule:
        most, all_pairs = self.settings.replicates, self.settings.noise_floor
        plan = decisions.replicate_plan(
            benchmarks, paired=paired, most=most, all_pairs=all_pairs, directions=self.directions()
        )
        return kind(plan, self.settings.min_effect, floors or {}, paired, most, all_pairs)

    def compare(
        self,
        first: Mapping[str, Pair],
        stored: Mapping[str, Sequence[Timed]],
        take: Take,
        rule: decisions.ReplicateRule,
        *,
        given_up: Mapping[str, str] | None = None,
        look: process_plan.Look = lambda effects, to_go: None,
    ) -> None:
        """Takes replicates until every benchmark of both sides is decided, and sets the rows, of all benchmarks."""
        shared = {name: group for name, group in stored.items() if name in first}
        given_up, paired = given_up or {}, rule.paired
        deadline = self.begun + self.settings.budget_s
        pacing = Pacing(shared, rule, take, deadline, self.say, given_up=given_up, look=look)
        rows = pacing.run(first, time.monotonic() - self.timing_since)
        rows = [replace(row, note=given_up[row.name]) if row.name in given_up else row for row in rows]
        gone = [one_sided(name, TIME, group[-1].time_s, None) for name, group in stored.items() if name not in first]
        new = [one_sided(name, TIME, None, timed.time_s) for name, (_, timed) in first.items() if name not in stored]
        exact = [row for row in exact_rows(pacing.sides) if row.verdict != "SAME"]
        exact += resource_rows(pacing.sides, self.settings.min_memory_effect, self.settings.min_effect)
        self.rows = [*with_skips(gone, single_run.skip_reasons(self.reports)), *new, *exact, *rows]
        if pacing.left_open:
            budget = f"the budget of {self.settings.budget_s / 60:g} min (--gate-budget) is spent"
            self.lines.append(f"{budget}: {len(pacing.left_open)} benchmarks are open")
        if paired and (every := decisions.overall(pacing.sides)):
            bounds = f"{every.ratio:.3f} ({interval(every)})"
            self.lines.append(f"overall {bounds}: the geometric mean of {len(rows)} benchmarks")
            self.lines.append(decisions.found_from(rows, rule.plan, self.settings.min_effect))
        self.lines.append(
            f"{pacing.taken} {'pairs' if paired else 'replicates'} in {time.monotonic() - self.begun:.0f} s, "
            f"{pacing.repeated} measurements repeated because other work competed"
        )

    def store_verdicts(self) -> None:
        """Keeps what was said of each time beside the records of this machine, for their plots."""
        if not (self.newest and self.newest.fingerprint):
            return
        verdicts = [
            {"name": row.name, "verdict": row.verdict, "ratio": row.effect.ratio if row.effect else None}
            for row in self.rows
            if row.quantity == TIME
        ]
        own = records.fingerprint_id(self.newest.fingerprint)
        commit = (self.newest.record.get("commit_info") or {}).get("id")
        if verdicts:
            with self.storing():
                content = {"commit": commit, "compared": self.title, "verdicts": verdicts}
                records.append_verdicts(self.settings.folder, own, content)

    @contextmanager
    def storing(self) -> Generator[None, None, None]:
        """Where the history cannot be written (a full disk, say), the run goes on, says so at its end, and is red."""
        try:
            yield
        except OSError as error:
            self.config.stash[run_state.STORAGE_ERROR] = f"{self.settings.folder} could not be written: {error}"

    def say(self, text: str, done: int, most: int) -> None:
        if done and time.monotonic() - self.said_at < SILENT_S:
            return
        self.said_at = time.monotonic()
        each = (time.monotonic() - self.begun) / max(done, 1)
        left = min(each * max(most - done, 1), self.settings.budget_s)
        self.progress(text + (f", about {minutes(left)} to go" if done else ""), ahead_s=each if done else 0.0)
