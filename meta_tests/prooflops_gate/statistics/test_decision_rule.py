"""The whole rule at its rates, by simulation with fixed seeds, and the plan that spends them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from meta_tests.prooflops_gate.statistics.simulated import least, most, pairs_of
from prooflops_gate.statistics.decision_rule import (
    Plan,
    decide,
    smallest_effect,
)


def alarms(plan, runs, seed):
    """The benchmarks that alarm among so many without a change, each with noise of 3 % and an
    outlier in twenty.
    """
    draw, count = np.random.default_rng(seed), 0
    pairs = plan.looks[-1] + plan.confirming_pairs
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, 0.02, (2, pairs)) + (draw.random((2, pairs)) < 0.05))
        count += decide(before, after, plan, 1e-9).verdict == "SLOWER"
    return count


@pytest.mark.parametrize(("benchmarks", "fewest"), [(1, 15), (64, 0)])
def test_the_whole_rule_alarms_no_more_often_than_planned(benchmarks, fewest):
    # At rates high enough to be seen, and a smallest effect that stops nothing.
    rates = {"alarm_rate": 0.04, "confirmation_level": 0.2}
    plan = Plan(benchmarks, looks=(8, 12, 16), confirming_pairs=8, **rates)
    got, allowed = alarms(plan, 1500, 6), most(0.04 / benchmarks, 1500)
    assert fewest <= got <= allowed


def test_a_change_as_large_as_the_limit_is_rarely_called_the_same():
    draw, plan, same, runs = np.random.default_rng(10), Plan(benchmarks=20, miss_rate=0.05), 0, 400
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, 0.015, (2, 50)))
        same += decide(before, after * 1.03, plan).verdict == "SAME"
    allowed = most(0.05, runs)
    assert same <= allowed


def spread_over(pairs, ratio, spread):
    return math.log(ratio) + spread * np.linspace(-1, 1, pairs)


@pytest.mark.parametrize(
    ("first", "fresh", "expected"),
    [
        ((1.10, 0.03), (1.10, 0.03), "SLOWER"),
        ((1.00, 0.03), (1.00, 0.03), "SAME"),
        # Surely slower, and surely by less than 3 %.
        ((1.02, 0.005), (1.02, 0.005), "SAME"),
        ((1.00, 0.30), (1.00, 0.30), "INCONCLUSIVE"),
        ((1.10, 0.90), (1.10, 0.90), "INCONCLUSIVE"),
        # A suspicion stands only if fresh pairs repeat it.
        ((1.2, 0), (1.08, 0.03), "SLOWER"),
        ((1.2, 0), (1.00, 0.03), "INCONCLUSIVE"),
        # It repeats at 2 % only, which is less than 3 %.
        ((1.2, 0), (1.02, 0.03), "INCONCLUSIVE"),
        ((1.2, 0), (1.08, 0.60), "INCONCLUSIVE"),
    ],
)
def test_verdicts(first, fresh, expected):
    logs = [*spread_over(32, *first), *spread_over(18, *fresh)]
    decision = decide(*pairs_of(logs), Plan(benchmarks=100, looks=(32,)))
    assert decision.verdict == expected
    assert decision.suspected or first != (1.2, 0)


@pytest.mark.parametrize(
    ("first", "fresh", "wanted", "verdict"),
    [
        (2.0, 2.0, 13, "SLOWER"),
        (1.1, 1.1, 16, "SLOWER"),
        # One slow stretch of the machine: the fresh pairs of a large change must be as large.
        (2.0, 1.1, 34, "SLOWER"),
        (2.0, 1.0, 32, "INCONCLUSIVE"),
    ],
)
def test_a_change_above_ten_times_the_smallest_ends_at_its_first_confirmation(
    first, fresh, wanted, verdict
):
    ratios = [first] * 8 + [fresh] * 26
    decision = decide([1.0] * 34, ratios, Plan(benchmarks=64))
    assert (decision.verdict, decision.wanted) == (verdict, wanted)


MIRRORED = {"SLOWER": "FASTER", "FASTER": "SLOWER"}


@pytest.mark.parametrize("smallest", [0.03, 0.3])
@given(change=st.floats(-0.7, 0.7), spread=st.floats(0, 0.3), seed=st.integers(0, 2**32))
def test_a_decision_is_mirrored_where_the_sides_change_places(smallest, change, spread, seed):
    before, after = pairs_of(change + spread * np.random.default_rng(seed).normal(size=50))
    plan = Plan(benchmarks=64)
    sides = (before, after), (after, before)
    one, other = (decide(*each, plan, smallest) for each in sides)
    words = [MIRRORED.get(word, word) for word in (one.verdict, one.suspected)]
    assert [other.verdict, other.suspected] == words
    assert (other.wanted, other.fresh) == (one.wanted, one.fresh)


@pytest.mark.parametrize("looks", [(8,), (8, 16, 24, 32), (10, 12, 40), tuple(range(8, 60, 2))])
@pytest.mark.parametrize("benchmarks", [1, 20, 300])
def test_the_looks_spend_the_screening_rate_and_no_more(looks, benchmarks):
    plan = Plan(benchmarks=benchmarks, looks=looks)
    spent = math.fsum(plan.level(look) for look in range(len(looks)))
    assert spent == pytest.approx(plan.screening_rate)
    plain = benchmarks * 0.5 ** (looks[0] + plan.plain_pairs) if plan.plain_pairs else 0.0
    total = spent * benchmarks * plan.confirmation_level + plain
    assert 0.009 <= total <= 0.01 + 1e-12
    missed = math.fsum(plan.miss_level(look) for look in range(len(looks)))
    assert missed == pytest.approx(0.05)


def test_spending_is_the_table_of_lan_and_demets():
    # O'Brien-Fleming type at one-sided 0.025 and five equal looks has boundaries 4.8769, 3.3569,
    # 2.6803, 2.2898, 2.0310 (Reboussin, DeMets, Kim, Lan, Controlled Clinical Trials 21 (2000)
    # 190); nothing is spent before the first.
    plan = Plan(
        benchmarks=1,
        looks=(1, 2, 3, 4, 5),
        alarm_rate=0.025,
        confirmation_level=1.0,
        confirming_pairs=1,
    )
    z = -float(ndtri(plan.level(0)))
    assert z == pytest.approx(4.8769, abs=0.0005)
    cumulative = [round(plan.spent(look), 5) for look in range(5)]
    assert cumulative == [0.0, 0.00039, 0.00381, 0.01221, 0.025]


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.2])
def test_the_smallest_effect_is_found_as_often_as_it_says(noise):
    plan, runs, found = Plan(benchmarks=20), 200, 0
    draw, slowdown = np.random.default_rng(13), 1 + smallest_effect(noise, plan, power=0.9)
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, noise / math.sqrt(2), (2, 50)))
        found += decide(before, after * slowdown, plan).verdict == "SLOWER"
    needed = least(0.9, runs)
    assert found >= needed
