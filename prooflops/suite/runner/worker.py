"""The pytest plugin of one process of a run: runs the tests that it is told, and reports each end.

It reads the ids of tests line by line. The line behind a test's own names the test after it, whose
fixtures may stay, and allows the test to begin: the runner has noted the start by then. An empty
line ends the process.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import pytest

from prooflops.suite.collection import claims_of, runs_alone, selection_of
from prooflops.suite.run import RUN, outcome_of
from prooflops.suite.runner.process import WORKER
from prooflops_gate.history.run_record import fingerprint
from prooflops_gate.options import history_folder, settings
from prooflops_gate.run_state import CONTENTION, MARKERS, is_benchmark, plain_figure

WORST_FIRST = ("error", "failed", "skipped", "unmet", "passed")
# Of the beginning of a log, and as many of its end.
LONGEST_LOG_CHARACTERS = 60_000
# For the end of pytest, after the last test.
GRACE_S = 10.0


class Worker:
    """Runs tests in the order in which they are asked for."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._task = task
        # Open for the life of the process: faulthandler writes to it.
        self._stacks = open(task["stacks"], "a", encoding="utf-8")  # noqa: SIM115
        self._asked: TextIO = os.fdopen(task["asked"], "r", encoding="utf-8")
        self._told: TextIO = os.fdopen(task["told"], "w", encoding="utf-8")
        self._reports: list[pytest.TestReport] = []
        faulthandler.enable(self._stacks)
        self._end_in(task["ends_at"] - time.time())

    def _end_in(self, seconds: float) -> None:
        """Ends the process in so many seconds, with the stacks of all threads."""
        faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True, file=self._stacks)

    def _tell(self, event: str, **row: Any) -> None:
        self._told.write(json.dumps({"event": event, **row}, default=plain_figure) + "\n")
        self._told.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("uncollected", test=report.nodeid, log=shortened(report.longreprtext))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._tell("ready", **introduction(session.config, session.items, self._task))
        test = self._asked.readline().rstrip("\n")
        while test:
            following = self._asked.readline().rstrip("\n")
            if test in items:
                end = self._run(items[test], items.get(following))
            else:
                end = {"status": "error", "reason": "it is no longer collected", "outcomes": []}
            stop = str(session.shouldfail or session.shouldstop or "")
            self._tell("end", test=test, stop=stop, **end)
            if stop:
                break
            test = following
        # pytest collects garbage five times at its end: not among all that has been imported.
        gc.freeze()
        return True

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> dict[str, Any]:
        left_s = self._task["ends_at"] - time.time()
        self._reports = []
        self._end_in(min(self._task["limit_s"], left_s))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._end_in(left_s + GRACE_S)
        return end_of(item, self._reports)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)


def introduction(
    config: pytest.Config, items: list[pytest.Item], task: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of the run, and what the runner needs of pytest's options."""
    run = config.stash[RUN]
    plan = {
        "arguments": task["arguments"],
        "pace": run.pace,
        "fingerprint": fingerprint(config),
        "caches": run.caches,
        "headline": run.headline,
        "peaks": run.peaks.as_dict(),
        "selection": selection_of(config),
        "selected": None if run.selected is None else sorted(run.selected),
        "unchosen": run.unchosen(),
        "tests": {item.nodeid: claims_of(item) for item in items},
    }
    return {
        "plan": plan,
        "alone": [item.nodeid for item in items if runs_alone(item)],
        "report": str(Path(config.option.report).absolute()),
        "history": str(history_folder(config).absolute()),
        "exact": list(settings(config).exact),
        "known": sorted(run.known),
        "verbosity": config.get_verbosity(),
        "head": head_of(config) if task["leads"] and any(map(is_benchmark, items)) else {},
    }


def head_of(config: pytest.Config) -> dict[str, Any]:
    """What pytest-benchmark writes into a record about the machine and the commit."""
    hook = config.hook
    machine = hook.pytest_benchmark_generate_machine_info(config=config)
    hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine)
    commit = hook.pytest_benchmark_generate_commit_info(config=config)
    hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit)
    return {"machine_info": machine, "commit_info": commit}


def end_of(item: pytest.Item, reports: list[pytest.TestReport]) -> dict[str, Any]:
    """What a test's reports say of it."""
    outcomes = [outcome for report in reports if (outcome := outcome_of(report))]
    # A known failure, listed in --known-failures, makes no run red.
    statuses = ["skipped" if outcome.known else outcome.status for outcome in outcomes]
    status = min(statuses, key=WORST_FIRST.index, default="skipped")
    reasons = [each.reason for each, of in zip(outcomes, statuses, strict=True) if of == status]
    logs = []
    for report in reports:
        if report.failed:
            sections = [f"---- {title}\n{text}" for title, text in report.sections]
            logs.append("\n".join([report.longreprtext, *sections]))
    known: dict[str, Any] = {
        "status": status,
        "reason": shortened(reasons[0] if reasons else "no test of its kind"),
        "seconds": round(sum(report.duration for report in reports), 3),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    if logs:
        known["log"] = shortened("\n".join(logs))
    if benchmarks := benchmarks_of(item):
        known["benchmarks"] = benchmarks
    return known


def benchmarks_of(item: pytest.Item) -> list[dict[str, Any]]:
    """A test's benchmarks in pytest-benchmark's JSON form, without single rounds."""
    # pytest-benchmark has no hook for it.
    session = getattr(item.config, "_benchmarksession", None)
    own = [bench for bench in session.benchmarks if bench] if session else []
    own = [bench for bench in own if bench.fullname == item.nodeid and not bench.has_error]
    found = [bench.as_dict(include_data=False) for bench in own]
    for bench in found:
        for key, where in (("contention", CONTENTION), ("gate", MARKERS)):
            if known := item.config.stash.get(where, {}).get(item.nodeid):
                bench["extra_info"][key] = known
    return found


def shortened(text: str) -> str:
    """A log without this machine's folder names; the middle of a very long log is omitted."""
    names = {os.getcwd(): ".", sys.prefix: "<python>", str(Path.home()): "~"}  # noqa: PTH109
    for folder, name in names.items():
        text = text.replace(folder, name) if len(folder) > 1 else text
    left_out = len(text) - 2 * LONGEST_LOG_CHARACTERS
    if left_out <= 0:
        return text
    begin, end = text[:LONGEST_LOG_CHARACTERS], text[-LONGEST_LOG_CHARACTERS:]
    return f"{begin}\n... {left_out:,} characters ...\n{end}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Worker(json.loads(os.environ.pop(WORKER))), "prooflops.worker")
