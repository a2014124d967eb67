"""The gate on a small foreign repository, in real processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from meta_tests.conftest import House
from meta_tests.prooflops.gate.foreign_repo import MORE, run, worktrees
from prooflops.gate.run import SILENT_S, Gate, changed_claims


def test_a_slowdown_a_rename_an_exact_change_and_a_failure_each_stop_the_gate_and_what_is_unchanged_does_not(
    foreign: Path, tmp_path: Path
) -> None:
    (foreign / "test_more.py").write_text(MORE.format(name="new_name", steps=1200))
    (foreign / "work.py").write_text((foreign / "work.py").read_text().replace("STEPS = 300", "STEPS = 301"))
    junit, page = tmp_path / "junit.xml", tmp_path / "page.md"
    before = subprocess.run(["git", "status", "--porcelain"], cwd=foreign, capture_output=True, text=True).stdout

    done = run(
        foreign, "--gate", "--gate-versus", "HEAD", "--gate-min-effect", "40%", "--device", "abacus",
        f"--junitxml={junit}", GITHUB_STEP_SUMMARY=str(page),
    )  # fmt: skip

    assert done.code == 1
    cases = {case.get("name"): case for case in ET.parse(junit).getroot().iter("testcase")}
    verdicts = {
        (name, row.get("name")): row.get("value") for name, case in cases.items() for row in case.iter("property")
    }
    assert verdicts["test_slow", "gate.time"] == "SLOWER", done.output
    assert verdicts["test_busy_loop", "gate.flops"] == "CHANGED", done.output
    assert verdicts["test_busy_loop", "gate.time"] in ("SAME", "INCONCLUSIVE"), done.output
    assert verdicts["test_old_name", "gate.time"] == "MISSING", done.output
    assert verdicts["test_new_name", "gate.time"] == "NEW", done.output
    assert verdicts["test_that_is_skipped_now", "gate.time"] == "INCONCLUSIVE", done.output
    assert "skipped this time: one call takes too long" in done.output
    assert "test_searched_anew" in cases
    assert not [key for name, key in verdicts if name == "test_searched_anew" and key.startswith("gate.")], done.output
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {"test_slow", "test_busy_loop", "test_old_name", "test_that_fails"}, done.output
    assert "the test's own failure" in done.output
    assert "| test_more.py::test_slow | time |" in page.read_text(), page.read_text()
    assert worktrees(foreign) == 1, "the worktree of the other revision is still there"
    after = subprocess.run(["git", "status", "--porcelain"], cwd=foreign, capture_output=True, text=True).stdout
    assert after == before, f"the user's working tree was touched: {after!r}, before {before!r}"


def test_a_baseline_of_fresh_processes_is_stored_and_gated_against(foreign: Path) -> None:
    done = run(foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "3")
    assert done.code == 0
    assert "baseline main: 3 records" in done.output
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main", OMP_NUM_THREADS="7")
    assert done.code == 4
    assert "environment.OMP_NUM_THREADS: None -> 7" in done.output
    (foreign / "work.py").write_text((foreign / "work.py").read_text().replace("STEPS = 300", "STEPS = 1500"))
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert done.code == 1
    assert "SLOWER: test_foreign.py::test_busy_loop" in done.output
    assert "flops is 3000, but was 600" in done.output
    assert "drift between sessions is unknown for 1 benchmarks" in done.output


@pytest.mark.parametrize(
    ("option", "why"),
    [("--gate-versus=no-such", "no folder, no interpreter"), ("--gate-baseline=no-such", "no baseline of that name")],
)
def test_what_is_not_there_to_compare_with_is_refused_before_anything_runs(
    foreign: Path, option: str, why: str
) -> None:
    (foreign / "test_foreign.py").write_text("def test_it(benchmark):\n    open('it-ran', 'w')\n")
    done = run(foreign, "test_foreign.py", "--gate", option)
    assert done.code == 4
    assert why in done.output
    assert not (foreign / "it-ran").exists(), done.output


def test_a_history_that_cannot_be_written_is_reported_and_so_are_the_processes(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(
        foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "2",
        PROOFLOPS_HISTORY=str(tmp_path / "file"),
    )  # fmt: skip
    assert done.code == 1
    assert "could not be written" in done.output
    assert " passed" in done.output


def test_a_benchmark_that_is_skipped_is_named_and_does_not_stop_the_gate(foreign: Path, tmp_path: Path) -> None:
    tests = foreign / "test_foreign.py"
    tests.write_text("import pytest\npytestmark = pytest.mark.skip('later')\n" + tests.read_text())
    done = run(foreign, "test_foreign.py", "--gate", "--gate-versus", "HEAD", f"--junitxml={tmp_path / 'x'}")
    assert done.code == 0, done.output
    assert "skipped this time: later" in done.output
    assert "1 INCONCLUSIVE" in done.output


def test_a_budget_too_small_to_decide_is_said_at_the_start_and_stops_the_gate_unless_that_is_allowed(
    foreign: Path,
) -> None:
    (foreign / "work.py").write_text("import time\nSTEPS = 300\ndef busy(steps=0):\n    time.sleep(0.05)\n")
    options = ("test_foreign.py::test_busy_loop", "--gate", "--gate-versus", "HEAD", "--gate-budget", "0.12")
    done = run(foreign, *options, "-v")
    assert done.code == 1, done.output
    first, _, _ = done.output.partition("FAILURES")
    assert "decide nothing: give --gate-budget 1" in first, done.output
    assert "the budget ended it (--gate-budget)" in done.output, done.output
    (foreign / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\ngate_allow_inconclusive = true\n")
    done = run(foreign, *options)
    assert done.code == 0, done.output
    assert "1: the budget ended it" in done.output, done.output


def test_a_fresh_process_that_hangs_is_ended_and_reported(foreign: Path) -> None:
    (foreign / "work.py").write_text("import time\nSTEPS = 1\ndef busy(steps=0):\n    time.sleep(60)\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", "--gate-budget", "0.03")
    assert done.code == 1
    assert "was ended after 2 s (--gate-budget)" in done.output


def test_a_crash_of_a_fresh_process_is_that_of_the_test(foreign: Path) -> None:
    (foreign / "work.py").write_text("import os\nSTEPS = 1\ndef busy(steps=0):\n    os.abort()\n")
    done = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor")
    assert done.code == 1
    assert "SIGABRT" in done.output


# What opens a device, were the parent of a gate run to call it.
PARENT = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from accounting import measured
    from prooflops.machine import device
    def opened(*_):
        raise AssertionError("the parent opened the device")
    device.headline = device.fingerprint = device.unmet = measured.clock = opened
"""


def test_the_parent_asks_the_device_nothing_and_leaves_report_and_records_alone(house: House) -> None:
    with open(house.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(PARENT)
    house.claim("demo.one")
    house.test("@pytest.mark.claim('demo.one')\n@pytest.mark.needs('c++')\ndef test_one():\n    assert True\n")
    house.test("def test_time(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=3)\n", "bench/test_b.py")
    done = house.run("--gate-replicates", "2", "--quick")
    assert done.code == 0, done.output
    assert not (house.root / "reports").exists(), done.output
    records = [json.loads(file.read_text()) for file in house.root.glob(".prooflops/history/*/*.json")]
    counts = [(len(record["benchmarks"]), len(record["prooflops"]["verdicts"])) for record in records]
    assert counts == [(1, 1), (1, 1)], f"{counts}, but should be those of the two fresh processes: {done.output}"


def test_the_other_sides_claims_are_compared_where_both_were_checked() -> None:
    before = {"a": "holds", "b": "holds", "c": "not checked", "d": "holds"}
    rows = changed_claims(before, {"a": "holds", "b": "FAILS", "c": "holds", "d": "not checked"})
    assert [(row.name, row.verdict, row.before, row.after) for row in rows] == [("b", "CHANGED", "holds", "FAILS")]


def test_progress_is_said_at_the_start_and_then_rarely() -> None:
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None), get_verbosity=lambda: -1, stash={}
    )
    gate, said = Gate(config, SimpleNamespace(budget_s=600.0)), []  # type: ignore[arg-type]
    gate.progress = lambda text, ahead_s: said.append(text)  # type: ignore[assignment]
    gate.say("pair 1", 0, 8)
    gate.say("pair 2", 1, 8)
    gate.said_at -= SILENT_S
    gate.say("pair 9", 8, 8)
    assert [text.partition(",")[0] for text in said] == ["pair 1", "pair 9"]
    assert "at most -" not in said[1], "less than nothing is left"
