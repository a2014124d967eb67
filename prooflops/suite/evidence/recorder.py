"""The pytest plugin that collects evidence: it records each test's start and end, and limits its time."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite.collection import claims_of
from prooflops.suite.evidence.file import RED, TASK, EvidenceFile
from prooflops.suite.run import RUN, outcome_of
from prooflops_gate.run_state import CONTENTION

WORST_FIRST = ("error", "failed", "skipped", "unmet", "passed")
LONGEST_LOG = 60_000  # characters, of its beginning and as many of its end
GRACE_S = 10.0  # for the end of pytest, after the slice
MACHINE = ("device", "name", "driver", "torch")  # of the fingerprint: what one file may not mix


class Recorder:
    """Runs the remaining tests until the slice is over, and records each start and end."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.file, self.task = EvidenceFile(Path(task["file"])), task
        self._stacks = open(task["stacks"], "a", encoding="utf-8")  # noqa: SIM115 - the process's life long
        faulthandler.enable(self._stacks)
        self._end_in(self.task["ends_at"] - time.time())
        self._reports: list[pytest.TestReport] = []

    def _end_in(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True, file=self._stacks)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        plan = self.file.plan
        if not plan:
            self.file.append("plan", **(plan := plan_of(config, items, self.task["arguments"])))
        here, there = ({key: each["fingerprint"].get(key) for key in MACHINE}
                       for each in ({"fingerprint": config.stash[RUN].fingerprint}, plan))  # fmt: skip
        if here != there:
            raise pytest.UsageError(
                f"{self.file.path} is of {there}, and this machine is {here}: give another --out"
            )
        found = {item.nodeid: item for item in items}
        for test in [test for test in self.file.remaining() if test not in found]:
            self.file.end_without_report(test, "error", "it is no longer collected")
        items[:] = [found[test] for test in self._in_order(str(here["device"]))]

    def _in_order(self, device: str) -> list[str]:
        """The remaining tests: those that ran on no device, on no such device, the rest, and those once cut off."""
        ran: list[tuple[str, str]] = []
        for file in map(EvidenceFile, Path(__file__).parents[3].glob("results/*.jsonl")):
            kind = str(file.plan.get("fingerprint", {}).get("device"))
            ran += [
                (test, kind)
                for test, row in file.ended().items()
                if row["status"] in ("passed", *RED)
            ]
        here, anywhere = {test for test, kind in ran if kind == device}, {test for test, _ in ran}
        started = self.file.unended()
        return sorted(
            self.file.remaining(),
            key=lambda test: (test in started, test in here, test in anywhere),
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in self.file.ended():
            log = shortened(report.longreprtext)
            self.file.end_without_report(report.nodeid, "error", "it could not be collected", log)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        limit_s = max(min(self.task["limit_s"], self.task["ends_at"] - time.time()), 0.1)
        self._reports = []
        self.file.append("start", test=item.nodeid, limit_s=round(limit_s, 3))
        self._end_in(limit_s)
        result = yield
        self._end_in(self.task["ends_at"] - time.time() + GRACE_S)
        self.file.append("end", test=item.nodeid, **self._known_of(item))
        if time.time() > self.task["ends_at"]:
            item.session.shouldstop = "the slice is over"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def _known_of(self, item: pytest.Item) -> dict[str, Any]:
        outcomes = [outcome for report in self._reports if (outcome := outcome_of(report))]
        worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status), default=None)
        logs = [f"{report.longreprtext}\n" + "\n".join(f"---- {title}\n{text}" for title, text in report.sections)
                for report in self._reports if report.failed]  # fmt: skip
        known = {
            "status": worst.status if worst else "skipped",
            "reason": shortened(worst.reason if worst else "no test of its kind"),
            "seconds": round(sum(report.duration for report in self._reports), 3),
            "outcomes": [asdict(outcome) for outcome in outcomes],
            "log": shortened("\n".join(logs)),
            "benchmarks": benchmarks_of(item),
        }
        return {
            key: value for key, value in known.items() if value or key not in ("log", "benchmarks")
        }


def plan_of(
    config: pytest.Config, items: list[pytest.Item], arguments: list[str]
) -> dict[str, Any]:
    """The machine, the arguments, and each test with its claims."""
    run = config.stash[RUN]
    return {
        "arguments": arguments,
        **{key: getattr(run, key) for key in ("pace", "fingerprint", "caches")},
        "headline": run.headline,
        "peaks": run.peaks.as_dict(),
        "tests": {item.nodeid: claims_of(item) for item in items},
    }


def benchmarks_of(item: pytest.Item) -> list[dict[str, Any]]:
    """A test's benchmarks in pytest-benchmark's JSON form, without single rounds."""
    session = getattr(item.config, "_benchmarksession", None)  # pytest-benchmark has no hook for it
    own = [
        bench
        for bench in (session.benchmarks if session else ())
        if bench.fullname == item.nodeid and bench
    ]
    found = [bench.as_dict(include_data=False) for bench in own if not bench.has_error]
    for bench in found:
        if contention := item.config.stash.get(CONTENTION, {}).get(item.nodeid):
            bench["extra_info"]["contention"] = contention
    return found


def shortened(text: str) -> str:
    """A log without this machine's folder names; the middle of a very long log is omitted."""
    for folder, name in ((os.getcwd(), "."), (sys.prefix, "<python>"), (str(Path.home()), "~")):  # noqa: PTH109
        text = text.replace(folder, name) if len(folder) > 1 else text
    left_out = len(text) - 2 * LONGEST_LOG
    return (
        text
        if left_out <= 0
        else f"{text[:LONGEST_LOG]}\n... {left_out:,} characters ...\n{text[-LONGEST_LOG:]}"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(json.loads(os.environ[TASK])), "prooflops.evidence")
