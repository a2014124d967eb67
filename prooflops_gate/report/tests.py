"""Reports each test of a gate run once.

Its own outcome, and the gate's verdict on its benchmark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from prooflops_gate.report.sentences import reason
from prooflops_gate.rows import Row
from prooflops_gate.task import Replicate

Location = tuple[str, int | None, str]
NOT_RUN = "this test was collected here, but a fresh process of this side did not run it"

UNPAIRED = "not compared: its id differs from process to process"


class Reports:
    """The reports of each test, by its stable name, of all processes of this side."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_test: dict[str, list[pytest.TestReport]] = {}
        # The tests that failed in any process, or in none, as none ran them.
        self.failed = set[str]()
        self.not_run = set[str]()

    def __iter__(self) -> Iterator[pytest.TestReport]:
        return (report for reports in self.by_test.values() for report in reports)

    def add(self, done: Replicate) -> None:
        """Keeps each test's newest reports; a failure in any process stays."""
        grouped: dict[str, list[pytest.TestReport]] = {}
        for data in done.reports:
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):
                # The report of a skip needs a tuple, which JSON has not.
                report.longrepr = tuple(report.longrepr)
            grouped.setdefault(report.nodeid, []).append(report)
        newer = grouped.keys() - self.failed
        self.by_test |= {name: grouped[name] for name in grouped if name in newer}
        self.failed = {report.nodeid for report in self if report.failed}

    def emit(
        self,
        items: Sequence[pytest.Item],
        names: Mapping[str, str],
        failing: Sequence[Row],
        broken: str,
        left_out: Collection[str] = (),
    ) -> None:
        """Reports each test once.

        `failing` rows fail their tests. `broken` (no record, why) fails all without a report.

        Those in `left_out` are skipped, as nothing pairs them.
        """
        why: dict[str, str] = {}
        for row in failing:
            test = row.test or row.name
            why[test] = "\n".join(filter(None, [why.get(test), reason(row, test=test)]))
        for item in items:
            name = names[item.nodeid]
            reports = self.by_test.get(name)
            if name in left_out:
                reports = [skip(item.nodeid, item.location, UNPAIRED)]
            elif not reports:
                reports = failure(item.nodeid, item.location, broken or NOT_RUN)[1:2]
                self.not_run.add(name)
            for report in reports:
                report.nodeid = item.nodeid
                has_call = report.when == "call" and report.passed
                if name in why and (report.skipped or has_call):
                    report.outcome, report.longrepr = "failed", why[name]
            self._log(item.nodeid, item.location, reports)
        collected = {names[item.nodeid] for item in items}
        for name in why.keys() - collected:
            location = (name.partition("::")[0], None, name.partition("::")[2] or name)
            self._log(name, location, failure(name, location, why[name]))

    def _log(self, name: str, location: Location, reports: Sequence[pytest.TestReport]) -> None:
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=name, location=location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=name, location=location)


def skip(name: str, location: Location, why: str) -> pytest.TestReport:
    """The report of a test that was skipped for this reason."""
    reason = (location[0], location[1] or 0, f"Skipped: {why}")
    return pytest.TestReport(name, location, {}, "skipped", reason, "setup")


def failure(name: str, location: Location, why: str) -> list[pytest.TestReport]:
    """The reports of a test that failed for this reason: set-up, call and teardown."""
    phases: dict[Any, Any] = {
        "setup": ("passed", None),
        "call": ("failed", why),
        "teardown": ("passed", None),
    }
    return [
        pytest.TestReport(name, location, {}, outcome, longrepr, when)
        for when, (outcome, longrepr) in phases.items()
    ]
