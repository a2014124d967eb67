"""Processes of this side against stored ones."""

import json
import shutil
from pathlib import Path

import pytest

from meta_tests.prooflops.gate.foreign_repo import run, worktrees


def test_a_baseline_of_fresh_processes_is_stored_and_gated_against(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # of whoever runs this test
    done = run(foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "3")
    assert done.code == 0
    assert "baseline main: 3 records" in done.output
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main", OMP_NUM_THREADS="7")
    assert done.code == 4
    assert "environment.OMP_NUM_THREADS: None -> 7" in done.output
    more = (foreign / "work.py").read_text().replace("STEPS = 300", "STEPS = 1500")
    (foreign / "work.py").write_text(more.replace("total = 0", "total, held = 0, bytes(90_000)"))
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main", "-v")
    assert done.code == 1
    suspected = "history calls 0 of 1 benchmarks SAME and suspects 1; side by side with its commit"
    assert suspected in done.output, done.output
    assert "those are 1 SLOWER" in done.output, done.output
    assert "SLOWER: test_foreign.py::test_busy_loop" in done.output
    assert "flops is 3000, but was 600" in done.output
    assert worktrees(foreign) == 1, "the worktree of the baseline's commit is still there"
    (file,) = (foreign / ".prooflops" / "history").glob("*/gate/*.json")
    (said,) = json.loads(file.read_text())["verdicts"]
    assert (said["name"], said["verdict"]) == ("test_foreign.py::test_busy_loop", "SLOWER")
    assert said["ratio"] > 2, said
    shutil.rmtree(foreign / ".git")
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert done.code == 1
    assert "history alone decides, without pairs beside the baseline's commit: not under git" in done.output
    assert "SLOWER: test_foreign.py::test_busy_loop" in done.output
    assert "flops is 3000, but was 600" in done.output
    assert "MORE MEMORY: test_foreign.py::test_busy_loop: memory of a call is 88.1 KiB" in done.output
    assert "drift between sessions is unknown for 1 benchmarks" in done.output
