"""What made-up replicates decide."""

import math
from typing import Any

import pytest

from prooflops.gate.decide import (
    ReplicateRule,
    SieveRule,
    fails,
    fewest_stored,
    look_at,
    replicate_plan,
)
from prooflops.history.records import Timed
from prooflops.history.rows import Row
from prooflops.statistics.decision_rule import LOOKS
from prooflops.statistics.effects import paired


def timed(time_s: float) -> Timed:
    return Timed(time_s, {}, {})


@pytest.mark.parametrize(
    ("most", "benchmarks"), [(1, 1), (4, 1), (9, 1), (12, 20), (20, 3), (20, 200), (50, 20), (70, 1)]
)
def test_no_more_replicates_are_taken_than_were_allowed(most: int, benchmarks: int) -> None:
    plan = replicate_plan(benchmarks, most=most)
    rule = ReplicateRule(plan, most=most)
    assert plan.looks[-1] <= most, plan
    both: dict[str, Any] = {f"test_{number}": ([], []) for number in range(min(benchmarks, 3))}
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
    assert rows[0].note.endswith("--gate-record NAME --gate-replicates 16"), rows[0]
    fewest = fewest_stored(rule.plan)
    open_: Any = {"a": ([timed(1.0 + number) for number in range(fewest)], [timed(1.1)])}
    assert "the baseline holds" not in look_at(open_, rule)[0][0].note, "so many are enough"
    both: Any = {"a": ([timed(1.0 + number / 1000) for number in range(fewest)], [])}
    while look_at(both, rule)[1]:
        both["a"][1].append(timed(2.0))
    (row,), _ = look_at(both, rule)
    assert row.verdict == "SLOWER", (fewest, row)


@pytest.mark.parametrize(
    ("verdict", "direction", "allowed", "stops"),
    [
        ("SLOWER", "slower", 0.1, True), ("SLOWER", "faster", 0.1, False), ("FASTER", "both", 0.1, True),
        ("FASTER", "slower", 0.1, False), ("MISSING", "slower", 0.1, True), ("CHANGED", "slower", 0.1, True),
        ("INCONCLUSIVE", "slower", 0.1, True), ("INCONCLUSIVE", "slower", math.inf, False),
        ("NEW", "both", math.inf, False), ("MORE MEMORY", "slower", 0.1, True), ("LESS MEMORY", "slower", 0.1, False),
        ("MORE INSTRUCTIONS", "slower", 0.1, False),
    ],
)  # fmt: skip
def test_what_stops_the_gate(verdict: str, direction: str, allowed: float, stops: bool) -> None:
    row = Row("a", "time", 1.0, 2.0, verdict)
    assert fails(row, direction, allowed) is stops
    assert not (verdict == "MORE MEMORY" and fails(row, direction, allowed, guards_memory=False))
    skipped = Row("a", "time", 1.0, None, "INCONCLUSIVE", note="skipped this time: later")
    assert not fails(skipped, direction, allowed)
    assert not fails(Row("a.claim", "verdict", "holds", "not checked", "INCONCLUSIVE"), direction, allowed)


def test_an_open_benchmark_says_what_it_excludes_and_what_ended_it() -> None:
    rule = ReplicateRule(replicate_plan(1))
    three: Any = {"a": ([timed(1.0)] * 3, [timed(1.0), timed(1.1), timed(1.2)])}
    ((row,), _) = look_at(three, rule)
    assert "slower by 20.0% at most (88% sure)" in row.note, row
    assert "; the budget ended it (--gate-budget); 3 of 8 pairs were taken" in row.note, row
    ((row,), _) = look_at(three, ReplicateRule(replicate_plan(1, most=3), most=3))
    assert "; --gate-replicates ended it; about" in row.note, row
    noisy: Any = {"a": ([timed(1.0)] * 32, [timed(4.0 ** (number * 7 % 32 / 31 - 0.5)) for number in range(32)])}
    ((row,), _) = look_at(noisy, rule)
    assert "; its noise exceeds the question; as noisy as this, changes are found from" in row.note, row


@pytest.mark.parametrize(
    ("ratios", "direction", "allowed", "stops"),
    [
        ([1.0, 1.08], "slower", 0.1, False), ([1.0, 1.08], "slower", 0.05, True), ([1.0, 1.08], "slower", 0.0, True),
        ([1.0, 1.2], "slower", 0.1, True), ([1.0, 0.8], "slower", 0.1, False), ([1.0, 0.8], "faster", 0.1, True),
        ([1.0, 0.8], "both", 0.1, True), ([0.95, 1.05], "both", 0.1, False),
    ],
)  # fmt: skip
def test_an_open_benchmark_passes_where_a_change_larger_than_allowed_is_excluded(
    ratios: list[float], direction: str, allowed: float, stops: bool
) -> None:
    effect = paired([1.0] * 8, ratios * 4, level=0.01)
    assert fails(Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", effect), direction, allowed) is stops
    three = paired([1.0] * 3, [1.0, 1.01, 1.0], level=0.01)  # no bound that is sure enough
    assert fails(Row("a", "time", 1.0, 1.0, "INCONCLUSIVE", three), direction, allowed)


@pytest.mark.parametrize(
    ("stored", "ratio", "verdict"),
    [(16, 1.0, "SAME"), (16, 1.05, "INCONCLUSIVE"), (16, 0.9, "INCONCLUSIVE"), (2, 1.0, "INCONCLUSIVE")],
)
def test_the_sieve_calls_the_same_same_and_leaves_all_else_to_pairs(stored: int, ratio: float, verdict: str) -> None:
    rule = SieveRule(replicate_plan(1, paired=False), paired=False)
    both: Any = {"a": ([timed(1 + i % 3 / 1000) for i in range(stored)], [])}
    while look_at(both, rule)[1]:
        both["a"][1].append(timed(ratio))
    ((row,), _) = look_at(both, rule)
    assert row.verdict == verdict, row
    assert len(both["a"][1]) == (LOOKS[0] if stored > 2 else 1), "it takes one look, and none that cannot say SAME"


@pytest.mark.parametrize(("floor", "verdict"), [(0.01, "SLOWER"), (0.3, "INCONCLUSIVE")])
def test_a_known_drift_is_held_against_a_change_between_sessions(floor: float, verdict: str) -> None:
    rule = ReplicateRule(replicate_plan(1, paired=False), floors={"a": floor}, paired=False)
    both: Any = {"a": ([timed(1 + i / 1000) for i in range(20)], [timed(1.1)] * 50)}
    (row,) = look_at(both, rule)[0]
    (early,) = look_at({"a": (both["a"][0], both["a"][1][:3])}, rule)[0]
    assert (row.verdict, row.effect.floor, early.effect.floor) == (verdict, floor, floor)
