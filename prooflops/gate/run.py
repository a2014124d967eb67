"""The gate: has anything got slower, or changed, beside a baseline or another version? Decided by fresh processes.

This process runs no test and opens no device. It collects, has `prooflops.gate.processes` run the tests in processes of
their own, asks `prooflops.gate.decisions` after each which benchmarks need more, and at the end reports every test
once, as if it had run it: a regression is that test's failure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from prooflops import run_state
from prooflops.console.progress import Progress
from prooflops.console.tables import engineering
from prooflops.gate import decisions, process_plan, sides, single_run, summary
from prooflops.gate.noise_floor import store_noise_floor
from prooflops.gate.pacing import Pacing, Pair, Take
from prooflops.gate.processes import Replicate, ReplicateFailed, Replicates, Side
from prooflops.gate.reporting import Reports
from prooflops.gate.selection import files_of, is_asked_for, selects_by_expression
from prooflops.gate.settings import Settings
from prooflops.history import records
from prooflops.history.comparison import claim_rows, exact_rows
from prooflops.history.records import Summary, Timed
from prooflops.history.rows import TIME, VERDICTS, Row, one_sided, with_skips
from prooflops.run_state import is_replicate
from prooflops.statistics.effects import UNKNOWN_FLOOR
from prooflops.statistics.noise import spread

SILENT_S = 20.0  # between two lines of progress
RECORDED = 5  # processes of a baseline, where --gate-replicates doesn't say


def configure(config: pytest.Config, settings: Settings) -> None:
    """Makes this run start fresh processes instead of running tests."""
    if not (is_replicate() or config.option.collectonly):
        config.pluginmanager.register(Gate(config, settings), "prooflops.gate.run")


class Gate:
    """One run of the gate, as a plugin of the parent's pytest."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.progress = Progress(config, "gate")
        self.reports = Reports(config)
        self.rows: list[Row] = []
        self.table: list[list[str]] = []  # in place of that of the rows
        self.lines: list[str] = []
        self.title = ""
        self.begun = self.timing_since = self.said_at = time.monotonic()
        self.broken = ""  # why a process of this side ended without a record
        self.markers: dict[str, dict[str, Any]] = {}
        self.paces: process_plan.Paces = process_plan.FIRST
        self.planned = ""

    # ---- the hooks -----------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        self.progress = Progress(self.config, "gate")  # there was no terminal yet when this plugin was registered
        self.markers = self.config.stash.get(run_state.MARKERS, {})
        self.begun = time.monotonic()
        with Replicates(self.config, limit_s=self.settings.budget_s) as self.replicates:
            self.here = Side("this side", sides.python_here(), self.config.rootpath)
            try:
                self.measure(session)
            except ReplicateFailed as failed:
                self.broken = str(failed)
                self.title = self.title or "not finished"
                self.lines.append(self.broken)
            self.reports.emit(session.items, self.rows, self.failing(), self.broken)
        if self.broken:
            raise pytest.Session.Failed(self.broken.splitlines()[0])
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.title:
            rows = sorted(self.rows, key=lambda row: VERDICTS.index(row.verdict))  # the worst first
            summary.write_terminal(terminalreporter, self.title, rows, self.lines, self.table)
            summary.write_step_summary(self.title, rows, self.lines, self.failing(), self.table)

    # ---- measuring -----------------------------------------------------------------------------------------------

    def measure(self, session: pytest.Session) -> None:
        """Does what the options ask for."""
        benchmarks = [item.nodeid for item in session.items if "benchmark" in getattr(item, "fixturenames", ())]
        rest = [item.nodeid for item in session.items if item.nodeid not in set(benchmarks)]
        settings = self.settings
        if settings.record or not (settings.baseline or settings.versus or settings.noise_floor):
            self.record([*benchmarks, *rest])
            return
        if not benchmarks:
            raise pytest.UsageError("the gate found no test with the fixture `benchmark` among those selected")
        if settings.baseline:
            single_run.baseline_of(settings, "", benchmarks)  # an unknown one is refused before anything runs
        other = self.here
        if settings.versus:
            other = sides.other_side(settings.versus, self.config, self.replicates)
            self.here = replace(self.here, paths=sides.import_paths(self.here.root))
        verdicts: dict[str, str] = {}
        if rest:
            self.say(f"the {len(rest)} tests that are no benchmarks", 0, 1)
            verdicts = verdicts_of(self.run_here(rest, benchmarks_only=False))
        self.timing_since = time.monotonic()
        if settings.baseline:
            self.against_history(benchmarks, verdicts)
            return
        self.side_by_side(benchmarks, other)
        if verdicts and settings.versus and (there := sides.existing(files_of(rest), other)):
            theirs = verdicts_of(self.replicates.run(other, there, rest, benchmarks_only=False))
            self.rows += changed_claims(theirs, verdicts)
            if not theirs:
                self.lines.append("claims are not compared: the other side reports no verdicts")

    def record(self, ids: Sequence[str]) -> None:
        """Runs everything in N processes, and stores them as a baseline."""
        if not ids:
            raise pytest.UsageError("--gate-record: no test is selected, and a baseline of none lets everything pass")
        wanted = self.settings.replicates or RECORDED
        files: list[Path] = []
        taken: dict[str, list[Timed]] = {}
        for number in range(wanted):
            self.say(f"replicate {number + 1} of {wanted}", number, wanted)
            done = self.run_here(ids, benchmarks_only=False)
            if done.fingerprint is None:
                raise pytest.UsageError("--gate-record: the plugin prooflops.plugin is not active in a fresh process")
            with self.storing():
                files.append(records.append(self.settings.folder, done.record, done.fingerprint))
            for name, timed in self.summary_of(done).benchmarks.items():
                taken.setdefault(name, []).append(timed)
            if len(files) <= number:
                break  # the next could not be stored either
        self.title = f"{len(files)} fresh processes recorded"
        self.table = spread_table(taken)
        failed = self.reports.failed()
        if self.settings.record and failed:
            self.lines.append(f"not stored as {self.settings.record}: {len(failed)} tests failed")
        elif self.settings.record and len(files) == wanted:
            with self.storing():
                stored = records.store_baseline(self.settings.record, files)
                self.lines.append(f"baseline {self.settings.record}: {wanted} records, named in {stored}")

    @contextmanager
    def storing(self) -> Generator[None, None, None]:
        """Where the history cannot be written (a full disk, say), the run goes on, says so at its end, and is red."""
        try:
            yield
        except OSError as error:
            self.config.stash[run_state.STORAGE_ERROR] = f"{self.settings.folder} could not be written: {error}"

    def against_history(self, benchmarks: Sequence[str], verdicts: Mapping[str, str]) -> None:
        """Compares processes of this side, one after the other, with those that were stored."""
        settings = self.settings
        first = self.run_here(benchmarks)
        mine = self.summary_of(first)
        then = single_run.baseline_of(settings, mine.fingerprint_id, benchmarks)
        if then[-1].fingerprint_id != mine.fingerprint_id:
            raise pytest.UsageError(single_run.refusal(settings, then[-1], first.fingerprint or {}))
        known = records.noise_floors(settings.folder, mine.fingerprint_id)
        floors = {name: float(row["floor"]) for name, row in known.items() if row.get("floor")}
        if floorless := [name for name in mine.benchmarks if name not in floors]:
            self.lines.append(
                f"drift between sessions is unknown for {len(floorless)} benchmarks, and {UNKNOWN_FLOOR:.0%} is "
                "assumed: more than 1% of runs may alarm without a change; measure it with --gate-noise-floor, in two "
                "sessions"
            )
        stored = self.asked_for(then, benchmarks)
        before_after: dict[str, Pair] = {name: (None, timed) for name, timed in mine.benchmarks.items()}

        def take(names: list[str]) -> dict[str, Pair]:
            return {name: (None, timed) for name, timed in self.summary_of(self.run_here(names)).benchmarks.items()}

        self.title = f"against the baseline {settings.baseline} ({len(then)} processes)"
        self.compare(before_after, stored, take, paired=False, floors=floors)
        self.rows += changed_claims({claim: was for each in then for claim, was in each.verdicts.items()}, verdicts)

    def asked_for(self, then: Sequence[Summary], benchmarks: Sequence[str]) -> dict[str, list[Timed]]:
        """The stored benchmarks that this run is asked about: others are not missing."""
        stored: dict[str, list[Timed]] = {}
        for record in then:
            for name, timed in record.benchmarks.items():
                stored.setdefault(name, []).append(timed)
        asked = {name: group for name, group in stored.items() if self.is_compared(name, benchmarks)}
        if selects_by_expression(self.config):  # which of the stored ones -k and -m would select is not known
            if unknown := asked.keys() - set(benchmarks):
                self.lines.append(f"{len(unknown)} benchmarks of the baseline are not selected, and not compared")
            asked = {name: group for name, group in asked.items() if name in benchmarks}
        return asked

    def side_by_side(self, benchmarks: Sequence[str], other: Side) -> None:
        """Compares pairs of processes, one of each side, the order within them alternating: ABBA."""
        versus = self.settings.versus
        targets = sides.targets(self.config, other) if versus else files_of(benchmarks)
        # The other side runs whole files first, with the same -k and -m: what it has is not known yet.
        before, after = self.pair(other, targets, None if versus else benchmarks, benchmarks, swapped=False)
        then, now = self.summary_of(before).benchmarks, self.summary_of(after).benchmarks
        if versus:
            sides.check_origins(before, after, self.config.rootpath, versus)
            then = {name: timed for name, timed in then.items() if self.is_compared(name, benchmarks)}
        too_long, look = self.plan(before, after, {name: now[name].time_s for name in now if name in then})
        swapped = False

        def take(names: list[str]) -> dict[str, Pair]:
            nonlocal swapped
            swapped = not swapped
            pair = self.pair(other, sides.existing(files_of(names), other), names, names, swapped=swapped)
            old, new = (self.summary_of(done).benchmarks for done in pair)
            return {name: (old[name], new[name]) for name in new if name in old}

        this = f"this side ({sides.commit_of(self.config.rootpath)})"
        self.title = f"{other.label} (before) beside {this} (after)" if versus else f"{this} beside itself"
        first: dict[str, Pair] = {name: (then.get(name), timed) for name, timed in now.items()}
        stored = {name: [] if name in now else [timed] for name, timed in then.items()}
        self.compare(first, stored, take, paired=True, given_up=too_long, look=look)
        failed_there = {report["nodeid"] for report in before.reports if report.get("outcome") == "failed"}
        self.rows = [
            replace(row, note="it fails on the other side")
            if row.verdict == "NEW" and row.quantity == TIME and row.name in failed_there
            else row
            for row in self.rows
        ]
        if self.settings.noise_floor:
            self.store_noise_floor(self.summary_of(after).fingerprint_id)

    def plan(
        self, before: Replicate, after: Replicate, rounds_s: Mapping[str, float]
    ) -> tuple[dict[str, str], process_plan.Look]:
        """Plans what follows the first pair and says so. Returns which benchmarks are too long and why, and what
        chooses the pace before each pair."""
        rule = self.rule(len(rounds_s), paired=True)
        budget_s = self.settings.budget_s - (self.timing_since - self.begun)
        plan = process_plan.plan_of(before, after, rounds_s, rule.plan, budget_s)
        too_long = plan.too_long()
        names = [name for name in plan.costs if name not in too_long]
        left_s = self.begun + self.settings.budget_s - time.monotonic()
        each_s = plan.each_s(names, left_s, plan.most_pairs - 1)
        self.planned = plan.sentence(each_s, too_long)
        self.progress.always(self.planned)

        def look(noise: Mapping[str, float], to_go: int) -> None:
            left_s = self.begun + self.settings.budget_s - time.monotonic()
            more_s = plan.each_s(list(noise), left_s, max(to_go, rule.plan.confirming_pairs), process_plan.MOST_S)
            noisy = [name for name, spread in noise.items() if process_plan.NOISY < spread < math.inf]
            self.paces = process_plan.paces(each_s, dict.fromkeys(noisy, max(each_s, more_s)))

        why = f"{plan.pairs} pairs do not fit into the budget: --gate-budget {plan.minutes_for(list(plan.costs))}"
        return {name: f"a process takes {plan.costs[name].call_s:.1f} s for it, and {why}" for name in too_long}, look

    def pair(
        self, other: Side, targets: Sequence[str], theirs: Sequence[str] | None, mine: Sequence[str], *, swapped: bool
    ) -> tuple[Replicate, Replicate]:
        """A process of the other side and one of this, which runs first if `swapped`."""

        def before() -> Replicate:
            try:
                return self.replicates.run(other, targets, theirs, paces=self.paces)
            except ReplicateFailed as failed:
                if not self.settings.versus:
                    raise
                raise pytest.UsageError(f"--gate-versus {self.settings.versus}: {failed}") from failed

        if swapped:
            after = self.run_here(mine, paces=self.paces)
            return before(), after
        return before(), self.run_here(mine, paces=self.paces)

    def compare(
        self,
        first: Mapping[str, Pair],
        stored: Mapping[str, Sequence[Timed]],
        take: Take,
        *,
        paired: bool,
        floors: Mapping[str, float] | None = None,
        given_up: Mapping[str, str] | None = None,
        look: process_plan.Look = lambda noise, to_go: None,
    ) -> None:
        """Takes replicates until every benchmark of both sides is decided, and sets the rows, of all benchmarks."""
        shared = {name: group for name, group in stored.items() if name in first}
        rule = self.rule(len(shared), paired=paired, floors=floors)
        given_up = given_up or {}
        deadline = self.begun + self.settings.budget_s
        pacing = Pacing(shared, rule, take, deadline, self.say, given_up=given_up, look=look)
        rows = pacing.run(first, time.monotonic() - self.timing_since)
        rows = [replace(row, note=given_up[row.name]) if row.name in given_up else row for row in rows]
        gone = [one_sided(name, TIME, group[-1].time_s, None) for name, group in stored.items() if name not in first]
        new = [one_sided(name, TIME, None, timed.time_s) for name, (_, timed) in first.items() if name not in stored]
        exact = [row for row in exact_rows(pacing.sides) if row.verdict != "SAME"]
        self.rows = [*with_skips(gone, single_run.skip_reasons(self.reports)), *new, *exact, *rows]
        self.lines += [self.planned] if self.planned else []
        if pacing.left_open:
            budget = f"the budget of {self.settings.budget_s / 60:g} min (--gate-budget) is spent"
            self.lines.append(f"{budget}: {len(pacing.left_open)} benchmarks are open")
        if paired and (every := decisions.overall(pacing.sides)):
            bounds = f"{every.ratio:.3f} ({summary.interval(every)})"
            self.lines.append(f"overall {bounds}: the geometric mean of {len(rows)} benchmarks")
            self.lines.append(decisions.found_from(rows, rule.plan, self.settings.min_effect))
        self.lines.append(
            f"{pacing.taken} {'pairs' if paired else 'replicates'} in {time.monotonic() - self.begun:.0f} s, "
            f"{pacing.repeated} measurements repeated because other work competed"
        )

    def rule(
        self, benchmarks: int, *, paired: bool, floors: Mapping[str, float] | None = None
    ) -> decisions.ReplicateRule:
        most, all_pairs = self.settings.replicates, self.settings.noise_floor
        plan = decisions.replicate_plan(
            benchmarks, paired=paired, most=most, all_pairs=all_pairs, directions=self.directions()
        )
        return decisions.ReplicateRule(plan, self.settings.min_effect, floors or {}, paired, most, all_pairs)

    def directions(self) -> int:
        given = [self.settings.direction, *(row.get("direction") for row in self.markers.values())]
        return 2 if "both" in given else 1

    def store_noise_floor(self, fingerprint_id: str) -> None:
        timed = [row for row in self.rows if row.quantity == TIME and row.effect]
        # What can be found is what a gate run with the plan in force finds, however many pairs this estimate took.
        plan = decisions.replicate_plan(len(timed), directions=self.directions())
        self.lines.append(f"at most {plan.alarm_rate:.0%} of whole gate runs alarm without a change")
        with self.storing():
            stored, self.table = store_noise_floor(self.settings.folder, fingerprint_id, timed, plan, self.smallest)
            self.lines.append(f"stored in {stored}")

    # ---- the parts of it -----------------------------------------------------------------------------------------

    def run_here(
        self, ids: Sequence[str], benchmarks_only: bool = True, paces: process_plan.Paces | None = None
    ) -> Replicate:
        """One process of this side, whose reports count."""
        done = self.replicates.run(self.here, files_of(ids), ids, benchmarks_only, paces)
        self.reports.add(done)
        return done

    def summary_of(self, done: Replicate) -> Summary:
        return records.summary_of(done.record, Path("replicate"), self.settings.exact)

    def is_compared(self, name: str, benchmarks: Sequence[str]) -> bool:
        """Whether this run is asked about a benchmark of the other side, of which its marker may say `ignore`."""
        if self.markers.get(name, {}).get("ignore", False):
            return False
        return name in benchmarks or is_asked_for(name, self.config)

    def smallest(self, name: str) -> float:
        return float(self.markers.get(name, {}).get("min_effect", self.settings.min_effect))

    def failing(self) -> list[Row]:
        """The rows for which the gate stops."""
        if not self.settings.gate:
            return []
        default, allow = self.settings.direction, self.settings.allow_inconclusive
        guarded = {name: str(row["direction"]) for name, row in self.markers.items() if "direction" in row}
        return [row for row in self.rows if decisions.fails(row, guarded.get(row.name, default), allow)]

    def say(self, text: str, done: int, most: int) -> None:
        if done and time.monotonic() - self.said_at < SILENT_S:
            return
        self.said_at = time.monotonic()
        each = (time.monotonic() - self.begun) / max(done, 1)
        left = min(each * max(most - done, 1), self.settings.budget_s)
        self.progress(text + (f", at most {left / 60:.1f} min left" if done else ""), ahead_s=each if done else 0.0)


def spread_table(taken: Mapping[str, Sequence[Timed]]) -> list[list[str]]:
    """What the processes of one session measured: the median of their fastest rounds, and how far they lie apart."""
    rows = [["benchmark", "processes", "time", "spread", "slowest", "contended"]]
    for name, group in taken.items():
        times = [timed.time_s for timed in group]
        middle, contended = median(times), sum(bool(timed.contended) for timed in group)
        row = [name, str(len(group)), engineering(middle, "s"), f"{spread(times):.1%}"]
        rows.append([*row, f"{max(times) / middle - 1:+.1%}", str(contended or "")])
    return rows


def verdicts_of(done: Replicate) -> dict[str, str]:
    """The claims' verdicts of a process, where its suite gives any."""
    return {row["id"]: row["verdict"] for row in done.record["prooflops"].get("verdicts", [])}


def changed_claims(before: Mapping[str, str], after: Mapping[str, str]) -> list[Row]:
    """The claims whose verdict differs; those that only one side checked are not compared."""
    return [row for row in claim_rows([before], [after]) if row.verdict == "CHANGED"]
