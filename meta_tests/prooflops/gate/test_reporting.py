"""The reports of fresh processes become those of this one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.gate.without_processes import config
from prooflops.gate.processes import Replicate, Side
from prooflops.gate.reporting import Reports, failure
from prooflops.gate.summary import sentence
from prooflops.history.rows import Row


def replicate(pytestconfig: pytest.Config, outcome: str) -> Replicate:
    report = failure("t.py::test_a", ("t.py", 1, "test_a"), "its own failure")[1]
    report.outcome, report.longrepr = outcome, "its own failure" if outcome == "failed" else None  # type: ignore[assignment]
    if outcome == "skipped":
        report.longrepr = ("t.py", 1, "Skipped: later")
    data = pytestconfig.hook.pytest_report_to_serializable(config=pytestconfig, report=report)
    return Replicate(Side("a", "python", Path()), {}, "", {}, [json.loads(json.dumps(data))], {}, 1.0)


def emitted(reports: Reports, items: list[Any], rows: list[Row]) -> dict[str, pytest.TestReport]:
    found: dict[str, pytest.TestReport] = {}
    begun, ended = list[object](), list[object]()
    hook = SimpleNamespace(
        pytest_runtest_logstart=lambda nodeid, location: begun.append((nodeid, tuple(location))),
        pytest_runtest_logfinish=lambda nodeid, location: ended.append((nodeid, tuple(location))),
        pytest_runtest_logreport=lambda report: found.update({report.nodeid: report} if report.when == "call" else {}),
    )
    reports.config = SimpleNamespace(hook=hook)  # type: ignore[assignment]
    reports.emit(items, rows, [row for row in rows if row.verdict != "SAME"], "")
    assert begun == ended == [(name, tuple(report.location)) for name, report in found.items()]
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
    gone = found["t.py::test_gone"]
    assert gone.location == ("t.py", None, "test_gone")
    assert ("gate.time", "MISSING") in gone.user_properties
    assert gone.duration == 0, "it took part in no run"


def test_a_skip_that_went_through_json_is_one_that_pytest_can_print(pytestconfig: pytest.Config) -> None:
    reports = Reports(config(Path()))  # whose hook asks for the configuration too, as those of other plugins may
    reports.add(replicate(pytestconfig, "skipped"))
    assert emitted(reports, [ITEM], [])["t.py::test_a"].longrepr == ("t.py", 1, "Skipped: later")


def test_only_the_call_of_a_test_fails_for_its_rows() -> None:
    reports = Reports(run := config(Path()))
    reports.by_test["t.py::test_a"] = failure(ITEM.nodeid, ITEM.location, "")
    reports.by_test["t.py::test_a"][1].outcome = "passed"
    rows = [Row("t.py::test_a", quantity, 1, 2, "CHANGED") for quantity in ("flops", "bytes")]
    reports.emit([ITEM], rows, rows, "")
    assert [report.outcome for report in run.logged] == ["passed", "failed", "passed"]
    assert run.logged[1].longrepr == "\n".join(map(sentence, rows))


def test_a_collected_test_without_a_report_fails(pytestconfig: pytest.Config) -> None:
    report = emitted(Reports(pytestconfig), [ITEM], [])["t.py::test_a"]
    assert "did not run it" in str(report.longrepr)
    Reports(run := config(Path())).emit([ITEM], [], [], "a process crashed")
    assert [(each.when, each.longrepr) for each in run.logged] == [("call", "a process crashed")]
