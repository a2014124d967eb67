"""The gate: has anything got slower, or changed, beside a baseline or another version? Decided by fresh processes.

This process executes no test and opens no device. It collects, has `prooflops.gate.processes` run the tests in
processes of their own, asks `prooflops.gate.decisions` after each whether more are needed and for which benchmarks, and
at the end reports every test once, as if it had run it: a regression is that test's failure.
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
from prooflops.gate import decisions as judging
from prooflops.gate import sides, single_run, summary
from prooflops.gate.processes import Replicate, ReplicateFailed, Replicates, Side
from prooflops.gate.settings import Settings
from prooflops.history import comparison as compare
from prooflops.history import records as history
from prooflops.history.records import Timed
from prooflops.run_state import is_replicate
from prooflops.statistics.effects import UNKNOWN_FLOOR
from prooflops.statistics.noise import noise_floor, spread
from prooflops.statistics.plan import smallest_effect

RECORDED = 5  # processes of a baseline, where --gate-replicates doesn't say
REPEATS_SHARE = 4  # of four pairs of a benchmark one may be repeated because it was contended, and two in any case
PROPERTY = "gate"


def configure(config: pytest.Config, settings: Settings) -> None:
    """Has this run start fresh processes instead of executing tests."""
    if not (is_replicate() or config.option.collectonly):
        config.pluginmanager.register(Gate(config, settings), "prooflops.gate.run")


class Gate:
    """One run of the gate, as a plugin of the parent's pytest."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.progress = Progress(config, "gate")
        self.rows: list[compare.Row] = []
        self.table: list[list[str]] = []  # in place of that of the rows
        self.lines: list[str] = []
        self.title = ""
        self.begun = self.timing_since = time.monotonic()
        self.reports: dict[str, list[pytest.TestReport]] = {}
        self.broken = ""  # why a process of this side ended without reporting
        self.markers: dict[str, dict[str, Any]] = {}

    # ---- the hooks -----------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
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
            self.emit(session)
        if self.broken:
            raise pytest.Session.Failed(self.broken.splitlines()[0])
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.title:
            rows = sorted(self.rows, key=lambda row: compare.VERDICTS.index(row.verdict))  # the worst first
            summary.write_terminal(terminalreporter, self.title, rows, self.lines, self.table)
            summary.write_step_summary(self.title, rows, self.lines, self.failing(), self.table)

    # ---- measuring -----------------------------------------------------------------------------------------------

    def measure(self, session: pytest.Session) -> None:
        timed = [item.nodeid for item in session.items if "benchmark" in getattr(item, "fixturenames", ())]
        rest = [item.nodeid for item in session.items if "benchmark" not in getattr(item, "fixturenames", ())]
        settings = self.settings
        if settings.record or not (settings.baseline or settings.versus or settings.noise_floor):
            self.record([*timed, *rest])
            return
        if not timed:
            raise pytest.UsageError("the gate found no test with the fixture `benchmark` among those selected")
        if settings.baseline:
            single_run.baseline_of(settings, "")  # an unknown one is refused before anything runs
        elif settings.versus:
            self.other = sides.other_side(settings.versus, self.config, self.replicates)
            self.here = replace(self.here, paths=sides.import_paths(self.here.root))
        verdicts: dict[str, str] = {}
        if rest:
            self.say(f"the {len(rest)} tests that are no benchmarks", 0, 1)
            tests = self.keep(self.replicates.run(self.here, files_of(rest), rest, benchmarks_only=False))
            verdicts = verdicts_of(tests)
        self.timing_since = time.monotonic()
        if settings.baseline:
            self.against_history(timed, verdicts)
        else:
            self.side_by_side(timed)
            if verdicts and settings.versus and (there := sides.existing(files_of(rest), self.other)):
                theirs = verdicts_of(self.replicates.run(self.other, there, rest, benchmarks_only=False))
                self.rows += claim_rows(self.blank, theirs, verdicts)
                if not theirs:
                    self.lines.append("the other side tells no verdicts of claims: they are not compared")

    def record(self, ids: Sequence[str]) -> None:
        """N processes of everything, stored as a baseline."""
        if not ids:
            raise pytest.UsageError("--gate-record: no test is selected, and a baseline of none lets everything pass")
        wanted = self.settings.replicates or RECORDED
        files: list[Path] = []
        taken: dict[str, list[Timed]] = {}
        for number in range(wanted):
            self.say(f"replicate {number + 1} of {wanted}", number, wanted)
            done = self.keep(self.replicates.run(self.here, files_of(ids), ids, benchmarks_only=False))
            if done.record_path is None:
                raise pytest.UsageError("--gate-record: the plugin prooflops.plugin is not active in a fresh process")
            with self.storing():
                files.append(history.append(self.settings.folder, done.record, done.record["prooflops"]["fingerprint"]))
            for name, one in self.summary_of(done).benchmarks.items():
                taken.setdefault(name, []).append(one)
            if len(files) <= number:
                break  # the next could not be stored either
        self.title = f"{len(files)} fresh processes recorded"
        self.table = spread_table(taken)
        failed = [name for name, reports in self.reports.items() if any(report.failed for report in reports)]
        if self.settings.record and failed:
            self.lines.append(f"not stored as {self.settings.record}: {len(failed)} tests failed")
        elif self.settings.record and len(files) == wanted:
            with self.storing():
                stored = history.store_baseline(self.settings.record, files)
                self.lines.append(f"baseline {self.settings.record}: {wanted} records, named in {stored}")

    @contextmanager
    def storing(self) -> Generator[None, None, None]:
        """Where the history cannot be written (a full disk, say), the run goes on, says so at its end, and is red."""
        try:
            yield
        except OSError as error:
            self.config.stash[run_state.STORAGE_ERROR] = f"{self.settings.folder} could not be written: {error}"

    def against_history(self, timed: list[str], verdicts: dict[str, str]) -> None:
        """Processes of this side, one after the other, against those that were stored."""
        settings = self.settings
        first = self.keep(self.replicates.run(self.here, files_of(timed), timed))
        mine = self.summary_of(first)
        then = single_run.baseline_of(settings, mine.fingerprint_id)
        if then[-1].fingerprint_id != mine.fingerprint_id:
            raise pytest.UsageError(single_run.refusal(settings, then[-1], first.record["prooflops"]["fingerprint"]))
        rows = history.noise_floors(settings.folder, mine.fingerprint_id)
        floors = {name: float(row["floor"]) for name, row in rows.items() if row.get("floor")}
        if floorless := [name for name in mine.benchmarks if name not in floors]:
            self.lines.append(
                f"what a change of sitting does to {len(floorless)} benchmarks is not known, and assumed to be "
                f"{UNKNOWN_FLOOR:.0%}: more than 1% of runs may alarm without a change; --gate-noise-floor, "
                "in two sittings, tells it"
            )
        stored: dict[str, list[Timed]] = {}
        for record in then:
            for name, one in record.benchmarks.items():
                stored.setdefault(name, []).append(one)
        # What this run was not asked for is not missing; by what -k and -m select is not known.
        asked = {name for name in stored if self.is_judged(name) and (name in timed or is_asked_for(name, self.config))}
        if selects_by_expression(self.config):
            if unknown := asked - set(timed):
                self.lines.append(f"nothing is said of {len(unknown)} benchmarks of the baseline that are not selected")
            asked &= set(timed)
        stored = {name: group for name, group in stored.items() if name in asked}
        told = claim_rows(mine, {claim: was for each in then for claim, was in each.verdicts.items()}, verdicts)

        def take(names: list[str]) -> dict[str, tuple[Timed | None, Timed]]:
            done = self.keep(self.replicates.run(self.here, files_of(names), names))
            return {name: (None, one) for name, one in self.summary_of(done).benchmarks.items()}

        self.title = f"against the baseline {settings.baseline} ({len(then)} processes)"
        rule = self.rule(paired=False, floors=floors)
        before_after: dict[str, tuple[Timed | None, Timed]] = {
            name: (None, one) for name, one in mine.benchmarks.items()
        }
        self.adapt(before_after, stored, rule, take)
        self.rows += told

    def side_by_side(self, timed: list[str]) -> None:
        """Pairs of processes, one of each side, the order within them alternating: ABBA."""
        settings = self.settings
        other = self.other if settings.versus else self.here
        targets = sides.targets(self.config, other) if settings.versus else files_of(timed)
        took = 0

        def pair(names: list[str] | None) -> tuple[Replicate, Replicate]:
            nonlocal took
            mine = timed if names is None else names
            there = targets if names is None else sides.existing(files_of(names), other)
            theirs = names if names is not None or settings.versus else timed

            def before() -> Replicate:
                try:
                    return self.replicates.run(other, there, theirs)
                except ReplicateFailed as failed:
                    if other is self.here:
                        raise
                    raise pytest.UsageError(f"--gate-versus {settings.versus}: {failed}") from failed

            def after() -> Replicate:
                return self.keep(self.replicates.run(self.here, files_of(mine), mine))

            took += 1
            if took % 2:
                one = before()
                return one, after()
            two = after()
            return before(), two

        before, after = pair(None)
        if settings.versus:
            sides.check_origins(before, after, self.config.rootpath, str(settings.versus))
        then, now = self.summary_of(before).benchmarks, self.summary_of(after).benchmarks
        if settings.versus:  # the other side ran the whole files, with the same -k and -m
            then = {name: one for name, one in then.items() if name in timed or is_asked_for(name, self.config)}
            then = {name: one for name, one in then.items() if self.is_judged(name)}

        def take(names: list[str]) -> dict[str, tuple[Timed | None, Timed]]:
            one, two = (self.summary_of(done).benchmarks for done in pair(names))
            return {name: (one[name], two[name]) for name in two if name in one}

        self.title = (
            f"{other.label} (before) beside this side (after)" if settings.versus else "this code beside itself"
        )
        first: dict[str, tuple[Timed | None, Timed]] = {name: (then[name], now[name]) for name in now if name in then}
        gone = {name: [one] for name, one in then.items() if name not in now}
        new = {name: one for name, one in now.items() if name not in then}
        failed_there = {report["nodeid"] for report in before.reports if report.get("outcome") == "failed"}
        self.adapt(first, {**{name: [] for name in first}, **gone}, self.rule(paired=True), take)
        self.rows = [
            compare.Row(name, compare.TIME, None, one.time_s, "NEW",
                        note="it fails on the other side" if name in failed_there else "")
            for name, one in new.items()
        ] + self.rows  # fmt: skip
        if settings.noise_floor:
            self.store_noise_floor(after)

    def adapt(
        self,
        first: dict[str, tuple[Timed | None, Timed]],
        stored: dict[str, list[Timed]],
        rule: judging.Rule,
        take: Any,
    ) -> None:
        """Takes replicates until every benchmark is decided, or the budget is spent; sets the rows.

        `stored` holds what there is of the before side to begin with; in pairs the before side grows with the other.
        """
        both: dict[str, tuple[list[Timed], list[Timed]]] = {
            name: (list(stored[name]), []) for name in first if name in stored
        }
        repeats: dict[str, int] = {}
        held: dict[str, tuple[Timed | None, Timed]] = {}  # contended, to be repeated

        def add(taken: dict[str, tuple[Timed | None, Timed]]) -> None:
            for name, (one, two) in taken.items():
                if name not in both:
                    continue
                allowed = max(2, len(both[name][1]) // REPEATS_SHARE)
                if (two.contended or (one and one.contended)) and repeats.get(name, 0) < allowed:
                    repeats[name] = repeats.get(name, 0) + 1
                    held[name] = (one, two)
                    continue
                if one is not None:
                    both[name][0].append(one)
                both[name][1].append(two)

        add(first)
        taken, deadline = 1, self.begun + self.settings.budget_s
        begun = time.monotonic()
        spent = begun - self.timing_since
        tried = dict.fromkeys(both, 1)
        while True:
            rows, wanting = judging.timed_rows(both, rule)
            open_ = {name: wanted for name, wanted in wanting.items() if name in both}
            open_ = {name: wanted for name, wanted in open_.items() if tried[name] < 4 * max(wanted, 8)}
            if not open_:
                break
            if time.monotonic() + spent > deadline:
                self.lines.append(f"the budget of {self.settings.budget_s / 60:g} min (--gate-budget) is spent: "
                                  f"{len(open_)} benchmarks are open")  # fmt: skip
                break
            least, most = min(open_.values()), max(open_.values())
            until = f"{least}" if least == most else f"{least} to {most}"
            self.say(f"{'pair' if rule.paired else 'replicate'} {taken + 1} of {until}, {len(open_)} open", taken, most)
            began = time.monotonic()
            for name in open_:
                tried[name] += 1
            add(take(list(open_)))
            taken += 1
            spent = time.monotonic() - began
        for name, (one, two) in held.items():
            if not both[name][1]:  # the machine was never quiet: labelled instead
                both[name][1].append(two)
                if one is not None:
                    both[name][0].append(one)
        rows, _ = judging.timed_rows(both, rule)
        gone = [
            compare.Row(name, compare.TIME, group[-1].time_s, None, "MISSING", note="it was renamed, or did not run")
            for name, group in stored.items() if name not in first and group
        ]  # fmt: skip
        new = [
            compare.Row(name, compare.TIME, None, two.time_s, "NEW")
            for name, (_, two) in first.items() if name not in stored
        ]  # fmt: skip
        exact = self.exact_rows(both)
        reports = (report for reports in self.reports.values() for report in reports)
        self.rows = [*compare.with_skips(gone, single_run.skip_reasons(reports)), *new, *exact, *rows]
        self.lines.append(
            f"{taken} {'pairs' if rule.paired else 'replicates'} in {time.monotonic() - self.begun:.0f} s, "
            f"{sum(repeats.values())} repeated because other work competed"
        )

    def exact_rows(self, both: dict[str, tuple[list[Timed], list[Timed]]]) -> list[compare.Row]:
        """The exact quantities that differ between the sides; one process of each suffices."""
        before, after = (
            [replace(self.blank, benchmarks={name: timed}) for name, pair in both.items() for timed in pair[index]]
            for index in (0, 1)
        )
        return [row for row in compare.exact_rows(before, after, list(both)) if row.verdict != "SAME"]

    def rule(self, *, paired: bool, floors: dict[str, float] | None = None) -> judging.Rule:
        both = self.settings.direction == "both" or any(row.get("direction") == "both" for row in self.markers.values())
        return judging.Rule(
            min_effect=self.settings.min_effect,
            paired=paired,
            most=self.settings.replicates,
            directions=2 if both else 1,
            fixed=self.settings.noise_floor,
            floors=floors or {},
            markers=self.markers,
        )

    def store_noise_floor(self, last: Replicate) -> None:
        """What A against A showed, per benchmark, stored for history mode beside the sittings before."""
        own = self.summary_of(last).fingerprint_id
        known = history.noise_floors(self.settings.folder, own)
        timed = [(row, row.effect) for row in self.rows if row.quantity == compare.TIME and row.effect]
        # What can be found is that of a gate run with the plan in force, whatever this estimate took.
        plan = replace(self.rule(paired=True), most=None, fixed=False).plan(len(timed))
        found, self.table = (
            {},
            [["benchmark", "time", "pairs", "noise", "slowdowns are found from", "between sittings"]],
        )
        for row, effect in timed:
            noise = effect.noise if math.isfinite(effect.noise) else None
            smallest = None
            if noise is not None:
                smallest = smallest_effect(noise, plan, self.rule(paired=True).min_effect_of(row.name))
            sittings = [*known.get(row.name, {}).get("sittings_s", []), row.after][-50:]
            floor = noise_floor([[time_s] for time_s in sittings])
            found[row.name] = {
                "noise": noise,
                "smallest_effect": smallest,
                "pairs": effect.pairs,
                "sittings_s": sittings,
                "floor": floor if math.isfinite(floor) else None,
            }
            self.table.append([
                row.name,
                engineering(row.after, "s"),
                str(effect.pairs),
                "unknown" if noise is None else f"{noise:.1%}",
                "unknown: too few pairs" if smallest is None else f"{smallest:.1%}",
                f"{floor:.1%} ({len(sittings)} sittings)" if math.isfinite(floor) else "known from 2 sittings on",
            ])  # fmt: skip
        self.lines.append(f"at most {plan.alarm_rate:.0%} of whole gate runs alarm without a change")
        with self.storing():
            self.lines.append(f"stored in {history.store_noise_floors(self.settings.folder, own, found)}")

    # ---- reporting -----------------------------------------------------------------------------------------------

    def keep(self, done: Replicate) -> Replicate:
        """Remembers each test's reports; a failure in any process stays."""
        grouped: dict[str, list[pytest.TestReport]] = {}
        for data in done.reports:
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # of a skip: pytest's reports insist on a tuple, JSON has none
            grouped.setdefault(report.nodeid, []).append(report)
        for name, reports in grouped.items():
            if not any(report.failed for report in self.reports.get(name, [])):
                self.reports[name] = reports
        return done

    def summary_of(self, done: Replicate) -> history.Summary:
        self.blank = history.summary_of(done.record, done.record_path or Path("replicate"), self.settings.exact)
        return self.blank

    def is_judged(self, benchmark: str) -> bool:
        """False where its marker says `ignore`; the other side's and stored processes may not know that yet."""
        return not self.markers.get(benchmark, {}).get("ignore", False)

    def direction_of(self, benchmark: str) -> str:
        return str(self.markers.get(benchmark, {}).get("direction", self.settings.direction))

    def failing(self) -> list[compare.Row]:
        """The rows for which the gate stops."""
        if not self.settings.gate:
            return []
        return [row for row in self.rows if judging.fails(row, self.direction_of(row.name), self.settings.strict)]

    def emit(self, session: pytest.Session) -> None:
        """One set of reports per test, with the verdicts as properties and a regression as a failure."""
        failing = self.failing()
        by_name: dict[str, list[compare.Row]] = {}
        for row in self.rows:
            by_name.setdefault(row.name, []).append(row)
        hook = self.config.hook
        emitted = set()
        for item in session.items:
            emitted.add(item.nodeid)
            reports = self.reports.get(item.nodeid) or [self.lost(item.nodeid, item.location)]
            why = "\n".join(summary.sentence(row) for row in failing if row.name == item.nodeid)
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for report in reports:
                report.user_properties = [*report.user_properties, *summary.properties(by_name.get(item.nodeid, []))]
                if why and (report.skipped or (report.when == "call" and report.passed)):
                    report.outcome, report.longrepr = "failed", why
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        for name in dict.fromkeys(row.name for row in failing if row.name not in emitted):
            location = (name.partition("::")[0], None, name.partition("::")[2] or name)
            why = "\n".join(summary.sentence(row) for row in failing if row.name == name)
            hook.pytest_runtest_logstart(nodeid=name, location=location)
            for report in _phases(name, location, why, summary.properties(by_name[name])):
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=name, location=location)

    def lost(self, name: str, location: tuple[str, int | None, str]) -> pytest.TestReport:
        why = self.broken or "this test was collected here, but a fresh process of this side did not run it"
        return _phases(name, location, why, [])[1]

    def say(self, text: str, done: int, most: int) -> None:
        each = (time.monotonic() - self.begun) / max(done, 1)
        left = min(each * (most - done), self.settings.budget_s)
        self.progress(text + (f", at most {left / 60:.1f} min left" if done else ""), ahead_s=each if done else 0.0)


def _phases(
    name: str, location: tuple[str, int | None, str], why: str, properties: list[tuple[str, object]]
) -> list[pytest.TestReport]:
    def phase(when: Any, outcome: Any, longrepr: str | None) -> pytest.TestReport:
        return pytest.TestReport(
            name, location, {name: 1}, outcome, longrepr, when, user_properties=properties, duration=0.0
        )

    return [phase("setup", "passed", None), phase("call", "failed", why), phase("teardown", "passed", None)]


def spread_table(taken: Mapping[str, Sequence[Timed]]) -> list[list[str]]:
    """What the processes of one sitting measured: the median of their fastest rounds, and how far they lie apart."""
    rows = [["benchmark", "processes", "time", "spread", "slowest", "contended"]]
    for name, group in taken.items():
        times = [one.time_s for one in group]
        middle, contended = median(times), sum(bool(one.contended) for one in group)
        row = [name, str(len(group)), engineering(middle, "s"), f"{spread(times):.1%}"]
        rows.append([*row, f"{max(times) / middle - 1:+.1%}", str(contended or "")])
    return rows


def files_of(ids: Sequence[str]) -> list[str]:
    """The files of these tests, each once, in order."""
    return list(dict.fromkeys(name.partition("::")[0] for name in ids))


def selects_by_expression(config: pytest.Config) -> bool:
    """Whether more than paths and node ids says which tests run."""
    option = config.option
    return bool(
        option.keyword or option.markexpr or getattr(option, "deselect", None) or getattr(option, "claim", None)
    )


def is_asked_for(name: str, config: pytest.Config) -> bool:
    """Whether the folders, files and node ids that this run was given cover a test of this name, be it there or not.

    So a benchmark that vanished from a file is missing, and one of a file that this run does not concern is not. Where
    the last run says which tests are run (--lf, --sw), nothing else was asked for: the other side has no such past.
    """
    if getattr(config.option, "lf", False) or getattr(config.option, "stepwise", False):
        return False
    file, _, inside = name.partition("::")
    path = (config.rootpath / file).resolve()
    for argument in config.args:
        given, _, wanted = argument.partition("::")
        place = (config.invocation_params.dir / given).resolve()
        if (not wanted and (place == path or place in path.parents)) or (
            wanted and place == path and (inside == wanted or inside.startswith((wanted + "::", wanted + "[")))
        ):
            return True
    return False


def verdicts_of(done: Replicate) -> dict[str, str]:
    """The claims' verdicts of a process, where its suite gives any."""
    return {row["id"]: row["verdict"] for row in done.record["prooflops"].get("verdicts", [])}


def claim_rows(blank: history.Summary, before: Mapping[str, str], after: Mapping[str, str]) -> list[compare.Row]:
    """The claims whose verdict differs; those that a side did not ask for say nothing."""
    sides_ = [[replace(blank, benchmarks={}, verdicts=verdicts)] for verdicts in (before, after)]
    return [row for row in compare.compare(*sides_) if row.verdict == "CHANGED"]
