"""What made-up replicates decide."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.time_rule import (
    TimeRule,
    look_at,
    plan_for,
)
from prooflops_gate.options import settings
from prooflops_gate.report.result import Judge
from prooflops_gate.rows import Row
from prooflops_gate.statistics.decision_rule import decide
from prooflops_gate.statistics.effects import paired

times_s = st.floats(1e-6, 1e3)


def timed(time_s):
    return Timed(time_s, {})


def judge(root, ini=""):
    """What stops a gate with these ini settings."""
    (root / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    words = ("-p", "prooflops_gate.plugin", "--gate", "--gate-versus", "HEAD")
    return Judge(settings(config_in(root, *words)))


@pytest.mark.parametrize(
    ("verdict", "ini", "stops"),
    [
        ("SLOWER", "", True),
        ("FASTER", "", False),
        ("MISSING", "", True),
        ("MISSING", "gate_missing = report", False),
        ("GONE", "", False),
        ("CHANGED", "", True),
        ("INCONCLUSIVE", "", False),
        ("INCONCLUSIVE", "gate_undecided = fail", True),
        ("NEW", "", False),
        ("MORE MEMORY", "", True),
        ("MORE MEMORY", "gate_memory = show", False),
        ("LESS MEMORY", "", False),
        ("MORE INSTRUCTIONS", "", False),
    ],
)
def test_what_stops_the_gate(tmp_path, verdict, ini, stops):
    found = judge(tmp_path, ini)
    assert bool(found.failing([Row("a", "time", 1.0, 2.0, verdict)])) is stops


def test_a_skipped_test_and_an_open_claim_stop_nothing(tmp_path):
    found = judge(tmp_path, "gate_undecided = fail")
    skipped = Row("a", "time", 1.0, None, "INCONCLUSIVE", note="skipped this time: later")
    claim = Row("a.claim", "verdict", "holds", "not checked", "INCONCLUSIVE")
    assert not found.failing([skipped, claim])


@pytest.mark.parametrize(
    ("ratios", "allowed", "stops"),
    [
        ([1.0, 1.08], 0.1, False),
        ([1.0, 1.08], 0.05, True),
        ([1.0, 1.2], 0.1, True),
        ([1.0, 0.8], 0.1, False),
    ],
)
def test_an_open_benchmark_passes_where_a_larger_slowdown_is_excluded(
    tmp_path, ratios, allowed, stops
):
    found = judge(tmp_path, f"gate_undecided = {allowed}")
    effect = paired([1.0] * 8, ratios * 4, level=0.01)
    assert found.fails(Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", effect), allowed) is stops
    three = paired([1.0] * 3, [1.0, 1.01, 1.0], level=0.01)
    unsure = Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", three)
    assert found.failing([unsure]), "three pairs give no bound that is sure enough"


@pytest.mark.parametrize(("slowdown", "verdict"), [(1.0, "SAME"), (1.05, "SLOWER")])
def test_gpu_pairs_are_compared_at_the_clock_that_ran(slowdown, verdict):
    rng = np.random.default_rng(3)

    def ran(work, hz):
        cycles = work * 1e6 * rng.lognormal(0, 0.003)
        return Timed(cycles / hz, {}, cycles=cycles, clocks_hz=(hz, hz))

    clocks_hz = rng.uniform(1.2e9, 1.98e9, (2, 32))
    before = [ran(1.0, hz) for hz in clocks_hz[0]]
    after = [ran(slowdown, hz) for hz in clocks_hz[1]]
    rule = TimeRule(plan_for(1))
    (row,), _ = look_at({"a": (before, after)}, rule)
    assert row.verdict == verdict
    assert "by the GPU's cycles, at clocks of 1.2" in row.note
    unclocked = [replace(timed, cycles=0.0) for timed in after]
    (row,), _ = look_at({"a": (before, unclocked)}, rule)
    assert row.verdict == "INCONCLUSIVE"


@given(st.lists(st.tuples(times_s, times_s), min_size=1, max_size=12))
def test_the_figures_before_and_after_point_as_the_change_does(pairs):
    before, after = ([timed(pair[side]) for pair in pairs] for side in (0, 1))
    (row,), _ = look_at({"a": (before, after)}, TimeRule(plan_for(1)))
    assert row.after / row.before == pytest.approx(row.effect.ratio)


@pytest.mark.parametrize(("ran_before", "verdict"), [(True, "MISSING"), (False, "NEW")])
def test_a_benchmark_of_one_side_keeps_its_name_and_its_time(ran_before, verdict):
    sides = [timed(2.0)], []
    (row,), _ = look_at({"a": sides if ran_before else sides[::-1]}, TimeRule(plan_for(1)))
    assert (row.name, row.quantity, row.verdict) == ("a", "time", verdict)
    assert (row.before, row.after) == ((2.0, None) if ran_before else (None, 2.0))


def test_what_waits_for_a_gpus_memory_is_compared_by_its_time():
    rng = np.random.default_rng(3)
    clocks_hz = rng.uniform(1.2e9, 1.98e9, (2, 32))
    before, after = ([Timed(1e-3, {}, cycles=1e-3 * hz) for hz in side] for side in clocks_hz)
    (row,), _ = look_at({"a": (before, after)}, TimeRule(plan_for(1)))
    assert row.verdict == "SAME"
    assert not row.note


@pytest.mark.parametrize(("benchmarks", "fewest"), [(1, 8), (20, 12), (300, 17)])
def test_a_bounded_number_of_pairs_finds_and_confirms_a_slowdown_in_all_of_them(benchmarks, fewest):
    """A rank test of few pairs reaches no small level, so the fewest grow with the benchmarks."""
    free = plan_for(benchmarks)
    for most in range(1, 70):
        plan = plan_for(benchmarks, most=most)
        decision = decide([1.0] * most, [1.1] * most, plan)
        assert (decision.verdict == "SLOWER") is (most >= fewest), most
        assert sorted({*plan.looks}) == [*plan.looks]
        assert plan.confirming_pairs <= free.confirming_pairs
        assert plan_for(benchmarks, most=most, all_pairs=True).looks[-1] == most
        if most >= fewest:
            assert plan.looks[-1] + plan.confirming_pairs == most
