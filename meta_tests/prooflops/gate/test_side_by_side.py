"""Pairs of processes of two sides of a small foreign repository."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from meta_tests.prooflops.gate.foreign_repo import INI, MORE, run, run_git, worktrees
from meta_tests.prooflops.gate.without_processes import (
    EVEN,
    FINGERPRINT,
    PLAIN,
    UNEVEN,
    A,
    B,
    C,
    Processes,
    Times,
    effect,
    measurement,
)
from prooflops.gate.measurement import Measurement
from prooflops.gate.process_plan import FIRST, LEAST_S, MOST_S, USUAL_S, paces
from prooflops.gate.processes import ReplicateFailed, Side
from prooflops.gate.side_by_side import SideBySide
from prooflops.history import records


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
    # A process of either side sleeps for 60 rounds of 0.03 s. The first pair fits into 6.6 s where a start takes up to
    # 1.5 s, and a second one nowhere.
    (foreign / "work.py").write_text("import time\nSTEPS = 300\ndef busy(steps=0):\n    time.sleep(0.03)\n")
    run_git(foreign, "commit", "-qam", "sleep")
    (foreign / "test_more.py").unlink()
    options = ("test_foreign.py::test_busy_loop", "--gate", "--gate-versus", "HEAD", "--gate-budget", "0.11")
    done = run(foreign, *options, "-v")
    assert done.code == 1, done.output
    first, _, _ = done.output.partition("FAILURES")
    assert "decide nothing: give --gate-budget 1" in first, done.output
    assert "the budget ended it (--gate-budget)" in done.output, done.output
    (foreign / "pytest.ini").write_text(INI + "gate_allow_inconclusive = true\n")
    done = run(foreign, *options)
    assert done.code == 0, done.output
    assert "1: the budget ended it" in done.output, done.output


def beside(
    root: Path, times: Callable[[str], Times], *, asked: str = "--gate-versus b", **settings: Any
) -> tuple[SideBySide, Processes, Measurement]:
    """A comparison of a folder with another one beside it, in which no process starts."""
    for folder in ("here", "there"):
        (root / folder).mkdir()
        (root / folder / "test_b.py").touch()
    processes = Processes(times)
    found = measurement(root / "here", processes, "test_b.py", **settings)
    return SideBySide(found, found.here, Side("b", "python", root / "there"), asked), processes, found


def test_the_sides_take_turns_and_what_one_lacks_is_no_pair(tmp_path: Path) -> None:
    times = {"b": {A: 1.0, B: 1.0}, "this side": {A: 1.2, C: 1e-3}}
    pairs, processes, found = beside(tmp_path, times.__getitem__)
    began = time.monotonic()
    assert pairs.compare([A, C]) == records.fingerprint_id(FINGERPRINT)
    assert began <= found.timing_since <= time.monotonic()
    order = [each.side.label for each in processes.asked]
    assert order[:6] == ["b", "this side", "this side", "b", "b", "this side"], order
    assert processes.seeds == len(order) / 2
    assert processes.asked[0].targets == ["test_b.py"]
    assert processes.asked[0].ids is None, "what the other side has is not known yet"
    assert [each.ids for each in processes.asked[1:4]] == [[A, C], [A], [A]]
    assert [each.examined for each in processes.asked[1:4]] == [[], [A], [A]]
    assert [each.paces for each in processes.asked[:2]] == [FIRST] * 2
    verdicts = {(row.name, row.verdict) for row in found.rows if row.quantity == "time"}
    assert verdicts == {(A, "SLOWER"), (B, "MISSING"), (C, "NEW")}
    assert found.title == "b (before) beside this side (under no version control) (after)"
    first, planned = found.said  # type: ignore[attr-defined]
    assert first == "a first pair of processes shows how long the rest will take"
    assert planned == found.lines[0]
    assert planned.startswith("1 benchmarks (1 by their own rounds")
    assert set(pairs.take([A, B, C])) == {A}


def test_what_is_noisy_has_more_time_in_each_process_what_is_plain_less_and_all_else_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"b": {A: 1e-3, B: 1e-3}, "this side": {A: (1e-3, 1.2e-3, 0.9e-3, 1.1e-3, 0.8e-3), B: 1e-3}}
    pairs, processes, _ = beside(tmp_path, times.__getitem__, replicates=12)
    pairs.compare([A, B])
    assert [each.paces for each in processes.asked[:2]] == [FIRST] * 2
    assert [each.paces for each in processes.asked[2:4]] == [paces(MOST_S, {})] * 2, "two have the time of the start"
    processes.call_s = dict.fromkeys((A, B), 0.01)
    found = pairs.measurement
    rule = found.rule(2)
    pair = pairs.pair([A, B])
    _, look = pairs.plan(*pair, {A: 1e-3, B: 1e-3}, rule)
    for ratios, own in ((UNEVEN, {A: MOST_S}), (EVEN, {}), (UNEVEN[:5], {}), (PLAIN[:3], {A: LEAST_S})):
        look({A: effect(ratios), B: effect(EVEN)}, 3)
        assert pairs.paces == paces(MOST_S, own), ratios
    monkeypatch.setattr("prooflops.gate.side_by_side.time.monotonic", lambda: found.begun + 599.0)
    look({A: effect(UNEVEN), B: effect(EVEN)}, 3)
    assert pairs.paces == paces(MOST_S, {A: MOST_S}), "it never has less than the others"


def test_what_has_long_rounds_has_enough_of_them_and_no_more_where_it_is_noisy(tmp_path: Path) -> None:
    times = {A: 0.015, B: 0.02, **{f"test_b.py::test_{number}": 1e-4 for number in range(40)}}
    pairs, _, found = beside(tmp_path, lambda _: times)
    _, look = pairs.plan(*pairs.pair(list(times)), times, found.rule(len(times)))
    for ratios, most_s in ((EVEN, 12 * 0.015), (UNEVEN, MOST_S)):
        look({A: effect(ratios), B: effect(ratios)}, 3)
        own = {name: pace["max_time"] for name, pace in pairs.paces.items()}
        assert own == {"": pytest.approx(1 / 41, abs=1e-4), A: pytest.approx(most_s)}, "longer rounds gain nothing"


def test_what_is_noisy_takes_half_as_long_together_as_a_process_takes_besides(tmp_path: Path) -> None:
    times = {f"test_b.py::test_{number}": 1e-3 for number in range(50)}
    pairs, _, found = beside(tmp_path, lambda _: times)
    _, look = pairs.plan(*pairs.pair(list(times)), times, found.rule(len(times)))
    for noisy, each_s in ((20, 0.05), (50, 0.02)):  # the start of these processes takes 2 s
        look(dict.fromkeys(list(times)[:noisy], effect(UNEVEN)), 3)
        assert pairs.paces["test_b.py::test_0"]["max_time"] == pytest.approx(each_s), noisy


def test_the_pairs_after_the_first_fit_into_what_the_budget_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {f"test_b.py::test_{number}": 1e-4 for number in range(50)}
    pairs, processes, found = beside(tmp_path, lambda _: times)
    processes.call_s = dict.fromkeys(times, USUAL_S)
    first, rule = pairs.pair(list(times)), found.rule(len(times))
    left_s = 2 * 33 * (2 + 50 * 0.0075)  # of 34 pairs at most, each of two processes that take 2 s besides
    monkeypatch.setattr("prooflops.gate.side_by_side.time.monotonic", lambda: found.begun + 600.0 - left_s)
    _, look = pairs.plan(*first, times, rule)
    look(dict.fromkeys(times, effect(EVEN)), 3)
    assert pairs.paces[""]["max_time"] == pytest.approx(0.0075)


def test_a_benchmark_that_takes_too_long_for_the_budget_is_left_out_with_the_budget_it_needs(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1e-3, B: 2.0})
    processes.call_s = {B: 90.0}
    pairs.compare([A, B])
    notes = {row.name: row.note for row in found.rows}
    assert notes[B].startswith(
        "a process takes 90.0 s for it, and 8 pairs do not fit into the budget: --gate-budget 30"
    )
    assert not notes[A]
    assert [each.ids for each in processes.asked[2:4]] == [[A], [A]]
    assert found.lines[0].startswith("1 benchmarks (0.2 s a benchmark and process; 2.0 s a process besides)")


def test_code_beside_itself_runs_the_same_tests_on_both_sides(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1.0}, asked="")
    pairs.compare([A])
    assert [each.ids for each in processes.asked[:2]] == [[A]] * 2
    assert found.title == "this side (under no version control) beside itself"
    processes.broken = {"b"}
    with pytest.raises(ReplicateFailed, match="b crashed"):
        pairs.take([A])


def test_a_side_that_breaks_is_named_by_the_option_that_chose_it(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1.0, B: 1.0})
    pairs.compare([A], only=True)
    assert processes.asked[0].ids == [A], "nothing else of the other side is compared"
    processes.broken = {"b"}
    with pytest.raises(pytest.UsageError, match=r"^--gate-versus b: b crashed\nits last line$"):
        pairs.take([A])
    processes.broken = {"this side"}
    with pytest.raises(ReplicateFailed, match="this side crashed"):
        pairs.take([A])
    found.markers[A] = {"ignore": True}
    processes.broken = set()
    processes.code = tmp_path / "here" / "work.py"
    with pytest.raises(pytest.UsageError, match=r"^--gate-versus b: b .* imported work from .*, which is the other"):
        pairs.compare([A])
    processes.code = None
    pairs.compare([A])
    assert [(row.name, row.verdict) for row in found.rows] == [(B, "MISSING"), (A, "NEW")]


def test_a_benchmark_that_fails_on_the_other_side_is_new_for_that_reason(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda side: {A: 1.0} if side == "b" else {A: 1.0, B: 1.0})
    processes.outcome = "failed"
    pairs.compare([A, B], only=True)
    assert {row.name: row.note for row in found.rows if row.verdict == "NEW"} == {B: "it fails on the other side"}


@pytest.mark.parametrize("asked", ["--gate-versus b", ""])
def test_pairs_after_the_first_run_in_turn(tmp_path: Path, asked: str) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1.0}, asked=asked)
    if not asked:
        pairs.other = found.here
    pairs.compare([A])
    labels = ["b", "this side"] if asked else ["this side"] * 2
    assert [each.side.label for each in processes.asked[:4]] == [*labels, *reversed(labels)]
    assert len(processes.in_turn) == len(processes.asked) / 2 - 1
    assert set(processes.in_turn) == {60 + 4 * 2 * 2.1}, "the first two took 2.1 s each"
    assert not [line for line in found.lines if "one process after the other" in line]
    before, after = pairs.pair([A])
    assert (before.side, after.side) == (pairs.other, found.here)


def test_what_breaks_in_turn_is_measured_one_process_after_the_other(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1.0})
    processes.broken_in_turn = {"this side"}
    pairs.compare([A])
    assert len(processes.in_turn) == 1, "it is not tried again"
    assert [each.side.label for each in processes.asked[:4]] == ["b", "this side", "this side", "b"]
    assert "one process after the other: in turn, a test failed" in found.lines[1]
    assert not found.reports.failed()


def test_a_test_that_fails_in_turn_only_fails_nobody(tmp_path: Path) -> None:
    pairs, processes, found = beside(tmp_path, lambda _: {A: 1.0})
    in_turn = processes.run_in_turn

    def failing(*given: Any) -> Any:
        processes.outcome = "failed"
        done = in_turn(*given)
        processes.outcome = "passed"
        return done

    processes.run_in_turn = failing  # type: ignore[method-assign]
    pairs.compare([A])
    assert len(processes.in_turn) == 1
    assert not found.reports.failed()
    assert [(row.name, row.verdict) for row in found.rows if row.quantity == "time"] == [(A, "SAME")]


def test_a_setting_or_the_machine_keeps_processes_apart(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    pairs, processes, found = beside(tmp_path / "one", lambda _: {A: 1.0}, in_turn=False)
    pairs.compare([A])
    assert processes.in_turn == []
    assert not [line for line in found.lines if "one process after the other" in line], "who set it knows"
    pairs, processes, found = beside(tmp_path / "two", lambda _: {A: 1.0})
    processes.footprint = {"peak_bytes": 1, "driver": "libcuda.so"}
    pairs.compare([A])
    assert processes.in_turn == []
    assert found.lines[1] == "one process after the other: they share the memory of an accelerator (libcuda.so)"
