"""The gate's statistics: exact by enumeration, at their rates by simulation, and each guard shown to matter.

Simulations have fixed seeds. A bound on a simulated rate is the rate that should hold plus what chance adds in so many
runs with a probability of one in a thousand (`most`), so another seed would pass as well.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import binom, mannwhitneyu, wilcoxon

from prooflops.statistics import effects as statistics
from prooflops.statistics.effects import (
    Effect,
    Plan,
    common_shift,
    confirmed,
    decide,
    location,
    noise_floor,
    paired,
    pairs_needed,
    smallest_effect,
    unpaired,
    verdict,
)

Array = np.ndarray


def most(rate: float, runs: int) -> int:
    """The events that so many runs at `rate` exceed once in a thousand times."""
    return int(binom.isf(0.001, runs, rate))


def least(rate: float, runs: int) -> int:
    """The events that so many runs at `rate` fall short of once in a thousand times."""
    return int(binom.ppf(0.001, runs, rate))


def pairs_of(logs: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sides whose pairs have these log ratios."""
    return [1.0] * len(logs), [math.exp(log) for log in logs]


# Exactness, by enumeration


@pytest.mark.parametrize("sizes", [(3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0, 8.0), (0.1, 90.0, 2.0, 0.3, 5.0, 4.0, 60.0)])
def test_under_every_exchange_of_sides_a_p_value_is_as_rare_as_it_says(sizes: tuple[float, ...]) -> None:
    levels = [0.01, 0.05, 0.1, 0.25, 0.5]
    signs = list(itertools.product((-1, 1), repeat=len(sizes)))
    p = [paired(*pairs_of([s * 0.01 * x for s, x in zip(sign, sizes, strict=True)]), level=0.1) for sign in signs]
    for level in levels:
        for side in ("p_slower", "p_faster"):
            share = sum(getattr(effect, side) <= level for effect in p) / len(signs)
            assert share <= level, (
                f"{side} <= {level} in {share:.4f} of all exchanges, but should be in {level} at most"
            )
    attained = {effect.p_slower for effect in p}
    for level in attained:
        share = sum(effect.p_slower <= level for effect in p) / len(signs)
        assert share == pytest.approx(level), f"p_slower <= {level} in {share} of all exchanges, but should be exact"


def test_under_every_division_of_the_processes_a_p_value_is_as_rare_as_it_says() -> None:
    times = [1.0, 1.01, 1.03, 1.07, 1.2, 1.31, 1.42, 3.0, 9.0]
    divisions = list(itertools.combinations(range(9), 4))
    effects = [
        unpaired([times[i] for i in mine], [times[i] for i in range(9) if i not in mine], level=0.1, floor=0.0)
        for mine in divisions
    ]
    for level in {effect.p_slower for effect in effects}:
        share = sum(effect.p_slower <= level for effect in effects) / len(divisions)
        assert share == pytest.approx(level), f"p_slower <= {level} in {share} of all divisions, but should be exact"


def test_no_change_at_all_is_evidence_for_neither_direction() -> None:
    for effect in (paired([1.0] * 9, [1.0] * 9, level=0.01), unpaired([1.0] * 9, [1.0] * 9, level=0.01, floor=0.0)):
        got = (effect.ratio, effect.p_slower, effect.p_faster)
        assert got == (1.0, 1.0, 1.0), f"ratio and p-values are {got}, but should all be 1 [{effect}]"


@pytest.mark.parametrize("n", [5, 9, 16, 33, 48])
def test_p_values_of_pairs_are_scipys(n: int) -> None:
    logs = np.random.default_rng(n).normal(0.01, 0.03, n)
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(paired(*pairs_of(list(logs)), level=0.01), side)
        expected = wilcoxon(logs, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9), f"{side}={got}, but scipy has {expected} [{n=}]"


@pytest.mark.parametrize(("n", "m"), [(3, 5), (7, 7), (10, 12), (25, 20)])
def test_p_values_of_groups_are_scipys(n: int, m: int) -> None:
    draw = np.random.default_rng(n)
    before, after = draw.lognormal(0, 0.05, n), draw.lognormal(0.02, 0.05, m)
    for side, alternative in (("p_slower", "greater"), ("p_faster", "less")):
        got = getattr(unpaired(list(before), list(after), level=0.01, floor=0.0), side)
        expected = mannwhitneyu(after, before, alternative=alternative, method="exact").pvalue
        assert got == pytest.approx(expected, rel=1e-9), f"{side}={got}, but scipy has {expected} [{n=}, {m=}]"


# Intervals


@pytest.mark.parametrize("level", [0.2, 0.05, 0.01, 0.0005])
def test_an_interval_excludes_1_exactly_where_the_p_value_says_so(level: float) -> None:
    draw = np.random.default_rng(2)
    for shift in np.linspace(-0.1, 0.1, 41):
        logs = list(draw.normal(shift, 0.05, 14))
        drawn = [math.exp(x) for x in logs]
        for effect in (
            paired(*pairs_of(logs), level=level),
            unpaired([1.01, 0.97, 1.02, 1.0, 0.99], drawn, level=level, floor=0.01),
            unpaired([1.01, 0.97, 1.02, 1.0, 0.99], drawn, level=level, floor=0.0, common=1.02),
            unpaired([1.01, 0.97, 1.02, 1.0, 0.99], drawn, level=level, floor=0.01, common=0.98),
        ):
            excluded = (effect.low > 1, effect.high < 1)
            significant = (effect.p_slower <= level, effect.p_faster <= level)
            assert excluded == significant, (
                f"the interval excludes {excluded}, but p-values say {significant} [{effect}]"
            )


@pytest.mark.parametrize("noise", ["normal", "outliers", "bimodal", "skewed"])
def test_intervals_of_pairs_cover_the_truth_as_often_as_they_say(noise: str) -> None:
    draw, runs, level, n = np.random.default_rng(3), 600, 0.05, 16
    shapes: dict[str, Callable[[], Array]] = {
        "normal": lambda: draw.normal(0, 0.03, n),
        "outliers": lambda: draw.normal(0, 0.03, n) + (draw.random(n) < 0.1) * draw.exponential(2, n),
        "bimodal": lambda: draw.normal(0, 0.01, n) + 0.3 * draw.integers(2, size=n),
        "skewed": lambda: draw.exponential(0.05, n),
    }
    side, above, below = shapes[noise], 0, 0
    for _ in range(runs):
        effect = paired(list(np.exp(side())), list(1.05 * np.exp(side())), level=level)
        above += effect.low > 1.05
        below += effect.high < 1.05
    allowed = most(level, runs)
    assert max(above, below) <= allowed, f"the bounds erred {above} and {below} times, but should at most {allowed}"


def test_a_lower_level_widens_the_interval_until_nothing_is_left_to_say() -> None:
    effect = paired(*pairs_of([0.04, 0.05, 0.06, 0.045, 0.055, 0.03, 0.07, 0.05]), level=0.01)
    widths = [effect.interval(level) for level in (0.3, 0.1, 0.02, 0.004)]
    for (low, high), (lower, higher) in itertools.pairwise(widths):
        assert lower <= low, f"the bound rose from {low} to {lower} at a lower level"
        assert higher >= high, f"the bound fell from {high} to {higher} at a lower level"
    assert effect.interval(0.0038) == (0.0, math.inf), "8 pairs cannot reach a level below 1/256"


# Robustness


def test_the_estimate_stays_where_a_quarter_of_the_pairs_goes_astray() -> None:
    draw = np.random.default_rng(4)
    logs = list(draw.normal(math.log(1.05), 0.02, 24))
    for i in range(6):
        logs[i] = draw.uniform(1, 3)
    ratio, mean = paired(*pairs_of(logs), level=0.01).ratio, math.exp(float(np.mean(logs)))
    assert 1.03 < ratio < 1.09, f"the estimate went to {ratio:.3f}, but should stay near 1.05"
    assert mean > 1.4, f"the mean should have gone astray, or this test shows nothing: it is {mean:.3f}"


def test_drift_cancels_within_abba_and_not_without() -> None:
    drift = 0.01 * np.arange(64)  # each process takes 1 % longer than the one before
    quads = np.arange(64).reshape(-1, 4)
    abba = (drift[quads[:, [0, 3]]].ravel(), drift[quads[:, [1, 2]]].ravel())
    abab = (drift[quads[:, [0, 2]]].ravel(), drift[quads[:, [1, 3]]].ravel())
    ratios = [paired(list(np.exp(b)), list(np.exp(a)), level=0.01) for b, a in (abba, abab)]
    assert ratios[0].ratio == pytest.approx(1), f"ABBA should cancel the drift, but has {ratios[0]}"
    assert ratios[1].p_slower < 1e-6, f"ABAB should take drift for a slowdown, or this test shows nothing: {ratios[1]}"


def test_a_process_contributes_its_fastest_round_not_its_mean() -> None:
    rounds = [1.02, 1.0, 1.01, 1.0, 40.0]
    assert location(rounds) == 1.0, f"location={location(rounds)}, but should be 1.0: one interruption says nothing"


def test_the_location_finds_what_the_mean_would_miss_among_interruptions() -> None:
    def found(figure: Callable[[list[float]], float]) -> int:
        draw, hits = np.random.default_rng(5), 0
        for _ in range(60):
            rounds = np.exp(draw.normal(0, 0.01, (2, 16, 30))) * (1 + 4 * (draw.random((2, 16, 30)) < 0.03))
            rounds[1] *= 1.05
            figures = [[figure(list(process)) for process in side] for side in rounds]
            effect = paired(figures[0], figures[1], level=0.01)
            hits += effect.p_slower <= 0.01
        return hits

    by_location, by_mean = found(location), found(lambda rounds: sum(rounds) / len(rounds))
    assert by_location == 60, f"the location found {by_location} of 60 slowdowns of 5 %, but should find all"
    assert by_mean < 45, f"the mean found {by_mean} of 60: the rounds are too calm for this test to show anything"


# The plan


@pytest.mark.parametrize("looks", [(8,), (8, 16, 24, 32), (10, 12, 40), tuple(range(8, 60, 2))])
@pytest.mark.parametrize("benchmarks", [1, 20, 300])
def test_the_looks_spend_the_screening_rate_and_no_more(looks: tuple[int, ...], benchmarks: int) -> None:
    plan = Plan(benchmarks=benchmarks, looks=looks)
    spent = math.fsum(plan.level(look) for look in range(len(looks)))
    assert spent == pytest.approx(plan.screening_rate), f"spent {spent}, but should spend {plan.screening_rate}"
    total = spent * benchmarks * plan.confirmation_level
    assert total == pytest.approx(0.01), f"a whole run may alarm at {total}, but should at 0.01"
    missed = math.fsum(plan.miss_level(look) for look in range(len(looks)))
    assert missed == pytest.approx(plan.miss_rate), f"misses add up to {missed}, but should to {plan.miss_rate}"


def test_spending_is_the_table_of_lan_and_demets() -> None:
    # O'Brien-Fleming type at one-sided 0.025 and five equal looks has boundaries 4.8769, 3.3569, 2.6803, 2.2898, 2.0310
    # (Reboussin, DeMets, Kim, Lan, Controlled Clinical Trials 21 (2000) 190); nothing is spent before the first.
    plan = Plan(benchmarks=1, looks=(1, 2, 3, 4, 5), alarm_rate=0.025, confirmation_level=1.0)
    z = -float(statistics.ndtri(plan.level(0)))
    assert z == pytest.approx(4.8769, abs=0.0005), f"the first boundary is {z:.4f}, but the table has 4.8769"
    cumulative = [round(plan.spent(look), 5) for look in range(5)]
    assert cumulative == [0.0, 0.00039, 0.00381, 0.01221, 0.025], f"spent {cumulative}"


def test_both_directions_share_the_alarm_rate() -> None:
    one, two = Plan(benchmarks=5), Plan(benchmarks=5, directions=2)
    assert two.screening_rate == one.screening_rate / 2, f"{two.screening_rate} should be half of {one.screening_rate}"


# Rates of the whole rule, by simulation


def alarms(plan: Plan, runs: int, seed: int, *, decide_run: Callable[[Array, Array], bool] | None = None) -> int:
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

    def uncorrected(before: Array, after: Array) -> bool:
        return any(paired(before[:n], after[:n], level=0.05).p_slower <= 0.05 for n in plan.looks)

    def corrected(before: Array, after: Array) -> bool:
        return any(
            paired(before[:n], after[:n], level=0.05).p_slower <= plan.level(look) for look, n in enumerate(plan.looks)
        )

    allowed = most(0.05, 500)
    forgetful, careful = (alarms(plan, 500, 7, decide_run=rule) for rule in (uncorrected, corrected))
    assert careful <= allowed, f"{careful} of 500 alarmed over 8 looks, but at most {allowed} should"
    assert forgetful > allowed, f"{forgetful} of 500 alarmed uncorrected: too few for this test to notice the fault"


def test_neighbouring_groups_alarm_under_drift_where_shuffled_ones_do_not() -> None:
    draw, neighbours, shuffled, floored = np.random.default_rng(8), 0, 0, 0
    for _ in range(200):
        drift = np.cumsum(draw.normal(0, 0.005, 20))
        times = np.exp(drift + draw.normal(0, 0.01, 20))
        neighbours += unpaired(times[:10], times[10:], level=0.01, floor=0.0).p_slower <= 0.01
        floored += unpaired(times[:10], times[10:], level=0.01, floor=0.05).p_slower <= 0.01
        mixed = draw.permutation(times)
        shuffled += unpaired(mixed[:10], mixed[10:], level=0.01, floor=0.0).p_slower <= 0.01
    allowed = most(0.01, 200)
    assert shuffled <= allowed, f"{shuffled} of 200 shuffled comparisons alarmed, but at most {allowed} should"
    assert neighbours > 2 * allowed, f"{neighbours} of 200 neighbours alarmed: too little drift to show anything"
    assert floored <= allowed, f"{floored} of 200 alarmed beyond a floor of 5 %, but at most {allowed} should"


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


# Verdicts


def effect_of(ratio: float, spread: float, n: int = 32, level: float = 0.001) -> Effect:
    logs = math.log(ratio) + spread * np.linspace(-1, 1, n)
    return paired(*pairs_of(list(logs)), level=level)


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


# Planning figures


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


@pytest.mark.parametrize("noise", [0.03, 0.10])
def test_the_noise_of_normal_pairs_is_their_standard_deviation(noise: float) -> None:
    draw = np.random.default_rng(14)
    got = np.median([paired(*pairs_of(list(draw.normal(0, noise, 50))), level=0.01).noise for _ in range(60)])
    assert got == pytest.approx(noise, rel=0.1), f"noise={got:.4f}, but should be {noise}"


def test_the_noise_floor_covers_the_next_sitting() -> None:
    draw, runs, beyond = np.random.default_rng(15), 400, 0
    for _ in range(runs):
        levels = draw.normal(0, 0.02, 6)
        groups = [list(np.exp(level + draw.normal(0, 0.001, 5))) for level in levels]
        beyond += np.median(groups[5]) / np.exp(np.mean(levels[:5])) > 1 + noise_floor(groups[:5], level=0.05)
    assert least(0.05, runs) <= beyond <= most(0.05, runs), f"{beyond} of {runs} sittings were beyond their floor"
    assert noise_floor([[1.0, 1.1]]) == math.inf, "one sitting says nothing about the next"


def test_what_all_benchmarks_do_together_is_not_held_against_one() -> None:
    draw, plan = np.random.default_rng(16), Plan(benchmarks=8, looks=(10,), confirming_pairs=10, shared_baseline=True)
    before = np.exp(draw.normal(0, 0.01, (8, 10)))
    after = np.exp(draw.normal(0, 0.01, (8, 20))) * 1.08
    after[0] *= 1.10
    common = common_shift(list(before), list(after))
    assert common == pytest.approx(1.08, abs=0.01), f"the common shift is {common}, but 1.08 was planted"
    with_it = [decide(b, a, plan, floor=0.02, common=common).verdict for b, a in zip(before, after, strict=True)]
    without = [decide(b, a, plan, floor=0.02).verdict for b, a in zip(before, after, strict=True)]
    assert with_it == ["SLOWER"] + ["INCONCLUSIVE"] * 7, f"only the first changed, but the verdicts are {with_it}"
    assert without == ["SLOWER"] * 8, f"without the common shift all should alarm, but are {without}"
    assert common_shift(list(before[:4]), list(after[:4])) == 1.0, "four benchmarks are too few for a common shift"


def test_a_machine_that_became_faster_does_not_make_anything_slower() -> None:
    draw = np.random.default_rng(17)
    before, after = np.exp(draw.normal(0, 0.01, (2, 12)))
    effect = unpaired(before, after, level=0.01, floor=0.0, common=0.9)
    assert effect.p_slower > 0.01, f"nothing became slower, however fast the rest is: {effect}"
    assert effect.p_faster == 1.0, f"what did not become faster is not faster: {effect}"


def test_history_counts_nothing_for_a_confirmation_that_shares_its_baseline() -> None:
    alone, shared = Plan(benchmarks=4), Plan(benchmarks=4, shared_baseline=True)
    assert shared.screening_rate == 0.01 / 4, f"{shared.screening_rate} should be the alarm rate over 4 benchmarks"
    assert alone.screening_rate == pytest.approx(0.2 / 4), (
        f"{alone.screening_rate} should be 0.01 / 0.05 over 4 benchmarks"
    )


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired([1.0], [1.0, 2.0], level=0.1), "before and after should be pairs, but hold 1 and 2 times"),
        (lambda: paired([], [], level=0.1), "before should be a non-empty sequence of times"),
        (lambda: paired([1.0], [0.0], level=0.1), "after should hold positive, finite times, but holds 0.0"),
        (lambda: paired([math.nan], [1.0], level=0.1), "before should hold positive, finite times, but holds nan"),
        (lambda: paired([1.0], [1.0], level=0.5), "level should lie between 0 and 0.5, but is 0.5"),
        (lambda: unpaired([1.0], [1.0], level=0.1, floor=-1), "floor should be a fraction of 0 or more, but is -1"),
        (
            lambda: unpaired([1.0], [1.0], level=0.1, common=0.0),
            "common should be a positive, finite ratio, but is 0.0",
        ),
        (lambda: common_shift([[1.0]], []), "before and after should be the same benchmarks, but are 1 and 0"),
        (lambda: location([]), "rounds_s should be a non-empty sequence of times"),
        (lambda: Plan(benchmarks=0), "benchmarks should be 1 or more, but is 0"),
        (lambda: Plan(benchmarks=1, looks=(8, 8)), r"looks should be increasing numbers of pairs, but are \(8, 8\)"),
        (lambda: Plan(benchmarks=1, alarm_rate=0.6), "alarm_rate should lie between 0 and 0.5, but is 0.6"),
        (lambda: Plan(benchmarks=1, confirmation_level=0.001), "confirmation_level should lie between alarm_rate"),
        (lambda: Plan(benchmarks=1, directions=3), "directions should be 1 or 2, but is 3"),
        (lambda: decide([1.0], [1.0], Plan(benchmarks=1)), "the first look takes 8 pairs"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
