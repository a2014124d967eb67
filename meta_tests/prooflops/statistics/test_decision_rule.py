"""The whole rule at its rates, by simulation with fixed seeds, and each guard shown to matter."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meta_tests.prooflops.statistics.simulated import effect_of, least, most
from prooflops.statistics.decision_rule import _beyond, _same, confirmed, decide, verdict
from prooflops.statistics.effects import paired, unpaired
from prooflops.statistics.plan import Plan


def alarms(
    plan: Plan, runs: int, seed: int, *, decide_run: Callable[[np.ndarray, np.ndarray], bool] | None = None
) -> int:
    """The benchmarks that alarm among so many without a change, each with noise of 3 % and an outlier in twenty."""
    draw, count = np.random.default_rng(seed), 0
    pairs = plan.looks[-1] + plan.confirming_pairs
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, 0.02, (2, pairs)) + (draw.random((2, pairs)) < 0.05))
        count += decide_run(before, after) if decide_run else decide(before, after, plan, 1e-9).verdict == "SLOWER"
    return count


def test_the_whole_rule_alarms_no_more_often_than_planned() -> None:
    # At rates high enough to be seen: 0.04 a benchmark, and a smallest effect that stops nothing.
    plan = Plan(benchmarks=1, looks=(8, 12, 16), alarm_rate=0.04, confirmation_level=0.2, confirming_pairs=8)
    got, allowed = alarms(plan, 1500, 6), most(0.04, 1500)
    assert got <= allowed, f"{got} of 1500 unchanged benchmarks alarmed, but at most {allowed} should"
    assert got >= 15, f"only {got} of 1500 alarmed: the plan gives away what it could find"


def test_a_gate_that_forgets_to_correct_for_its_looks_alarms_too_often() -> None:
    plan = Plan(benchmarks=1, looks=tuple(range(8, 40, 4)), alarm_rate=0.05, confirmation_level=1.0)

    def uncorrected(before: np.ndarray, after: np.ndarray) -> bool:
        return any(paired(before[:n], after[:n], level=0.05).p_slower <= 0.05 for n in plan.looks)

    def corrected(before: np.ndarray, after: np.ndarray) -> bool:
        return any(
            paired(before[:n], after[:n], level=0.05).p_slower <= plan.level(look) for look, n in enumerate(plan.looks)
        )

    allowed = most(0.05, 200)
    forgetful, careful = (alarms(plan, 200, 7, decide_run=rule) for rule in (uncorrected, corrected))
    assert careful <= allowed, f"{careful} of 200 alarmed over 8 looks, but at most {allowed} should"
    assert forgetful > allowed, f"{forgetful} of 200 alarmed uncorrected: too few for this test to notice the fault"


@pytest.mark.parametrize(("slowdown", "noise", "share"), [(1.05, 0.07, 0.80), (1.10, 0.07, 0.95), (1.05, 0.03, 0.95)])
def test_the_rule_finds_what_it_promises_among_twenty_benchmarks(slowdown: float, noise: float, share: float) -> None:
    draw, plan, found, runs = np.random.default_rng(9), Plan(benchmarks=20), 0, 300
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, noise / math.sqrt(2), (2, 50)))
        found += decide(before, after * slowdown, plan).verdict == "SLOWER"
    needed = least(share, runs)
    assert found >= needed, f"found {found} of {runs} slowdowns of {slowdown}x, but should find {needed} [{noise=}]"


def test_a_change_as_large_as_the_limit_is_rarely_called_the_same() -> None:
    draw, plan, same, runs = np.random.default_rng(10), Plan(benchmarks=20, miss_rate=0.05), 0, 400
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, 0.015, (2, 50)))
        same += decide(before, after * 1.03, plan).verdict == "SAME"
    allowed = most(0.05, runs)
    assert same <= allowed, f"a slowdown of exactly 3 % was called SAME {same} times, but should be {allowed} at most"


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"),
    [
        (1.10, 0.03, "SLOWER"),
        (1 / 1.10, 0.03, "FASTER"),
        (1.00, 0.03, "SAME"),
        (1.02, 0.005, "SAME"),  # surely slower, and surely by less than 3 %
        (1.00, 0.30, "INCONCLUSIVE"),
        (1.10, 0.90, "INCONCLUSIVE"),
    ],
)
def test_verdicts(ratio: float, spread: float, expected: str) -> None:
    plan = Plan(benchmarks=100, looks=(32,))
    got = verdict(effect_of(ratio, spread), plan, 0)
    assert got == expected, f"verdict={got}, but should be {expected} [{ratio=}, {spread=}]"


def test_before_the_last_look_an_open_question_goes_on() -> None:
    plan = Plan(benchmarks=1, looks=(32, 64))
    assert verdict(effect_of(1.0, 0.3), plan, 0) is None, "the first of two looks should not end in INCONCLUSIVE"


def test_a_suspicion_stands_only_if_fresh_pairs_repeat_it() -> None:
    plan = Plan(benchmarks=20)
    slow, flat, slight = (effect_of(ratio, 0.03, 18) for ratio in (1.08, 1.0, 1.02))
    assert confirmed("SLOWER", slow, slow, plan) == "SLOWER", "what repeats should stand"
    assert confirmed("SLOWER", flat, slow, plan) == "INCONCLUSIVE", "what does not repeat should not alarm"
    assert confirmed("SLOWER", slight, slow, plan) == "INCONCLUSIVE", "what repeats at 2 % only should not alarm at 3 %"
    unsure = effect_of(1.08, 0.6, 18)
    assert unsure.p_slower > plan.confirmation_level, f"so much spread should leave it open: {unsure}"
    assert confirmed("SLOWER", unsure, slow, plan) == "INCONCLUSIVE", "what fresh pairs leave open should not alarm"
    assert confirmed("SLOWER", flat, flat, plan) == "SAME", "what all pairs place within 3 % of 1 is the same"
    with pytest.raises(ValueError, match="suspicion should be SLOWER or FASTER, but is 'SAME'"):
        confirmed("SAME", slow, slow, plan)


def test_a_plain_change_is_decided_by_few_pairs() -> None:
    plan = Plan(benchmarks=20)
    before, after = np.exp(np.random.default_rng(14).normal(0, 0.02, (2, 50)))
    twice = decide(before, 2 * after, plan)
    assert twice.effect.pairs == 15, "what is reported is of all pairs"
    assert (twice.verdict, twice.wanted) == ("SLOWER", 15), f"twice as slow in 8 + 7 pairs should be enough: {twice}"
    after = 2 * after
    after[12] = 0.99 * before[12]
    once = decide(before, after, plan)
    assert (once.verdict, once.wanted) == ("SLOWER", 34), f"a fresh pair that contradicts should want 16 + 18: {once}"


def test_a_passing_spell_of_slowness_alarms_nobody() -> None:
    draw, plan = np.random.default_rng(11), Plan(benchmarks=1)
    before, after = np.exp(draw.normal(0, 0.01, (2, 50)))
    after[:8] *= 1.2
    decision = decide(before, after, plan)
    assert decision.suspicion == "SLOWER", f"8 pairs at 1.2x should raise a suspicion, but {decision}"
    assert decision.verdict != "SLOWER", f"a suspicion that went away should not alarm, but {decision}"


def test_a_decision_asks_for_the_pairs_it_then_uses() -> None:
    draw, plan = np.random.default_rng(12), Plan(benchmarks=3)
    for slowdown in (1.0, 1.02, 1.05, 1.3):
        before, after = np.exp(draw.normal(0, 0.03, (2, 50))) * np.array([[1.0], [slowdown]])
        taken = plan.looks[0]
        while (step := decide(before[:taken], after[:taken], plan)).verdict is None:
            assert step.wanted > taken, f"wants {step.wanted} pairs, but has {taken} already"
            taken = step.wanted
        whole = decide(before, after, plan)
        got, should = (step.verdict, step.wanted, step.effect), (whole.verdict, whole.wanted, whole.effect)
        assert got == should, f"step by step {got}, but from all pairs {should}"


def test_fewer_pairs_than_the_first_look_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="the first look takes 8 pairs"):
        decide([1.0], [1.0], Plan(benchmarks=1))


def test_a_change_of_exactly_the_smallest_effect_is_neither_beyond_it_nor_the_same() -> None:
    ratios = [1.5000001, 1.5, 1.0, 1 / 1.5, 0.6666]
    assert [_beyond(ratio, 0.5) for ratio in ratios] == ["SLOWER", None, None, None, "FASTER"]
    for (low, high), same in {(0.7, 1.4): True, (1 / 1.5, 1.4): False, (0.7, 1.5): False}.items():
        effect: Any = SimpleNamespace(interval=lambda level, drift, bounds=(low, high): bounds)
        assert _same(effect, 0.05, 0.5) is same


def test_the_decision_between_sessions_is_that_of_the_rank_sums_with_drift_and_common_shift() -> None:
    draw, plan = np.random.default_rng(21), Plan(benchmarks=1, looks=(8,), confirming_pairs=4, shared_baseline=True)
    before, after = list(draw.lognormal(0, 0.02, 9)), list(draw.lognormal(0.01, 0.02, 12))
    decided = decide(before, after, plan, floor=0.05, common=1.02)
    assert decided.effect == unpaired(before, after[:8], level=plan.level(0), floor=0.05, common=1.02)
    assert decided.wanted == 8


def test_where_no_confirmation_is_asked_for_the_fresh_pairs_need_only_point_the_same_way() -> None:
    plan = Plan(benchmarks=1, looks=(8,), confirming_pairs=4, confirmation_level=1.0)
    decided = decide([1.0] * 12, [1.5] * 12, plan)
    assert (decided.verdict, decided.wanted, decided.effect.pairs, plan.plain_pairs) == ("SLOWER", 12, 12, 0)
