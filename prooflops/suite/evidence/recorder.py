"""The pytest plugin that collects evidence: it records each test's start and end, and limits its time."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import pytest

from prooflops.history.records import write_atomically
from prooflops.run_state import CONTENTION
from prooflops.suite.collection import claims_of
from prooflops.suite.evidence.folder import Folder, in_order, ran_before
from prooflops.suite.run import RUN, outcome_of

TASK = "PROOFLOPS_EVIDENCE"
WORST_FIRST = ("error", "failed", "skipped", "unmet", "passed")
LONGEST_LOG = 60_000  # characters, of its beginning and as many of its end
FIGURES = ("min", "median", "iqr", "max", "rounds")


class Recorder:
    """Runs the remaining tests until the slice is over, and records each start and end."""

    def __init__(self, folder: Folder, *, number: int, ends_at: float, limit_s: float, margin_s: float, stacks: TextIO):
        self.folder = folder
        self.number = number
        self.ends_at = ends_at
        self.limit_s = limit_s
        self.margin_s = margin_s
        self.stacks = stacks
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self.folder.plan:
            write_atomically(self.folder.path / "plan.json", json.dumps(plan_of(config, items), indent=1) + "\n")
        device = config.stash[RUN].device.type
        before = ran_before(self.folder.path.parent, self.folder.path)
        started = list(self.folder.unended())
        wanted = dict.fromkeys(in_order(self.folder.remaining(), device, before, started))
        found = {item.nodeid: item for item in items}
        items[:] = [found[test] for test in wanted if test in found]
        for test in wanted.keys() - found.keys():
            self.folder.end_without_a_report(test, "error", "it is no longer collected")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in self.folder.ended():
            log = shortened(report.longreprtext)
            self.folder.end_without_a_report(report.nodeid, "error", "it could not be collected", log)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        limit_s = max(min(self.limit_s, self.ends_at - time.time()), 0.1)
        self._reports = []
        self.folder.append("tests.jsonl", event="start", test=item.nodeid, slice=self.number, limit_s=round(limit_s, 3))
        faulthandler.dump_traceback_later(limit_s, exit=True, file=self.stacks)
        try:
            result = yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.folder.append("tests.jsonl", event="end", test=item.nodeid, slice=self.number, **self._known_of(item))
        if time.time() > self.ends_at - self.margin_s:
            item.session.shouldstop = "the slice is over"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def _known_of(self, item: pytest.Item) -> dict[str, Any]:
        outcomes = [outcome for report in self._reports if (outcome := outcome_of(report))]
        worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status), default=None)
        logs = [f"{report.longreprtext}\n{sections(report)}" for report in self._reports if report.failed]
        return {
            "status": worst.status if worst else "skipped",
            "reason": shortened(worst.reason if worst else "no test of its kind"),
            "seconds": round(sum(report.duration for report in self._reports), 3),
            "outcomes": [asdict(outcome) for outcome in outcomes],
            **({"log": shortened("\n".join(logs))} if logs else {}),
            **({"benchmarks": found} if (found := benchmarks_of(item)) else {}),
        }


def plan_of(config: pytest.Config, items: list[pytest.Item]) -> dict[str, Any]:
    """The content of plan.json: machine, arguments, tests and their claims."""
    from prooflops.machine import device as machine

    run = config.stash[RUN]
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=config.rootpath, capture_output=True, text=True, check=False
    )
    return {
        "arguments": json.loads(os.environ[TASK])["arguments"],
        "commit": head.stdout.strip(),
        "pace": run.pace,
        "fingerprint": run.fingerprint,
        "headline": [*machine.headline(run.device, run.fingerprint), *run.peaks.headline()],
        "peaks": run.peaks.as_dict(),
        "tests": [item.nodeid for item in items],
        "claims": {item.nodeid: claims for item in items if (claims := claims_of(item))},
    }


def benchmarks_of(item: pytest.Item) -> list[dict[str, Any]]:
    """A test's pytest-benchmark figures, without single rounds."""
    session = getattr(item.config, "_benchmarksession", None)  # pytest-benchmark has no hook for it
    contention = item.config.stash.get(CONTENTION, {}).get(item.nodeid)
    found = []
    for bench in session.benchmarks if session else ():
        if bench.fullname == item.nodeid and bench and not bench.has_error:
            stats = {key: getattr(bench.stats, key) for key in FIGURES}
            extra = {**bench.extra_info, **({"contention": contention} if contention else {})}
            found.append({"name": bench.name, "fullname": bench.fullname, "stats": stats, "extra_info": extra})
    return found


def sections(report: pytest.TestReport) -> str:
    return "\n".join(f"---- {title}\n{text}" for title, text in report.sections)


def shortened(text: str) -> str:
    """A log without this machine's folder names; the middle of a very long log is omitted."""
    for folder, name in ((os.getcwd(), "."), (sys.prefix, "<python>"), (str(Path.home()), "~")):  # noqa: PTH109
        text = text.replace(folder, name) if len(folder) > 1 else text
    left_out = len(text) - 2 * LONGEST_LOG
    return text if left_out <= 0 else f"{text[:LONGEST_LOG]}\n... {left_out:,} characters ...\n{text[-LONGEST_LOG:]}"


def pytest_configure(config: pytest.Config) -> None:
    task = json.loads(os.environ[TASK])
    folder = Folder(Path(task["folder"]))
    stacks = open(task["stacks"], "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    faulthandler.enable(stacks)
    times = {key: task[key] for key in ("number", "ends_at", "limit_s", "margin_s")}
    config.pluginmanager.register(Recorder(folder, stacks=stacks, **times), "prooflops.evidence")
