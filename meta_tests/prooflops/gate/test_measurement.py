"""What a run of the gate says while it measures, and by which rule it compares."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.gate.without_processes import A, B, C, Processes, measurement
from prooflops.gate.decisions import ReplicateRule, SieveRule, look_at
from prooflops.gate.measurement import SILENT_S, Measurement
from prooflops.gate.processes import ReplicateFailed, Side
from prooflops.history import records
from prooflops.history.records import Timed
from prooflops.run_state import MARKERS, STORAGE_ERROR
from prooflops.statistics.plan import LOOKS


def stopped_clock(patch: pytest.MonkeyPatch) -> float:
    """The time at which a measurement stands from now on."""
    now = time.monotonic()
    patch.setattr("prooflops.gate.measurement.time", SimpleNamespace(monotonic=lambda: now))
    return now


def test_progress_is_said_at_the_start_and_then_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = stopped_clock(monkeypatch)
    found, said, ahead = measurement(tmp_path, None), list[str](), list[float]()
    found.progress = lambda text, ahead_s: (said.append(text), ahead.append(ahead_s))  # type: ignore[assignment]
    found.say("pair 1", 0, 8)
    found.say("pair 2", 1, 8)
    found.said_at -= SILENT_S
    found.say("pair 9", 8, 8)
    assert [text.partition(",")[0] for text in said] == ["pair 1", "pair 9"]
    assert said[1].endswith(", about 0 s to go"), said
    for begun_s, budget_s, to_go in ((8.0, 600.0, "56 s"), (90.0, 300.0, "5 min")):
        found.settings = replace(found.settings, budget_s=budget_s)
        found.begun, found.said_at = now - begun_s, now - SILENT_S
        found.say("pair 2", 1, 8)
        assert said[-1] == f"pair 2, about {to_go} to go"
        assert ahead[-1] == pytest.approx(begun_s)
    found.say("pair 1", 0, 8)
    assert (said[-1], ahead[-1]) == ("pair 1", 0.0)
    assert SILENT_S == 20, "seconds between two lines"


def test_a_noise_floor_takes_all_pairs_where_a_comparison_would_stop(tmp_path: Path) -> None:
    rule = measurement(tmp_path, None, noise_floor=True).rule(1, paired=True)
    both: Any = {"a": ([], [])}
    while look_at(both, rule)[1]:
        both["a"][0].append(Timed(1.0, {}, {}))
        both["a"][1].append(Timed(1.001, {}, {}))
    ((row,), _) = look_at(both, rule)
    assert row.effect, row
    assert row.effect.pairs == len(both["a"][1]) == LOOKS[-1], row
    assert row.verdict == "SAME", row


def test_the_rule_is_that_of_the_options_and_markers(tmp_path: Path) -> None:
    found = measurement(tmp_path, None, replicates=20, min_effect=0.2)
    rule = found.rule(4)
    assert (type(rule), rule.paired, rule.min_effect, rule.most, rule.all_pairs) == (
        ReplicateRule,
        True,
        0.2,
        20,
        False,
    )
    assert (rule.plan.benchmarks, rule.plan.directions, rule.plan.shared_baseline, rule.floors) == (4, 1, False, {})
    assert measurement(tmp_path, None, replicates=20, noise_floor=True).rule(4).plan.looks[-1] == 20, "none confirms"
    rule = found.rule(4, kind=SieveRule, paired=False, floors={A: 0.1})
    assert (type(rule), rule.paired, rule.floors, rule.plan.shared_baseline) == (SieveRule, False, {A: 0.1}, True)
    found.config.stash[MARKERS] = {A: {"direction": "both", "min_effect": 0.3}, B: {"ignore": True}}
    marked = Measurement(found.config, found.settings, found.replicates)
    assert (marked.directions(), marked.smallest(A), marked.smallest(B), marked.smallest(C)) == (2, 0.3, 0.2, 0.2)
    assert [marked.is_compared(name, [A, B]) for name in (A, B, C)] == [True, False, False]
    marked.config.args = ["test_b.py"]
    assert [marked.is_compared(name, []) for name in (A, B, C)] == [True, False, True]
    assert measurement(tmp_path, None, direction="both").directions() == 2


def test_the_newest_process_and_the_reports_are_those_of_this_side(tmp_path: Path) -> None:
    processes = Processes(lambda _: {A: 1.0, B: 1.0})
    processes.extra = {"flops": 7, "bytes": 8}
    found = measurement(tmp_path, processes)
    assert (found.table, found.rows, found.lines, found.title) == ([], [], [], "")
    assert (found.here, found.newest) == (Side("this side", found.here.python, tmp_path), None)
    other = found.run(Side("b", "python", tmp_path), [A], paces={"": {"max_time": 1}})
    assert (found.newest, found.reports.by_test) == (None, {})
    done = found.run_here([A, B])
    assert found.newest is done
    assert found.reports.by_test.keys() == {A, B}
    assert [(each.benchmarks_only, each.paces, each.targets) for each in processes.asked] == [
        (True, {"": {"max_time": 1}}, ["test_b.py"]), (True, None, ["test_b.py"])
    ]  # fmt: skip
    assert found.summary_of(other).benchmarks[A].exact == {"flops": 7}
    with pytest.raises(ReplicateFailed, match=r"this side has none of test_gone\.py"):
        found.run_here(["test_gone.py::test_it"])


def timed(time_s: float, **exact: Any) -> Timed:
    return Timed(time_s, exact, {})


def test_a_comparison_has_a_row_for_all_of_both_sides_and_a_line_for_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = stopped_clock(monkeypatch)
    found = measurement(tmp_path, None, replicates=8)
    asked: list[list[str]] = []

    def take(names: list[str]) -> Any:
        asked.append(list(names))
        return {name: (timed(1.0), timed(1.01)) for name in names}

    found.reports.by_test[C] = [
        pytest.TestReport(C, ("", 0, ""), {}, "skipped", ("t.py", 1, "Skipped: later"), "call")
    ]  # fmt: skip
    first = {name: (timed(1.0, flops=1), timed(1.0, flops=2)) for name in (A, B)}
    stored = {A: [], B: [], C: [timed(3.0)], "test_b.py::test_gone": [timed(4.0)]}
    found.timing_since = now - 2
    found.begun = now - 5
    first["test_b.py::test_new"] = (timed(1.0), timed(5.0))
    found.compare(first, stored, take, found.rule(2), given_up={B: "it takes too long"})
    rows = {(row.name.partition("::test_")[2], row.quantity): row for row in found.rows}
    assert {key: row.verdict for key, row in rows.items()} == {
        ("c", "time"): "INCONCLUSIVE", ("gone", "time"): "MISSING", ("new", "time"): "NEW", ("a", "flops"): "CHANGED",
        ("b", "flops"): "CHANGED", ("a", "time"): "SAME", ("b", "time"): "INCONCLUSIVE",
    }  # fmt: skip
    assert rows["c", "time"].note == "skipped this time: later"
    assert (rows["gone", "time"].before, rows["gone", "time"].after) == (4.0, None)
    assert (rows["new", "time"].before, rows["new", "time"].after) == (None, 5.0)
    assert rows["b", "time"].note == "it takes too long"
    assert asked == [[A]] * 7
    overall, detects, took = found.lines
    assert overall == "overall 1.000 (unknown): the geometric mean of 2 benchmarks"
    assert detects.startswith("as noisy as they were, a slowdown of 5.0% is found in 1 of 2 benchmarks")
    assert took == "8 pairs in 5 s, 0 measurements repeated because other work competed"
    found.lines.clear()
    found.begun = now - 601
    rule = found.rule(1, paired=False)
    found.compare({A: (None, timed(1.0))}, {A: [timed(1.0)] * 16}, take, rule)
    assert found.lines == [
        "the budget of 10 min (--gate-budget) is spent: 1 benchmarks are open",
        "1 replicates in 601 s, 0 measurements repeated because other work competed",
    ]


def test_what_was_said_of_each_time_is_kept_beside_the_records_of_this_machine(tmp_path: Path) -> None:
    processes = Processes(lambda _: {A: 1.0, B: 1.0})
    found = measurement(tmp_path, processes)
    found.store_verdicts()  # nothing has run
    other = Side("b", "python", tmp_path)
    found.run_here([A, B])
    found.store_verdicts()  # nothing was compared
    found.title, rule = "a beside b", found.rule(2)
    found.compare(
        {A: (timed(1.0, flops=1), timed(1.5, flops=2)), B: (timed(1.0), timed(1.0))}, {A: []}, lambda _: {}, rule
    )
    (tmp_path / "history" / "abacus-1").mkdir(parents=True)
    assert found.newest
    found.newest.record["commit_info"] = {"id": "0123"}
    folder = tmp_path / "history" / records.fingerprint_id(found.newest.fingerprint or {})
    folder.mkdir()
    found.store_verdicts()
    (file,) = folder.glob("gate/*.json")
    content = json.loads(file.read_text())
    assert (content["commit"], content["compared"]) == ("0123", "a beside b")
    assert content["verdicts"] == [
        {"name": B, "verdict": "NEW", "ratio": None}, {"name": A, "verdict": "INCONCLUSIVE", "ratio": 1.5}
    ]  # fmt: skip
    assert STORAGE_ERROR not in found.config.stash
    file.unlink()
    (folder / "gate").rmdir()
    (folder / "gate").touch()
    found.store_verdicts()
    assert found.config.stash[STORAGE_ERROR].startswith(f"{tmp_path / 'history'} could not be written: ")
    processes.prooflops.clear()
    found.newest = processes.run(other, [], None)
    found.store_verdicts()  # nothing is known of the machine
