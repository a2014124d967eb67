"""What made-up replicates decide."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate.decisions import ReplicateRule, fails, fewest_stored, look_at, replicate_plan
from prooflops.gate.run import Gate
from prooflops.history.records import Timed
from prooflops.history.rows import Row
from prooflops.statistics.plan import LOOKS


def timed(time_s: float) -> Timed:
    return Timed(time_s, {}, {})


@pytest.mark.parametrize(
    ("most", "benchmarks"), [(1, 1), (4, 1), (9, 1), (12, 20), (20, 3), (20, 200), (50, 20), (70, 1)]
)
def test_no_more_replicates_are_taken_than_were_allowed(most: int, benchmarks: int) -> None:
    plan = replicate_plan(benchmarks, most=most)
    rule = ReplicateRule(plan, most=most)
    assert plan.looks[-1] <= most, plan
    both: dict[str, Any] = {f"test_{number}": ([], []) for number in range(benchmarks)}
    while look_at(both, rule)[1]:
        for before, after in both.values():
            before.append(timed(1.0))
            after.append(timed(1.5))
        assert len(both["test_0"][1]) <= most, plan
    rows, _ = look_at(both, rule)
    enough = most - plan.confirming_pairs >= math.log2(1 / plan.level(len(plan.looks) - 1))
    assert {row.verdict for row in rows} == {"SLOWER" if enough else "INCONCLUSIVE"}, (plan, rows[0])


def test_a_baseline_too_small_to_decide_anything_is_named_and_costs_one_process() -> None:
    rule = ReplicateRule(replicate_plan(1, paired=False), paired=False)
    rows, wanted = look_at({"a": ([timed(1.0)], [timed(2.0)])}, rule)
    assert not wanted, wanted
    assert "the baseline holds 1 processes" in rows[0].note, rows[0]
    fewest = fewest_stored(rule.plan)
    both: Any = {"a": ([timed(1.0 + number / 1000) for number in range(fewest)], [])}
    while look_at(both, rule)[1]:
        both["a"][1].append(timed(2.0))
    (row,), _ = look_at(both, rule)
    assert row.verdict == "SLOWER", (fewest, row)


def test_a_noise_floor_takes_all_pairs_where_a_comparison_would_stop() -> None:
    settings: Any = SimpleNamespace(noise_floor=True, direction="slower", min_effect=0.03, replicates=None)
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None), get_verbosity=lambda: -1, stash={}
    )
    rule = Gate(config, settings).rule(1, paired=True)
    both: Any = {"a": ([], [])}
    while look_at(both, rule)[1]:
        both["a"][0].append(timed(1.0))
        both["a"][1].append(timed(1.001))
    ((row,), _) = look_at(both, rule)
    assert row.effect, row
    assert row.effect.pairs == len(both["a"][1]) == LOOKS[-1], row
    assert row.verdict == "SAME", row


@pytest.mark.parametrize(
    ("verdict", "direction", "strict", "stops"),
    [
        ("SLOWER", "slower", False, True), ("SLOWER", "faster", False, False), ("FASTER", "both", False, True),
        ("FASTER", "slower", False, False), ("MISSING", "slower", False, True), ("CHANGED", "slower", False, True),
        ("INCONCLUSIVE", "slower", False, False), ("INCONCLUSIVE", "slower", True, True), ("NEW", "both", True, False),
    ],
)  # fmt: skip
def test_what_stops_the_gate(verdict: str, direction: str, strict: bool, stops: bool) -> None:
    row = Row("a", "time", 1.0, 2.0, verdict)
    assert fails(row, direction, strict) is stops
