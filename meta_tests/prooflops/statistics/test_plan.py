"""A plan spends its error rates and no more, and its planning figures keep what they promise."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import ndtri

from meta_tests.prooflops.statistics.simulated import effect_of, least
from prooflops.statistics.decision_rule import decide
from prooflops.statistics.effects import UNKNOWN_FLOOR
from prooflops.statistics.plan import (
    ALARM_RATE,
    CONFIRMATION_LEVEL,
    CONFIRMING_PAIRS,
    FEWEST_PLAIN,
    LOOKS,
    MIN_EFFECT,
    PLAIN_SHARE,
    Plan,
    pairs_needed,
    smallest_effect,
)


@pytest.mark.parametrize("looks", [(8,), (8, 16, 24, 32), (10, 12, 40), tuple(range(8, 60, 2))])
@pytest.mark.parametrize("benchmarks", [1, 20, 300])
def test_the_looks_spend_the_screening_rate_and_no_more(looks: tuple[int, ...], benchmarks: int) -> None:
    plan = Plan(benchmarks=benchmarks, looks=looks)
    spent = math.fsum(plan.level(look) for look in range(len(looks)))
    assert spent == pytest.approx(plan.screening_rate), f"spent {spent}, but should spend {plan.screening_rate}"
    plain = benchmarks * 0.5 ** (looks[0] + plan.plain_pairs) if plan.plain_pairs else 0.0
    total = spent * benchmarks * plan.confirmation_level + plain
    assert 0.009 <= total <= 0.01 + 1e-12, f"a whole run may alarm at {total}, but should at 0.01 and not far below"
    missed = math.fsum(plan.miss_level(look) for look in range(len(looks)))
    assert missed == pytest.approx(0.05), f"misses add up to {missed}, but should to 0.05"


def test_spending_is_the_table_of_lan_and_demets() -> None:
    # O'Brien-Fleming type at one-sided 0.025 and five equal looks has boundaries 4.8769, 3.3569, 2.6803, 2.2898, 2.0310
    # (Reboussin, DeMets, Kim, Lan, Controlled Clinical Trials 21 (2000) 190); nothing is spent before the first.
    plan = Plan(benchmarks=1, looks=(1, 2, 3, 4, 5), alarm_rate=0.025, confirmation_level=1.0, confirming_pairs=1)
    z = -float(ndtri(plan.level(0)))
    assert z == pytest.approx(4.8769, abs=0.0005), f"the first boundary is {z:.4f}, but the table has 4.8769"
    cumulative = [round(plan.spent(look), 5) for look in range(5)]
    assert cumulative == [0.0, 0.00039, 0.00381, 0.01221, 0.025], f"spent {cumulative}"


def test_both_directions_share_the_alarm_rate() -> None:
    one, two = Plan(benchmarks=5), Plan(benchmarks=5, directions=2)
    assert two.screening_rate == one.screening_rate / 2, f"{two.screening_rate} should be half of {one.screening_rate}"


def test_history_counts_nothing_for_a_confirmation_that_shares_its_baseline() -> None:
    alone, shared = Plan(benchmarks=4), Plan(benchmarks=4, shared_baseline=True)
    assert shared.screening_rate == 0.01 / 4, f"{shared.screening_rate} should be the alarm rate over 4 benchmarks"
    assert alone.screening_rate == pytest.approx(0.18 / 4), (
        f"{alone.screening_rate} should be 0.9 of 0.01 / 0.05 over 4 benchmarks"
    )


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.07])
def test_the_smallest_effect_is_found_as_often_as_it_says(noise: float) -> None:
    plan, runs, found = Plan(benchmarks=20), 200, 0
    draw, slowdown = np.random.default_rng(13), 1 + smallest_effect(noise, plan, power=0.9)
    for _ in range(runs):
        before, after = np.exp(draw.normal(0, noise / math.sqrt(2), (2, 50)))
        found += decide(before, after * slowdown, plan).verdict == "SLOWER"
    needed = least(0.9, runs)
    assert found >= needed, f"found {found} of {runs} at {slowdown:.3f}x, but should find {needed}"


def test_more_noise_needs_more_pairs_by_its_square() -> None:
    plan = Plan(benchmarks=10)
    few, many = (pairs_needed(effect_of(1.0, spread), plan) for spread in (0.2, 0.4))
    assert many == pytest.approx(4 * few, rel=0.05), f"twice the noise needs {many} pairs instead of {few}"


def test_the_figures_of_the_plan_are_those_that_the_documents_state() -> None:
    plan = Plan(benchmarks=1)
    assert (LOOKS, CONFIRMING_PAIRS, FEWEST_PLAIN, plan.miss_rate) == ((8, 16, 24, 32), 18, 5, 0.05)
    assert (CONFIRMATION_LEVEL, ALARM_RATE, MIN_EFFECT, PLAIN_SHARE, UNKNOWN_FLOOR) == (0.05, 0.01, 0.03, 0.1, 0.02)
    assert Plan(benchmarks=1, alarm_rate=0.4, confirmation_level=0.5).screening_rate == 0.4, "a level stays below 1/2"
    assert Plan(benchmarks=1, looks=(8,), confirming_pairs=5).plain_pairs == 0, "the longer way is as short"
    assert Plan(benchmarks=1, looks=(8,), confirming_pairs=6).plain_pairs == 5
    assert Plan(benchmarks=32, directions=2).plain_pairs == Plan(benchmarks=64).plain_pairs == 8


@pytest.mark.parametrize(
    ("ratio", "distance"),
    [(1.0, math.log(1.03)), (1 / 1.02, math.log(1.03 / 1.02)), (1.0299999, math.log(1.03) / 10), (1.1, math.log(1.1))],
)
def test_the_pairs_needed_are_those_of_a_normal_test_at_the_last_look(ratio: float, distance: float) -> None:
    plan = Plan(benchmarks=10)
    effect = replace(effect_of(1.0, 0.2), ratio=ratio, noise=0.5)
    level = plan.level(3) if ratio > 1.03 else plan.miss_level(3)
    expected = (NormalDist().inv_cdf(1 - level) * 0.5 / distance) ** 2 * math.pi / 3
    assert pairs_needed(effect, plan) == math.ceil(expected)
    signs = math.ceil(math.log2(1 / level))
    assert (pairs_needed(replace(effect, noise=0.0), plan), 2 ** (1 - signs) > level) == (signs, True)
    assert pairs_needed(replace(effect, noise=math.inf), plan) == 32
    one = Plan(benchmarks=10, looks=(1,))
    fewest = math.ceil(-math.log2(one.level(0) if ratio > 1.03 else one.miss_level(0)))
    assert pairs_needed(replace(effect, noise=math.inf), one) == fewest > 1


@pytest.mark.parametrize("noise", [0.001, 0.05, 0.3])
@pytest.mark.parametrize(("confirming", "level"), [(18, 0.05), (6, 0.05), (18, 0.6), (40, 0.05)])
def test_the_smallest_effect_passes_the_look_the_confirmation_and_the_limit(
    noise: float, confirming: int, level: float
) -> None:
    plan = Plan(benchmarks=20, confirming_pairs=confirming, confirmation_level=level)
    z, each = NormalDist().inv_cdf, NormalDist().inv_cdf(1 - 0.05 / 3)

    def seen_by(tail: float, pairs: int) -> float:
        return (z(1 - tail) + each) * noise / math.sqrt(pairs * 3 / math.pi)

    bounds = [seen_by(plan.level(3), 32), math.log(1.03) + seen_by(0.5, min(32, confirming))]
    bounds += [seen_by(level, confirming)] if level < 0.5 else []
    assert smallest_effect(noise, plan) == pytest.approx(math.exp(max(bounds)) - 1, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Plan(benchmarks=1, looks=()), r"looks should be increasing numbers of pairs, but are \(\)"),
        (lambda: Plan(benchmarks=1, miss_rate=0.5), "miss_rate should lie between 0 and 0.5, but is 0.5"),
        (lambda: Plan(benchmarks=1, alarm_rate=0.0), "alarm_rate should lie between 0 and 0.5, but is 0.0"),
        (lambda: Plan(benchmarks=1, confirmation_level=1.1), "confirmation_level should lie between alarm_rate"),
        (lambda: Plan(benchmarks=0), "benchmarks should be 1 or more, but is 0"),
        (lambda: Plan(benchmarks=1, looks=(8, 8)), r"looks should be increasing numbers of pairs, but are \(8, 8\)"),
        (lambda: Plan(benchmarks=1, alarm_rate=0.6), "alarm_rate should lie between 0 and 0.5, but is 0.6"),
        (lambda: Plan(benchmarks=1, confirmation_level=0.001), "confirmation_level should lie between alarm_rate"),
        (lambda: Plan(benchmarks=1, directions=3), "directions should be 1 or 2, but is 3"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
