"""Leaves a plain run of pytest that has lost its device to the runner, as the file of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prooflops.suite.evidence.file import EvidenceFile, new_file
from prooflops.suite.runner.worker import end_of, introduction
from prooflops.suite.verdicts import LOST


@dataclass(eq=False)
class HandOver:
    """The plugin that keeps a run's reports, and says how to go on where its device was lost."""

    reports: dict[str, list[pytest.TestReport]] = field(default_factory=lambda: defaultdict(list))
    message: str = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports[report.nodeid].append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not str(session.shouldfail or "").startswith(LOST):
            return
        path = leave_file(session, self.reports)
        left = len(session.items) - len(self.reports)
        command = f"python -m prooflops.suite.runner --resume {path}"
        self.message = f"{left} tests did not run, as the device was lost; to go on: {command}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.message:
            terminalreporter.write_line(self.message, red=True)


def leave_file(session: pytest.Session, reports: dict[str, list[pytest.TestReport]]) -> Path:
    """Writes the run as far as it came, and returns the file."""
    config = session.config
    file = EvidenceFile(new_file(config.rootpath / ".prooflops" / "runs"))
    file.path.parent.mkdir(parents=True, exist_ok=True)
    task = {"arguments": list(config.invocation_params.args), "leads": False}
    file.append("slice", slice=1, commit="")
    file.append("plan", **introduction(config, session.items, task)["plan"])
    for item in session.items:
        if item.nodeid in reports:
            file.append("end", test=item.nodeid, **end_of(item, reports[item.nodeid]))
    return file.path
