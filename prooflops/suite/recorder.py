"""Records a run test by test, and limits the time of each test for the runner."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prooflops.machine.caches import caches_of
from prooflops.suite.collection import claims_of, runs_alone, selection_of
from prooflops.suite.controller import end_slice, is_lost
from prooflops.suite.evidence.file import machine_of, shortened
from prooflops.suite.run import Run, outcome_of
from prooflops_gate.history.run_record import fingerprint
from prooflops_gate.run_state import CONTENTION, MARKERS, is_benchmark

WORST_FIRST = ("error", "failed", "skipped", "unmet", "passed")
# These must be equal in all slices of one run.
MACHINE = ("device", "name", "driver", "torch")


class Recorder:
    """Writes the plan of a run, and the start and the end of each test that this process runs."""

    def __init__(self, config: pytest.Config, run: Run, task: Mapping[str, Any]) -> None:
        self._config = config
        self._run = run
        self._task = task
        self._worker = task.get("worker", "gw0")
        self._reports: list[pytest.TestReport] = []
        self._ends_at = task.get("ends_at", float("inf"))
        self._limit_s = task.get("limit_s")
        plan = run.rows.plan
        left = {*plan.get("tests", ())} - {*task.get("ended", run.rows.ended())}
        self._files_left = {test.partition("::")[0] for test in left} if plan else None
        if self._limit_s:
            # Open for the life of the process: faulthandler writes to it.
            self._stacks = open(task["stacks"], "a", encoding="utf-8")  # noqa: SIM115
            faulthandler.enable(self._stacks)

    # ---- collecting ------------------------------------------------------------------------------

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skips importing test files without a remaining test."""
        if self._files_left is None or not collection_path.is_file():
            return None
        file = collection_path.relative_to(self._config.rootpath).as_posix()
        return None if file in self._files_left else True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        rows = self._run.rows
        if report.failed and self._worker == "gw0" and report.nodeid not in rows.ended():
            log = shortened(report.longreprtext)
            rows.end_without_report(report.nodeid, "error", "it could not be collected", log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Leaves out tests that have ended, and beside other processes the tests that run alone."""
        self._session = session
        if not self._task:
            return
        self._plan(items)
        rows = self._run.rows
        ended = {*self._task.get("ended", rows.ended())}
        left = [item for item in items if item.nodeid not in ended]
        if self._task.get("side_by_side"):
            left = [item for item in left if not runs_alone(item)]
        else:
            once_cut_off = rows.unended()
            left.sort(key=lambda item: item.nodeid in once_cut_off)
            for test in {*rows.remaining()} - {item.nodeid for item in left}:
                rows.end_without_report(test, "error", "it is no longer collected")
        items[:] = left

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not self._task:
            self._plan(session.items)

    def _plan(self, items: Sequence[pytest.Item]) -> None:
        """Writes the plan, or refuses a machine other than the plan's."""
        plan = self._run.rows.plan
        here = fingerprint(self._config)
        if plan and any(plan["fingerprint"].get(key) != here.get(key) for key in MACHINE):
            raise pytest.UsageError(
                f"{self._task['path']} is a run of {machine_of(plan)}, and this machine is "
                f"{machine_of({'fingerprint': here})}: name another --out"
            )
        if plan or self._worker != "gw0":
            return
        run = self._run
        tests = {item.nodeid: claims_of(item) for item in items}
        self._run.rows.append(
            "plan",
            arguments=self._task.get("arguments", [*self._config.invocation_params.args]),
            pace=run.pace,
            fingerprint=here,
            floors=sorted(run.stated_floors) if any(map(is_benchmark, items)) else [],
            undecided_fails=self._config.getini("floor_undecided") == "fail",
            caches={**caches_of(run.device).levels} if any(map(is_benchmark, items)) else {},
            peaks=run.peaks.as_dict(),
            selection=selection_of(self._config),
            selected=None if run.selected is None else sorted(run.selected),
            in_part=run.in_part(tests),
            alone=[item.nodeid for item in items if runs_alone(item)],
            tests=tests,
        )

    # ---- running ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Runs no test after the end of the slice."""
        return True if time.time() > self._ends_at else None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports = []
        self._run.rows.append("start", test=nodeid)
        if self._limit_s:
            # pytest-timeout needs the GIL, which a hung kernel may keep.
            seconds = min(self._limit_s, max(0.1, self._ends_at - time.time()))
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._stacks)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._run.rows.append("end", test=nodeid, **end_of(self._config, nodeid, self._reports))
        if hasattr(self._config, "workerinput") and is_lost(self._session):
            # xdist starts another worker, and records no other test as lost.
            os._exit(1)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(self._config, "workerinput"):
            end_slice(session, self._run.rows, self._task)


def end_of(
    config: pytest.Config, test: str, reports: Sequence[pytest.TestReport]
) -> dict[str, Any]:
    """The row of a test that has ended."""
    outcomes = [outcome for report in reports if (outcome := outcome_of(report))]
    # A known failure, listed in --known-failures, makes no run red.
    statuses = ["skipped" if outcome.known else outcome.status for outcome in outcomes]
    status = min(statuses, key=WORST_FIRST.index, default="skipped")
    reasons = [each.reason for each, of in zip(outcomes, statuses, strict=True) if of == status]
    row: dict[str, Any] = {
        "status": status,
        "reason": shortened(reasons[0] if reasons else "no outcome was reported"),
        "seconds": round(sum(report.duration for report in reports), 3),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    if log := "\n".join(map(log_of, reports)).strip():
        row["log"] = shortened(log)
    if benchmarks := benchmarks_of(config, test):
        row["benchmarks"] = benchmarks
    return row


def log_of(report: pytest.TestReport) -> str:
    """The traceback and the captured output of a failure; empty for another report."""
    if not report.failed:
        return ""
    sections = [f"---- {title}\n{text}" for title, text in report.sections]
    return "\n".join([report.longreprtext, *sections])


def benchmarks_of(config: pytest.Config, test: str) -> list[dict[str, Any]]:
    """A test's benchmarks in pytest-benchmark's JSON form, without single rounds."""
    # pytest-benchmark has no hook for it.
    session = getattr(config, "_benchmarksession", None)
    own = [bench for bench in session.benchmarks if bench] if session else []
    own = [bench for bench in own if bench.fullname == test and not bench.has_error]
    found = [bench.as_dict(include_data=False) for bench in own]
    for bench in found:
        for key, where in (("contention", CONTENTION), ("gate", MARKERS)):
            if known := config.stash.get(where, {}).get(test):
                bench["extra_info"][key] = known
    return found
