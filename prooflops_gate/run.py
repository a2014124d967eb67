"""The gate: has anything got slower, or changed, beside a baseline or another version? Decided by fresh processes.

This process runs no test and opens no device. It collects, runs the tests in processes of their own (`gate.process`)
until each benchmark is decided (`gate.schedule`), and reports every test once: a regression is that test's failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prooflops_gate import annotate, decide, pairs, report, sides, single_run
from prooflops_gate.against_history import AgainstHistory
from prooflops_gate.bisect import bisect
from prooflops_gate.console.tables import many
from prooflops_gate.history.comparison import claim_rows
from prooflops_gate.history.rows import TIME, VERDICTS, Row, counts
from prooflops_gate.options import REPORT_ONLY, Settings, files_of, without_fixture
from prooflops_gate.process import Replicate, ReplicateFailed, Replicates
from prooflops_gate.publish import BROKEN, INTERRUPTED, publish
from prooflops_gate.recording import record, store_noise_floor
from prooflops_gate.report import FINISHED, Result
from prooflops_gate.run_state import is_benchmark, is_replicate
from prooflops_gate.session import Session
from prooflops_gate.wording import summary


def configure(config: pytest.Config, settings: Settings) -> None:
    """Makes this run start fresh processes instead of running tests."""
    if not (is_replicate() or config.option.collectonly):
        # pytest-cov's: this process runs no test, so --cov-fail-under in a project's addopts would fail it.
        config.known_args_namespace.no_cov = True
        config.pluginmanager.register(Gate(config, settings), "prooflops_gate.run")


class Gate:
    """One run of the gate, as a plugin of the parent's pytest."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.session: Session | None = None
        self.broken = ""  # why this run did not end
        self.final: Result | None = None
        self.items: Sequence[pytest.Item] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            self.broken = f"{session.testsfailed} errors during collection"
            raise session.Interrupted(self.broken)
        killed = Result(
            "", status=INTERRUPTED, reason="it was killed"
        )  # what a run leaves that cannot write more
        publish(killed, self.config, self.settings)
        self.items, settings = session.items, self.settings
        with Replicates(
            self.config, settings.budget_s, resources=settings.memory != "off"
        ) as replicates:
            found = self.session = Session(self.config, settings, replicates)
            try:
                self.measure(session, found)
                found.store_verdicts()
            except ReplicateFailed as failed:
                self.broken = str(failed)
                found.title = found.title or "not finished"
                found.lines.append(self.broken)
            except pytest.UsageError as refused:
                self.broken = str(refused)
                raise
            found.reports.emit(session.items, found.rows, self.failing(), self.broken)
        if self.broken:
            raise pytest.Session.Failed(self.broken.splitlines()[0])
        return True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.broken or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            self.final = self.result(BROKEN, self.broken or "an internal error")
        elif exitstatus == pytest.ExitCode.INTERRUPTED:
            self.final = self.result(INTERRUPTED, str(session.shouldstop or "stopped by the user"))
        else:
            self.final = self.result(FINISHED)
        publish(self.final, self.config, self.settings)

    def result(self, status: str, reason: str = "") -> Result:
        """What was found so far, the worst rows first."""
        if not (found := self.session):
            return Result("", status=status, reason=reason)
        rows = sorted(found.rows, key=lambda row: VERDICTS.index(row.verdict))
        failing, settings = self.failing(), self.settings
        warning, passing = self.passing_open(rows)
        verdict = "fails" if failing else "passes"
        if settings.reports_only:
            last = "; ".join([counts(rows) or "nothing compared", found.effort, REPORT_ONLY])
        elif settings.gate or settings.bisect or status != FINISHED:
            last = summary(f"gate: {verdict if status == FINISHED else status}", rows, found.effort)
        else:
            last = found.effort
        lines, failed = [*filter(None, [passing]), *found.lines], sorted(found.reports.failed)
        return Result(
            found.title,
            rows,
            failing,
            warning,
            lines,
            found.details,
            last,
            found.table,
            status,
            reason,
            failed,
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.final and self.final.title:
            report.write_terminal(terminalreporter, self.final)
            for line in annotate.commands(self.final.failing, self.final.warning, self.items):
                terminalreporter.write_line(line)

    def measure(self, session: pytest.Session, found: Session) -> None:
        """Measures and compares as the options say."""
        benchmarks = [item.nodeid for item in session.items if is_benchmark(item)]
        rest = [item.nodeid for item in session.items if item.nodeid not in set(benchmarks)]
        settings = self.settings
        if settings.record or not settings.compares:
            record(found, [*benchmarks, *rest])
            return
        unmeasured = without_fixture(session.items)
        if not benchmarks:
            none = "the gate found no test with the fixture `benchmark` among those selected"
            raise pytest.UsageError("; ".join(filter(None, [none, unmeasured])))
        found.lines += [unmeasured] if unmeasured else []
        if settings.bisect:
            session.items[:] = [item for item in session.items if item.nodeid in set(benchmarks)]
            found.rows = bisect(found, benchmarks, settings.bisect)
            return
        if settings.baseline:
            single_run.baseline_of(
                settings, "", benchmarks
            )  # an unknown one is refused before anything runs
        other, asked = found.here, ""
        if settings.versus:
            asked = f"--gate-versus {settings.versus}"
            other = sides.other_side(settings.versus, self.config, found.replicates)
            found.here = replace(
                found.here, paths=sides.import_paths(found.here.root, found.here.root)
            )
        verdicts: dict[str, str] = {}
        if rest:
            found.say(f"{many(len(rest), 'test')} beside the benchmarks", 0, 1)
            verdicts = verdicts_of(found.run(found.here, rest, benchmarks_only=False))
        if settings.baseline:
            history = AgainstHistory(found, benchmarks)
            found.rows = history.compare()
            before = {claim: was for each in history.then for claim, was in each.verdicts.items()}
            found.rows += changed_claims(before, verdicts)
            return
        found.rows, fingerprint_id = pairs.compare(found, found.here, other, asked, benchmarks)
        if settings.noise_floor:
            store_noise_floor(found, fingerprint_id)
        if verdicts and settings.versus and (there := sides.existing(files_of(rest), other)):
            theirs = verdicts_of(
                found.replicates.run([(other, there)], rest, benchmarks_only=False)[0]
            )
            found.rows += changed_claims(theirs, verdicts)
            if not theirs:
                found.lines.append("claims are not compared: the other side reports no verdicts")

    def failing(self) -> list[Row]:
        """The rows that fail the gate."""
        if not self.session:
            return []
        if self.settings.bisect:
            return [
                row for row in self.session.rows if row.quantity == TIME and row.verdict == "SLOWER"
            ]
        if not self.settings.gate:
            return []
        return [row for row in self.session.rows if self.fails(row, self.settings.allowed_open)]

    def passing_open(self, rows: Sequence[Row]) -> tuple[str, str]:
        """A warning of undecided benchmarks that pass, and a line on others; see `annotate.passing_open`."""
        return (
            annotate.passing_open(rows, self.settings, self.fails)
            if self.settings.gate
            else ("", "")
        )

    def fails(self, row: Row, allowed_open: float) -> bool:
        """Whether a row fails the gate if undecided benchmarks pass where a larger change is excluded."""
        found, settings = self.session, self.settings
        own = found.markers.get(row.name, {}) if found else {}
        direction = str(own.get("direction", settings.direction))
        return decide.fails(
            row, direction, allowed_open, settings.memory == "fail", settings.instructions_fail
        )


def verdicts_of(done: Replicate) -> dict[str, str]:
    """The claims' verdicts of a process, where its suite gives any."""
    return {row["id"]: row["verdict"] for row in done.record["prooflops"].get("verdicts", [])}


def changed_claims(before: Mapping[str, str], after: Mapping[str, str]) -> list[Row]:
    """The claims whose verdict differs; those that only one side checked are not compared."""
    return [row for row in claim_rows([before], [after]) if row.verdict == "CHANGED"]
