"""Processes of this side against stored ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meta_tests.prooflops.gate.foreign_repo import run, worktrees
from meta_tests.prooflops.gate.without_processes import FINGERPRINT, A, B, C, Processes, Times, measurement
from prooflops.gate import sides
from prooflops.gate.against_history import AgainstHistory
from prooflops.gate.process_plan import FIRST, paces
from prooflops.gate.processes import Side
from prooflops.gate.recording import record
from prooflops.history import records


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


THEN = [1.0 + number / 1000 for number in range(16)]  # seconds in 16 processes
HERE = "history alone decides, without pairs beside the baseline's commit: not under git"
COMMIT = "0123456789abcdef"


def against(
    root: Path, now: Times, *, then: Times | None = None, size: int = 16, **settings: Any
) -> tuple[AgainstHistory, Processes]:
    """A run beside a baseline of so many processes, in which no process starts."""
    times = then or {A: THEN, B: THEN}
    record(measurement(root, Processes(lambda _: times), record="main", replicates=size), list(times))
    (root / "there").mkdir(exist_ok=True)
    (root / "there" / "test_b.py").touch()
    processes = Processes(lambda side: now if side == "this side" else {A: 1.0, B: 1.0})
    found = measurement(root, processes, "test_b.py", baseline="main", **settings)
    return AgainstHistory(found, [A, B]), processes


def verdicts(history: AgainstHistory) -> dict[str, str]:
    return {row.name: row.verdict for row in history.measurement.rows if row.quantity == "time"}


def test_history_decides_alone_where_the_baselines_commit_is_not_at_hand(tmp_path: Path) -> None:
    history, processes = against(tmp_path, {A: 2.0, B: THEN})
    records.store_noise_floors(tmp_path / "history", records.fingerprint_id(FINGERPRINT), {B: {"floor": 0.01}})
    assert len(history.compare()) == 16
    found = history.measurement
    assert found.title == "against the baseline main (16 processes)"
    assert verdicts(history) == {A: "SLOWER", B: "SAME"}
    assert found.lines[0] == HERE
    assert found.lines[1].startswith("drift between sessions is unknown for 1 benchmarks, and 2% is assumed")
    assert found.lines[-1].startswith(f"{len(processes.asked)} replicates in "), "the first one counts"
    assert (processes.asked[0].ids, processes.asked[0].paces) == ([A, B], FIRST)
    assert processes.asked[1].ids == [A, B], "the baseline ran at the first pace, too"
    assert {str(each.paces) for each in processes.asked} == {str(FIRST)}


def test_a_baseline_of_another_pace_is_compared_with_processes_of_that_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = paces(0.1, {})
    with monkeypatch.context() as patch:
        patch.setattr("prooflops.gate.recording.FIRST", slow)
        history, processes = against(tmp_path, {A: 2.0, B: THEN})
    history.compare()
    assert [each.paces for each in processes.asked] == [FIRST] + [slow] * (len(processes.asked) - 1)
    assert [each.ids for each in processes.asked[:2]] == [[A, B]] * 2
    assert history.floors == {}


def test_what_history_suspects_is_measured_beside_the_baselines_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked_out: list[Any] = []

    def checkout(commit: str, label: str, root: Path, replicates: Any) -> Side:
        checked_out.append((commit, label, root))
        return Side(label, "python", root / "there")

    monkeypatch.setattr(sides, "commit_of_records", lambda then, root: (COMMIT, ""))
    monkeypatch.setattr(sides, "checkout", checkout)
    history, processes = against(tmp_path, {A: 2.0, B: THEN}, then={A: THEN, B: THEN, C: THEN})
    processes.extra = {"flops": 7}
    history.compare()
    found = history.measurement
    assert checked_out == [(COMMIT, "the baseline's commit 012345678", tmp_path)]
    assert verdicts(history) == {A: "SLOWER", B: "SAME", C: "MISSING"}
    assert found.title == "against the baseline main (16 processes)"
    assert found.lines[0] == (
        "history calls 1 of 2 benchmarks SAME and suspects 1; side by side with its commit 012345678 those are 1 SLOWER"
    )
    assert " replicates in " in found.lines[1]
    assert " pairs in " in found.lines[-1]
    beside = [each for each in processes.asked if each.side.label != "this side"]
    assert {str(each.ids) for each in beside} == {str([A])}
    assert found.here.paths == (str(tmp_path),)
    assert [row.quantity for row in found.rows if row.name == B] == ["flops", "time"], "history's other rows stay"
    history, processes = against(tmp_path, {A: THEN, B: THEN})
    history.compare()
    assert history.measurement.lines[0] == "history calls 2 of 2 benchmarks SAME"
    assert " replicates in " in history.measurement.lines[1]
    assert len(checked_out) == 1

    def refused(*_: object) -> Side:
        raise pytest.UsageError("no such folder")

    monkeypatch.setattr(sides, "checkout", refused)
    history, _ = against(tmp_path, {A: 2.0, B: THEN})
    history.compare()
    assert history.measurement.lines[0] == HERE.replace("not under git", "no such folder")
    assert history.measurement.here == replace(found.here, paths=())
    assert verdicts(history) == {A: "SLOWER", B: "SAME"}


def test_a_baseline_may_be_a_single_process(tmp_path: Path) -> None:
    history, _ = against(tmp_path, {A: THEN, B: THEN}, size=1)
    assert len(history.compare()) == 1
    assert verdicts(history) == {A: "INCONCLUSIVE", B: "INCONCLUSIVE"}


def test_only_what_this_run_was_asked_for_is_compared(tmp_path: Path) -> None:
    then = {A: THEN, B: THEN, C: THEN}
    history, _ = against(tmp_path, {A: THEN}, then=then)
    history.benchmarks = [A]
    history.compare()
    assert verdicts(history) == {A: "SAME", B: "MISSING", C: "MISSING"}, "their file was asked for"
    assert "not selected" not in str(history.measurement.lines)
    history, _ = against(tmp_path, {A: THEN})
    history.benchmarks = [A]
    history.measurement.config.option.keyword = "a"  # type: ignore[attr-defined]
    history.compare()
    assert verdicts(history) == {A: "SAME"}
    assert "1 benchmarks of the baseline are not selected, and not compared" in history.measurement.lines
    history, processes = against(tmp_path, {A: THEN})
    processes.prooflops["fingerprint"] = {"name": "another"}
    with pytest.raises(pytest.UsageError, match=r"recorded under other conditions \(name: abacus -> another\)"):
        history.compare()
