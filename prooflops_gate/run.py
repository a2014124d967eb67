"""The gate.

Has anything got slower, or changed, beside another version? Decided by fresh processes.

This process runs no test and opens no device. It collects, has two sides compared
(`prooflops_gate.comparison`), and reports every benchmark once: a regression is its failure.
Only this file of the gate prints.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prooflops_gate import baseline, sides
from prooflops_gate.bisect import bisect, checked_good
from prooflops_gate.child.options import switch_off
from prooflops_gate.comparison import Comparison, Stopped, compare
from prooflops_gate.console.progress import Progress, clock
from prooflops_gate.console.tables import write_lines
from prooflops_gate.instruments.time_rule import plan_for
from prooflops_gate.options import Settings
from prooflops_gate.process import Processes
from prooflops_gate.question import Question, refuse_without_benchmarks
from prooflops_gate.report import github
from prooflops_gate.report.files import publish
from prooflops_gate.report.noise_table import noise_table
from prooflops_gate.report.result import BROKEN, FINISHED, INTERRUPTED, Judge, Result
from prooflops_gate.report.terminal import below_the_box, box
from prooflops_gate.report.tests import Reports
from prooflops_gate.run_state import is_replicate
from prooflops_gate.selection import Selection
from prooflops_gate.task import Replicate, ReplicateFailed, Side
from prooflops_gate.unpatched import time

HERE = "this side"


def configure(config: pytest.Config, settings: Settings, disturbing: Sequence[str]) -> None:
    """Makes this run start fresh processes instead of running tests."""
    if is_replicate() or config.option.collectonly:
        return
    # pytest-cov's: this process runs no test, so --cov-fail-under in a project's addopts would fail
    # it.
    switch_off(config.known_args_namespace)
    # No benchmark runs here, and pytest-benchmark warns of nothing to save.
    config.option.benchmark_autosave = config.option.benchmark_save = None
    config.pluginmanager.register(Gate(config, settings, disturbing), "prooflops_gate.run")


def without(disturbing: Sequence[str]) -> str:
    """That the gate's processes run without these plugins; empty where there are none."""
    if not disturbing:
        return ""
    return (
        f"the gate's processes run without {', '.join(disturbing)}, which would disturb benchmarks"
    )


class Gate:
    """One run of the gate, as a plugin of the parent's pytest."""

    def __init__(
        self, config: pytest.Config, settings: Settings, disturbing: Sequence[str]
    ) -> None:
        self.config, self.settings, self.disturbing = config, settings, disturbing
        self.reports = Reports(config)
        self.selection = Selection(config, ())
        self.found: Comparison | None = None
        # Why this run did not end.
        self.broken = ""
        self.result: Result | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            self.broken = f"{session.testsfailed} errors during collection"
            raise session.Interrupted(self.broken)
        # A run that is killed cannot write more.
        publish(Result("", status=INTERRUPTED, reason="it was killed"), self.config, self.settings)
        self.selection = Selection(self.config, tuple(session.items))
        with Processes(self.config, self.settings.budget_s) as processes:
            self.found = self.compared(processes)
        self.emit(self.benchmarks_of(session))
        if self.broken:
            raise pytest.Session.Failed(self.broken.splitlines()[0])
        return True

    def compared(self, processes: Processes) -> Comparison:
        """The result of the comparison.

        A broken run says why it broke, and a stopped one what was decided by then.
        """
        try:
            found = self.measured(processes)
        except Stopped as stopped:
            self.found = stopped.comparison
            raise
        except ReplicateFailed as failed:
            self.broken = str(failed)
            found = Comparison("not finished", notes=(self.broken,))
        except pytest.UsageError as refused:
            self.broken = str(refused)
            raise
        return found.noting(without(self.disturbing))

    def measured(self, processes: Processes) -> Comparison:
        """Measures and compares as the options say."""
        settings, selection, root = self.settings, self.selection, self.config.rootpath
        here = Side(HERE, sys.executable, root)
        # A CI log that is silent for minutes looks hung.
        progress, began = Progress(self.config, "gate", under_q=True), time.monotonic()

        def say(text: str) -> None:
            progress.always(f"[{clock(time.monotonic() - began)}] {text}")

        question = Question(
            here=here,
            other=here,
            asked="",
            selection=selection,
            settings=settings,
            processes=processes,
            say=say,
            heard=self.heard,
            began=began,
        )
        refuse_without_benchmarks(selection)
        if settings.noise_floor:
            return self.noise_floor(compare(question))
        beside = replace(here, paths=sides.import_paths(root, root))
        if settings.bisect:
            good = checked_good(settings.bisect, root)
            other = sides.checkout(good, root, processes)
            asked = f"--gate-bisect {settings.bisect}"
            return bisect(self.question_beside(question, beside, other, asked), good.commit)
        if settings.versus:
            other = sides.other_side(settings.versus, self.config, processes)
            asked = f"--gate-versus {settings.versus}"
        else:
            name = str(settings.baseline)
            commit = baseline.revision_of(name, settings.folder, root)
            other = sides.checkout(commit, root, processes)
            asked = f"--gate-baseline {name}"
        return compare(self.question_beside(question, beside, other, asked))

    def question_beside(self, question: Question, here: Side, other: Side, asked: str) -> Question:
        """The question beside another side, which the option `asked` names."""
        targets = sides.targets(self.config, other)
        return replace(question, here=here, other=other, asked=asked, targets=tuple(targets))

    def noise_floor(self, found: Comparison) -> Comparison:
        """The noise of each benchmark, and what a run finds at that noise."""
        timed = [row for row in found.rows if row.is_time and row.effect]
        # A slowdown that a run finds with the plan in force, however many pairs this estimate took.
        plan = plan_for(len(timed))
        alarm = f"at most {plan.alarm_rate:.0%} of whole gate runs alarm without a change"
        table = noise_table(timed, plan, self.settings.min_effect, self.selection.smallest)
        return replace(found, table=tuple(table), notes=(*found.notes, alarm))

    def heard(self, done: Replicate) -> None:
        """Keeps the reports of a process of this side."""
        self.reports.add(done)

    def benchmarks_of(self, session: pytest.Session) -> Sequence[pytest.Item]:
        """The tests that are reported; the others are deselected."""
        benchmarks, names = set(self.selection.benchmarks), self.selection.names
        kept, others = list[pytest.Item](), list[pytest.Item]()
        for item in session.items:
            (kept if names[item.nodeid] in benchmarks else others).append(item)
        self.config.hook.pytest_deselected(items=others)
        session.items[:] = kept
        return kept

    def emit(self, items: Sequence[pytest.Item]) -> None:
        found = self.found or Comparison("")
        failing = self.judge.failing(found.rows)
        names = self.selection.names
        self.reports.emit(items, names, failing, self.broken, found.left_out)

    @property
    def judge(self) -> Judge:
        return Judge(self.settings)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        status, reason = FINISHED, ""
        if self.broken or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            status, reason = BROKEN, self.broken or "an internal error"
        elif exitstatus == pytest.ExitCode.INTERRUPTED:
            status, reason = INTERRUPTED, str(session.shouldstop or "stopped by the user")
        found = self.found or Comparison("")
        failed = self.reports.failed | self.reports.not_run
        self.result = self.judge.result(found, sorted(failed), status, reason)
        publish(self.result, self.config, self.settings)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        result = self.result
        if not (result and result.title):
            return
        terminalreporter.section(f"gate: {result.title}")
        is_verbose = terminalreporter.verbosity > 0
        write_lines(terminalreporter, box(result, is_verbose=is_verbose))
        terminalreporter.write_sep("=")
        write_lines(terminalreporter, below_the_box(result, is_verbose=is_verbose))
        places = github.places_of(self.selection.items, self.selection.names)
        root = self.config.rootpath
        for line in github.commands(result.failing, result.warning, places, root):
            terminalreporter.write_line(line)
