"""The reports of fresh processes become those of this one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate.processes import Replicate, Side
from prooflops.gate.reporting import Reports, failure
from prooflops.history.rows import Row


def replicate(config: pytest.Config, outcome: str) -> Replicate:
    report = failure("t.py::test_a", ("t.py", 1, "test_a"), "its own failure")[1]
    report.outcome, report.longrepr = outcome, "its own failure" if outcome == "failed" else None  # type: ignore[assignment]
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return Replicate(Side("a", "python", Path()), {}, "", {}, [data])


def emitted(reports: Reports, items: list[Any], rows: list[Row]) -> dict[str, pytest.TestReport]:
    found: dict[str, pytest.TestReport] = {}
    hook = SimpleNamespace(
        pytest_runtest_logstart=lambda **_: None,
        pytest_runtest_logfinish=lambda **_: None,
        pytest_runtest_logreport=lambda report: found.update({report.nodeid: report} if report.when == "call" else {}),
    )
    reports.config = SimpleNamespace(hook=hook)  # type: ignore[assignment]
    reports.emit(items, rows, [row for row in rows if row.verdict != "SAME"], "")
    return found


ITEM = SimpleNamespace(nodeid="t.py::test_a", location=("t.py", 1, "test_a"))


def test_a_failure_in_any_process_stays(pytestconfig: pytest.Config) -> None:
    reports = Reports(pytestconfig)
    for outcome in ("passed", "failed", "passed"):
        reports.add(replicate(pytestconfig, outcome))
    assert emitted(reports, [ITEM], [])["t.py::test_a"].longrepr == "its own failure"


def test_a_row_that_stops_the_gate_is_its_tests_failure(pytestconfig: pytest.Config) -> None:
    reports = Reports(pytestconfig)
    reports.add(replicate(pytestconfig, "passed"))
    rows = [Row("t.py::test_a", "flops", 1, 2, "CHANGED"), Row("t.py::test_gone", "time", 1.0, None, "MISSING")]
    found = emitted(reports, [ITEM], rows)
    assert {name: report.outcome for name, report in found.items()} == dict.fromkeys(
        ("t.py::test_a", "t.py::test_gone"), "failed"
    )
    assert ("gate.flops", "CHANGED") in found["t.py::test_a"].user_properties


def test_a_collected_test_without_a_report_fails(pytestconfig: pytest.Config) -> None:
    report = emitted(Reports(pytestconfig), [ITEM], [])["t.py::test_a"]
    assert "did not run it" in str(report.longrepr)
