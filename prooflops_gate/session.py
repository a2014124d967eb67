"""One run of the gate: its processes, the reports and lines they left, and the time spent."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from prooflops_gate import decide, run_state, sides
from prooflops_gate.child.calls import LAUNCHES
from prooflops_gate.console.progress import Progress, minutes
from prooflops_gate.history import records
from prooflops_gate.history.records import Summary
from prooflops_gate.history.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.instructions import Count
from prooflops_gate.options import Settings, files_of, is_asked_for
from prooflops_gate.process import Paces, Replicate, ReplicateFailed, Replicates, Side
from prooflops_gate.report import Reports

SILENT_S = 20.0  # at least, between two lines of progress
HERE = "this side"
UNSYNCHRONISED = "the GPU still works when a round ends, so launches alone are timed (torch.cuda.synchronize() waits)"


class Session:
    """Starts processes, collects the reports of this side, and keeps the rows and lines to print."""

    def __init__(self, config: pytest.Config, settings: Settings, replicates: Replicates) -> None:
        self.config, self.settings, self.replicates = config, settings, replicates
        self.markers = config.stash.get(run_state.MARKERS, {})
        self.progress = Progress(
            config, "gate", under_q=True
        )  # a CI log silent for minutes looks hung
        self.reports = Reports(config)
        self.here = Side(HERE, sys.executable, config.rootpath)
        self.title, self.effort = "", ""  # the two sides; pairs and seconds
        self.lines, self.details = list[str](), list[str]()  # below the rows; the details under -v
        self.rows: list[Row] = []
        self.counts: Mapping[str, Count] = {}  # of instructions, by benchmark
        self.newest: Replicate | None = None  # the last process of this side
        self.table: list[list[str]] = []  # printed in place of the rows, unless empty
        self.begun = self.said_at = time.monotonic()

    @property
    def ends(self) -> float:
        """When the budget ends, by the clock of `time.monotonic`."""
        return self.begun + self.settings.budget_s

    def run(
        self,
        side: Side,
        ids: Sequence[str],
        *,
        benchmarks_only: bool = True,
        paces: Paces | None = None,
    ) -> Replicate:
        """Runs one process of `side` on those files of the tests `ids` that exist there."""
        if not (files := sides.existing(files_of(ids), side)):
            raise ReplicateFailed(f"{side.label} has none of {', '.join(files_of(ids))}")
        done = self.replicates.run(
            [(side, files)], ids, benchmarks_only=benchmarks_only, paces=paces
        )[0]
        self.count(done)
        return done

    def count(self, done: Replicate) -> None:
        """Keeps the reports of a process if it ran this side."""
        if done.side.label == HERE:
            self.reports.add(done)
            first, self.newest = not self.newest, done
            if first and (
                early := [
                    each["fullname"]
                    for each in done.record["benchmarks"]
                    if LAUNCHES in each["extra_info"]
                ]
            ):
                self.lines.append(f"{', '.join(early)}: {UNSYNCHRONISED}")

    def summary_of(self, done: Replicate) -> Summary:
        return records.summary_of(done.record, Path("replicate"), self.settings.exact)

    def is_compared(self, name: str, benchmarks: Sequence[str]) -> bool:
        """Whether this run selects a benchmark of the other side that has no `ignore` in its marker."""
        if self.markers.get(name, {}).get("ignore", False):
            return False
        return name in benchmarks or is_asked_for(name, self.config)

    def smallest(self, name: str) -> float:
        """`min_effect` of a benchmark: its marker's, else the run's."""
        return float(self.markers.get(name, {}).get("min_effect", self.settings.min_effect))

    def directions(self) -> int:
        """2 if the run or any marker asks for the direction "both", else 1."""
        given = [self.settings.direction, *(row.get("direction") for row in self.markers.values())]
        return 2 if "both" in given else 1

    def rule(
        self,
        benchmarks: int,
        *,
        kind: type[decide.ReplicateRule] = decide.ReplicateRule,
        paired: bool = True,
        floors: Mapping[str, float] | None = None,
        equal: Container[str] = (),
    ) -> decide.ReplicateRule:
        """The rule that decides a comparison of this many benchmarks."""
        most, all_pairs = self.settings.replicates, self.settings.noise_floor
        plan = decide.replicate_plan(
            benchmarks, paired=paired, most=most, all_pairs=all_pairs, directions=self.directions()
        )
        return kind(
            plan,
            self.settings.min_effect,
            floors or {},
            paired,
            most,
            all_pairs,
            equal,
            self.settings.direction,
        )

    def store_verdicts(self) -> None:
        """Appends the verdicts on times to this machine's history, where plots read them."""
        if not (self.newest and self.newest.fingerprint):
            return
        verdicts = [
            {
                "name": row.name,
                "verdict": row.verdict,
                "ratio": row.effect.ratio if row.effect else None,
            }
            | ({INSTRUCTIONS: asdict(self.counts[row.name])} if row.name in self.counts else {})
            for row in self.rows
            if row.quantity == TIME
        ]
        if verdicts:
            commit = (self.newest.record.get("commit_info") or {}).get("id")
            content = {"commit": commit, "compared": self.title, "verdicts": verdicts}
            with self.storing():
                machine = records.fingerprint_id(self.newest.fingerprint)
                records.append_verdicts(self.settings.folder, machine, content)

    @contextmanager
    def storing(self) -> Generator[None, None, None]:
        """If the history cannot be written (a full disk, say), lets the run go on, report it, and fail."""
        try:
            yield
        except OSError as error:
            self.config.stash[run_state.STORAGE_ERROR] = (
                f"{self.settings.folder} could not be written: {error}"
            )

    def say(self, text: str, done: int, most: int) -> None:
        """Prints a line of progress with the time left, unless the last is less than SILENT_S seconds old."""
        if done and time.monotonic() - self.said_at < SILENT_S:
            return
        self.said_at = time.monotonic()
        each = (time.monotonic() - self.begun) / max(done, 1)
        left = min(each * max(most - done, 1), max(self.ends - self.said_at, 0.0))
        self.progress.always(text + (f" (about {minutes(left)} to go)" if done else ""))
