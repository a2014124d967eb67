"""Pairs of processes of two sides of a small foreign repository."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

from meta_tests.prooflops.gate.foreign_repo import INI, MORE, run, worktrees


def test_a_slowdown_a_rename_an_exact_change_and_a_failure_each_stop_the_gate_and_what_is_unchanged_does_not(
    foreign: Path, tmp_path: Path
) -> None:
    (foreign / "test_more.py").write_text(MORE.format(name="new_name", steps=1200))
    (foreign / "pytest.ini").write_text(
        INI.replace("addopts =", "addopts = --benchmark-disable")
    )  # as in many projects
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
    (foreign / "pytest.ini").write_text(INI + "gate_allow_inconclusive = true\n")
    done = run(foreign, *options)
    assert done.code == 0, done.output
    assert "1: the budget ended it" in done.output, done.output
