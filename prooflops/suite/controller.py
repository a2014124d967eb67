"""The plugin of xdist's controller: gives its workers their task, and records lost tests.

The runner loads it in place of `prooflops.suite.hooks`, as the controller runs no test: it imports
no torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite.commands import PYTEST, called, command_of
from prooflops.suite.evidence.file import EvidenceFile, Rows, new_file
from prooflops.suite.options import add_options
from prooflops.suite.registry import load_registry
from prooflops.suite.verdicts import LOST
from prooflops_gate.run_state import PARTIAL

# The variable of a process of `prooflops.suite.evidence`, and the key of xdist's worker input.
TASK = "PROOFLOPS_EVIDENCE"
ROWS = pytest.StashKey[EvidenceFile]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    task = task_of(config)
    rows = config.stash[ROWS] = EvidenceFile(Path(task["path"]))
    config.pluginmanager.register(Controller(rows, task), "prooflops.controller")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    rows = config.stash[ROWS]
    if rows.is_over:
        # Not before: it imports what draws the pages.
        from prooflops.suite.evidence.conclusion import conclude

        registry = load_registry(config.rootpath / "test_claims" / "registry")
        conclude(session, rows, registry)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from prooflops.suite.page import terminal

    terminal.print_end(terminalreporter, ())


def task_of(config: pytest.Config) -> dict[str, Any]:
    """The task that the runner, or xdist's controller, gave this process; empty without one."""
    if hasattr(config, "workerinput"):
        return dict(config.workerinput[TASK])
    # Removed, as a test may start pytest.
    text = os.environ.pop(TASK, "")
    if not text and config.getoption("numprocesses", None):
        file = new_file(config.rootpath / ".prooflops" / "runs")
        command = command_of(called(PYTEST), config.invocation_params.args)
        file.append("slice", slice=1, commit="", command=command)
        return {"path": str(file.path), "stacks": str(file.path)}
    return dict(json.loads(text or "{}"))


def is_lost(session: pytest.Session) -> bool:
    """True if the device of this process is no longer usable."""
    return str(session.shouldfail or "").startswith(LOST)


def end_slice(session: pytest.Session, rows: Rows, task: Mapping[str, Any]) -> None:
    """Records the end of a call, unless the runner goes on with another process."""
    if not rows.plan or session.exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    stopped = session.config.stash.get(PARTIAL, "")
    has_runner = "limit_s" in task
    has_ended = bool(stopped) or time.time() > task.get("ends_at", float("inf"))
    if has_runner and rows.remaining() and (is_lost(session) or not has_ended):
        return
    rows.end(stopped)


class Controller:
    """Tells xdist's workers their task, and records the tests that they did not survive."""

    def __init__(self, rows: EvidenceFile, task: Mapping[str, Any]) -> None:
        self.rows = rows
        self._task = {**task, "ended": [*rows.ended()]}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[TASK] = self._task_of(node.gateway.id)

    def _task_of(self, worker: str) -> dict[str, Any]:
        return {**self._task, "worker": worker, "stacks": f"{self._task['stacks']}.{worker}"}

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        # xdist names the test that was next, where a process ends between two tests.
        if crashitem in self.rows.unended():
            task = self._task_of(report.node.gateway.id)
            report.longrepr = self.rows.end_lost(crashitem, task) or report.longrepr

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        end_slice(session, self.rows, self._task)
