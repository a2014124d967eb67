"""What a replicate tells the gate. Copied beside each child and loaded there by `-p`, alone.

The other side of a comparison may hold another revision of this suite, or none: so this file imports nothing of it, and
both sides are recorded by the same code. It selects what the gate asked for instead of leaving that to node ids on the
command line, where one that the other side doesn't have would end the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

try:  # copies of the files below, under names of their own
    from prooflops_gate_contention import Watch  # type: ignore[import-not-found]
    from prooflops_gate_plain import plain_figure  # type: ignore[import-not-found]
except ImportError:  # imported as a part of the package
    from prooflops.history.plain import plain_figure
    from prooflops.machine.contention import Watch

TASK = "PROOFLOPS_GATE_TASK"


class Recorder:
    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.reports: list[Any] = []
        self.contention: dict[str, Any] = {}
        self.collected: list[str] = []
        self.errors: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = None if self.task["ids"] is None else set(self.task["ids"])
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            chosen = wanted is None or item.nodeid in wanted
            if self.task["benchmarks_only"] and "benchmark" not in getattr(item, "fixturenames", ()):
                chosen = False
            (kept if chosen else dropped).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept
        self.collected = [item.nodeid for item in kept]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        watch = Watch() if "benchmark" in getattr(item, "fixturenames", ()) else None
        yield
        if watch:
            self.contention[item.nodeid] = watch.stop()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, None]:
        outcome = yield
        report = outcome.get_result()
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        self.reports.append(data)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, Any, None]:
        if "hypothesis" not in sys.modules:
            # Its plugin imports all of it for the terminal's summary: half of a small replicate's time, for nothing.
            session.config.pluginmanager.unregister(name="hypothesispytest")
        yield
        target = self.task["report"]
        with open(target + ".part", "w", encoding="utf-8") as file:
            json.dump(self.facts(session.config, int(exitstatus)), file, default=plain_figure)
        os.replace(target + ".part", target)

    def facts(self, config: pytest.Config, status: int) -> dict[str, Any]:
        return {
            "status": status,
            "rootdir": str(config.rootpath),
            "prefix": sys.prefix,
            "python": sys.executable,
            "collected": self.collected,
            "errors": self.errors,
            "reports": self.reports,
            "modules": modules(),
            "benchmarks": self.benchmarks(config),
        }

    def benchmarks(self, config: pytest.Config) -> list[dict[str, Any]]:
        session = getattr(config, "_benchmarksession", None)
        found = []
        for bench in session.benchmarks if session else ():
            if not bench or bench.has_error:
                continue
            extra = {**bench.extra_info, "contention": self.contention.get(bench.fullname, {})}
            found.append({"fullname": bench.fullname, "stats": {"min": bench.stats.min}, "extra_info": extra})
        return found


def modules() -> dict[str, str]:
    """Name and file of every imported module that isn't in a site-packages folder or the standard library."""
    library = str(Path(os.__file__).resolve().parent)
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and "site-packages" not in file:
            file = os.path.realpath(file)
            if not file.startswith(library):
                found[name] = file
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gate: known to strict markers where the plugin is not installed")
    # Taken out of the environment: what a test starts is not to be told of it.
    with open(os.environ.pop(TASK), encoding="utf-8") as file:
        task = json.load(file)
    task["started"] = time.time()
    config.pluginmanager.register(Recorder(task), "prooflops.recorder")
