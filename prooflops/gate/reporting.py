"""Passes the reports of fresh processes on, each test once, as if this process had run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from prooflops.gate import summary
from prooflops.gate.processes import Replicate
from prooflops.history.rows import Row

Location = tuple[str, int | None, str]


class Reports:
    """The reports of each test, of all processes of this side."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_test: dict[str, list[pytest.TestReport]] = {}

    def __iter__(self) -> Iterator[pytest.TestReport]:
        return (report for reports in self.by_test.values() for report in reports)

    def add(self, done: Replicate) -> None:
        """Keeps each test's newest reports; a failure in any process stays."""
        grouped: dict[str, list[pytest.TestReport]] = {}
        for data in done.reports:
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # of a skip: pytest's reports insist on a tuple, JSON has none
            grouped.setdefault(report.nodeid, []).append(report)
        failed = self.failed()
        self.by_test |= {name: reports for name, reports in grouped.items() if name not in failed}

    def failed(self) -> set[str]:
        """The tests that failed in any process."""
        return {report.nodeid for report in self if report.failed}

    def emit(self, items: Sequence[pytest.Item], rows: Sequence[Row], failing: Sequence[Row], broken: str) -> None:
        """One set of reports per test, with its rows as properties; each of the `failing` rows is its test's failure.

        `broken`: why a process ended without a record. It is then the failure of each test that has no report.
        """
        missing = broken or "this test was collected here, but a fresh process of this side did not run it"
        properties: dict[str, list[tuple[str, object]]] = {}
        for row in rows:
            properties.setdefault(row.name, []).extend(summary.properties(row))
        why: dict[str, str] = {}
        for row in failing:
            why[row.name] = "\n".join(filter(None, [why.get(row.name), summary.sentence(row)]))
        for item in items:
            reports = self.by_test.get(item.nodeid) or failure(item.nodeid, item.location, missing)[1:2]
            for report in reports:
                report.user_properties = [*report.user_properties, *properties.get(item.nodeid, [])]
                if item.nodeid in why and (report.skipped or (report.when == "call" and report.passed)):
                    report.outcome, report.longrepr = "failed", why[item.nodeid]
            self._log(item.nodeid, item.location, reports)
        collected = {item.nodeid for item in items}
        for name in (name for name in why if name not in collected):
            location = (name.partition("::")[0], None, name.partition("::")[2] or name)
            self._log(name, location, failure(name, location, why[name], properties[name]))

    def _log(self, name: str, location: Location, reports: Sequence[pytest.TestReport]) -> None:
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=name, location=location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=name, location=location)


def failure(
    name: str, location: Location, why: str, properties: Sequence[tuple[str, object]] = ()
) -> list[pytest.TestReport]:
    """The reports of a test that failed for this reason: set-up, call and teardown."""
    phases: dict[Any, Any] = {"setup": ("passed", None), "call": ("failed", why), "teardown": ("passed", None)}
    return [
        pytest.TestReport(name, location, {}, outcome, longrepr, when, user_properties=properties)
        for when, (outcome, longrepr) in phases.items()
    ]
