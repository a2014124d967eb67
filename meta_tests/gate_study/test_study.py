"""The gate's study: its arithmetic, its promises on the committed runs, and docs/gate.md as its output."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta_tests.gate_study import __main__ as command
from meta_tests.gate_study import field, replay, runs, tables
from meta_tests.gate_study.collect import schedule
from meta_tests.gate_study.field_table import table
from meta_tests.gate_study.simulate import SCENARIOS, outcome
from meta_tests.page_tables import part_of, with_part
from prooflops.statistics.decision_rule import Decision
from prooflops.statistics.effects import paired
from prooflops.statistics.noise import location
from prooflops.statistics.plan import Plan

QUICK = ("data", "false alarms", "power", "minutes", "real slowdowns")  # the others take a minute together


@pytest.mark.parametrize("name", QUICK)
def test_the_guide_holds_what_the_replay_of_the_committed_runs_says(name: str) -> None:
    held, should = part_of(command.GUIDE.read_text(), name, command.COMMAND), tables.TABLES[name]()
    assert held == should, f"docs/gate.md has another table of {name}: run `make gate-study`\n{should}"


def test_the_guide_has_a_place_for_every_table() -> None:
    text = command.GUIDE.read_text()
    for name in tables.TABLES:
        assert part_of(text, name, command.COMMAND), f"docs/gate.md has no table of {name}: run `make gate-study`"
    with pytest.raises(ValueError, match="should hold the markers"):
        with_part(text, "no such table", command.COMMAND, "")


def test_the_study_replays_the_figure_that_the_gate_takes() -> None:
    rounds = list(np.random.default_rng(0).lognormal(0, 0.1, 40))
    quantile = {"min": 0.0, "p10": 0.10, "p25": 0.25, "median": 0.5}[tables.FIGURE]
    got, should = location(rounds), np.quantile(rounds, quantile)
    assert got == should, f"location={got}, but the study replays its {tables.FIGURE}={should}"


# The promises of the gate, on the committed runs


def test_at_most_one_whole_run_in_a_hundred_alarms_on_unchanged_code() -> None:
    found = [run for session in tables.unchanged().values() for run in session]
    alarmed = sum(run.alarmed for run in found)
    assert alarmed <= 0.01 * len(found), f"{alarmed} of {len(found)} runs alarmed, but at most 1 % should"


@pytest.mark.parametrize(("factor", "share"), [(1.05, 0.80), (1.10, 0.95)])
def test_slowdowns_are_found_where_the_paired_noise_is_within_7_percent(factor: float, share: float) -> None:
    verdicts: Counter[str] = Counter()
    for session in tables.data():
        quiet = [k for cls, kernels in tables.kernels_by_class(session).items() if cls[1] <= 0.07 for k in kernels]
        verdicts += replay.tally(tables.slowed(factor)[session.name], quiet).verdicts
    got = verdicts["SLOWER"] / verdicts.total()
    assert got >= share, f"{got:.1%} of slowdowns of {factor}x were found, but {share:.0%} should be [{verdicts}]"


def test_the_usual_alternatives_alarm_on_the_same_runs() -> None:
    for session in tables.data():
        alarms, of, _ = replay.threshold_alarms(session, "mean")
        assert alarms > 0.15 * of, f"mean:5% alarmed in {alarms} of {of} runs of {session.name}: are they replayed?"


# The arithmetic


def test_abba_takes_each_process_once_and_alternates() -> None:
    before, after = replay.abba(3, 4)
    assert (before, after) == ([3, 6, 7, 10], [4, 5, 8, 9]), f"got {before} and {after}"


def test_disjoint_runs_share_no_process() -> None:
    effect = paired([1.0], [1.0], level=0.1)
    found = [replay.GateRun(start, (Decision("SAME", 8, effect), Decision("SAME", 16, effect))) for start in range(80)]
    kept = [run.start for run in replay.disjoint(found)]
    assert kept == [0, 32, 64], f"runs of 32 processes should be kept at 0, 32 and 64, but are at {kept}"


def test_a_bound_is_clopper_pearsons() -> None:
    # Exact for no event: 1 - 0.05 ** (1 / n).
    assert replay.bound(0, 300) == "0 of 300 = 0.0% (at most 1.0%)", replay.bound(0, 300)
    assert replay.bound(3, 100) == "3 of 100 = 3.0% (at most 7.6%)", replay.bound(3, 100)


def test_replaying_shuffled_processes_would_hide_a_drift() -> None:
    draw = np.random.default_rng(1)
    times = np.exp(np.repeat(np.cumsum(draw.normal(0, 0.05, 40)), 10)[:, None] + draw.normal(0, 0.005, (400, 3)))
    alarms = []
    for figures in (times, draw.permutation(times)):
        floors = [0.0] * 3
        found = [
            replay.history_run(figures[i : i + 10], figures[i + 10 : i + 30], floors, 10) for i in range(0, 360, 5)
        ]
        alarms.append(sum(run.alarmed for run in found))
    assert alarms[0] > 5, f"{alarms[0]} of 72 neighbours alarmed without a floor: the drift should show"
    assert alarms[1] <= 2, f"{alarms[1]} of 72 shuffled runs alarmed"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_is_what_its_row_says(scenario: object) -> None:
    logs = scenario(np.random.default_rng(2), 4000)
    calm = scenario.__name__ == "calm"
    assert np.isfinite(logs).all(), f"{scenario.__name__} adds something that isn't finite"
    assert (np.ptp(logs) > 0.05) != calm, f"{scenario.__name__} should add something, or nothing if calm"
    shares = {"two_modes": (logs > 0, 0.3), "outliers": (logs > 0, 0.05), "contention": (logs > 0, 0.25)}
    if scenario.__name__ in shares:
        events, share = shares[scenario.__name__]
        assert events.mean() == pytest.approx(share, rel=0.2), f"{events.mean():.3f}, but should be {share}"


def test_a_calm_simulation_finds_what_is_planted_and_nothing_else() -> None:
    result = outcome(SCENARIOS[0], 3)
    kernels = range(20)
    got = [replay.tally(r, kernels).share("SLOWER") for r in (result.unchanged, result.slower_5, result.slower_10)]
    assert got == [0, 1, 1], f"found {got} without a change, at 5 % and at 10 %"


# The data


def test_runs_survive_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "DATA", tmp_path)
    monkeypatch.setattr(runs, "RUNS", tmp_path / "runs.csv.gz")
    facts = dict.fromkeys(("wall_s", "load", "steal", "cpu_over_wall", "involuntary_per_s"), 0.5)

    def write(session: str, seconds: list[float]) -> None:
        lines = [
            {"session": session, "load_kind": "none", "started": 10.0 * i, "extra": 0.05 * (i % 2), **facts}
            | {"kernels": {"sort": {"n": 40, **dict.fromkeys(runs.FIGURES, s)}}}
            for i, s in enumerate(seconds)
        ]
        (tmp_path / f"{session}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    write("one", [1e-4, 1.2345e-4])
    runs.pack()
    (tmp_path / "one.jsonl").unlink()
    write("two", [3e-3])
    runs.pack()
    runs.pack()
    found = {s.name: s for s in runs.sessions()}
    assert [len(s) for s in found.values()] == [2, 1], f"got {found}"
    assert found["one"].figures["p25"][:, 0] == pytest.approx([1e-4, 1.2345e-4])
    assert len(found["one"].only(0.05)) == 1, "one process of the first session had 5 % more work"


def test_planted_sessions_alternate_plain_and_more_work() -> None:
    class Options:
        planted, quads = True, 2

    got = list(schedule(Options()))
    assert got == [0, 0.05, 0.05, 0, 0, 0.1, 0.1, 0] * 2, f"got {got}"


def test_the_committed_runs_are_small() -> None:
    assert runs.RUNS.stat().st_size < 1_000_000, f"{runs.RUNS} has {runs.RUNS.stat().st_size} bytes"


def test_a_plan_of_the_study_is_the_gates() -> None:
    plan = Plan(benchmarks=18)
    assert replay.most_pairs(plan) == 50, f"a run takes up to {replay.most_pairs(plan)} pairs; docs/gate.md says 50"


# The field trials


def test_slowdowns_are_planted_into_the_function_that_is_named(tmp_path: Path) -> None:
    source = 'class A:\n    def f(self, x):\n        """Says x."""\n        seen.append(x)\n        return x\n'
    for plant, should in ((lambda: field.plant_slight(tmp_path, "a.py:A.f", "seen.append(0)"), [0, 7]),
                          (lambda: field.plant_twice(tmp_path, "a.py:A.f"), [7, 7])):  # fmt: skip
        (tmp_path / "a.py").write_text(source)
        plant()
        names: dict[str, Any] = {"seen": []}
        exec((tmp_path / "a.py").read_text(), names)
        assert names["A"]().f(7) == 7
        assert names["seen"] == should, f"the function did {names['seen']}, but should have done {should}"
    with pytest.raises(SystemExit, match="no g in the file"):
        field.plant_slight(tmp_path, "a.py:A.g", "pass")


def test_the_table_of_the_field_tells_alarms_from_planted_slowdowns() -> None:
    slower = {"verdict": "SLOWER", "ratio": 1.06, "low": 1.05, "high": 1.07, "noise": 0.01}
    same = {**slower, "verdict": "SAME", "ratio": 1.0}
    run = {"project": "p", "busy": False, "wall_s": 9.0, "exit": 1, "rows": {"a": slower, "b": same, "c": same}}
    text = table([{**run, "trial": "unchanged"}, {**run, "trial": "slight"}], {("p", "slight"): {"a", "b"}})
    assert "Unchanged: 1 of 1 runs alarm; 66.7% of 3 benchmarks SAME." in text
    slight = next(line for line in text.splitlines() if "| slight |" in line)
    assert "| 0 | 1 of 2 | 1 of 1 | 1: 1 |" in slight, f"no alarm, one of two found, one of one clear: {slight}"
