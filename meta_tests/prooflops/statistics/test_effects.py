"""Effects: their intervals cover as often as they say, and outliers and drift do not move them.

Simulations have fixed seeds. A bound on a simulated rate is the rate that should hold plus what chance adds in so many
runs with a probability of one in a thousand (`most`), so another seed would pass as well.
"""

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from meta_tests.prooflops.statistics.simulated import most, pairs_of
from prooflops.statistics.effects import paired, unpaired
from prooflops.statistics.rank_tests import signed_rank_null


def test_no_change_at_all_is_evidence_for_neither_direction() -> None:
    for effect in (paired([1.0] * 9, [1.0] * 9, level=0.01), unpaired([1.0] * 9, [1.0] * 9, level=0.01, floor=0.0)):
        got = (effect.ratio, effect.p_slower, effect.p_faster)
        assert got == (1.0, 1.0, 1.0), f"ratio and p-values are {got}, but should all be 1 [{effect}]"


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
    shapes: dict[str, Callable[[], np.ndarray]] = {
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


def test_the_estimate_of_two_pairs_is_their_geometric_mean() -> None:
    assert paired([1.0, 1.0], [1.1, 1.3], level=0.01).ratio == pytest.approx(math.sqrt(1.1 * 1.3))


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


def test_where_the_drift_between_sessions_is_unknown_two_percent_are_assumed() -> None:
    b, a = [1.0, 1.01, 0.99, 1.02, 0.98], [1.1, 1.11, 1.09, 1.12, 1.08]
    effect, known = unpaired(b, a, level=0.01), unpaired(b, a, level=0.01, floor=0.0)
    assert effect.floor == 0.02
    assert (effect.low, effect.high) == pytest.approx((known.low / 1.02, known.high * 1.02))


@pytest.mark.parametrize("common", [1.0, 1.05, 0.95])
def test_the_interval_of_groups_at_its_own_level_is_that_which_is_printed(common: float) -> None:
    effect = unpaired([1.0, 1.01, 0.99, 1.02], [1.1, 1.11, 1.09, 1.12], level=0.02, floor=0.03, common=common)
    assert effect.interval(effect.level) == pytest.approx((effect.low, effect.high))
    low, high = effect.interval(effect.level, drift=False)
    margins = 1.03 * max(common, 1.0), 1.03 * max(1 / common, 1.0)
    assert (effect.low, effect.high) == pytest.approx((low / margins[0], high * margins[1]))


def test_effects_compare_and_print_by_their_figures() -> None:
    one = paired([1.0] * 4, [1.1, 1.2, 1.3, 1.4], level=0.1)
    signed_rank_null.cache_clear()
    assert one == paired([1.0] * 4, [1.1, 1.2, 1.3, 1.4], level=0.1)
    assert "array" not in repr(one)
    assert one.bounds(0.3) == (*one.interval(0.3), 0.3)
    low, high = one.interval(NormalDist().cdf(-1))  # one standard error to each side
    assert one.noise == pytest.approx(math.log(high / low) / 2 * math.sqrt(4 * 3 / math.pi))


def test_the_noise_of_groups_is_that_of_a_pair_however_large_each_is() -> None:
    draw = np.random.default_rng(15)
    sides = [(np.exp(draw.normal(0, 0.05, 20)), np.exp(draw.normal(0, 0.05, 80))) for _ in range(60)]
    for groups in (sides, [(after, before) for before, after in sides]):
        got = np.median([unpaired(before, after, level=0.01).noise for before, after in groups])
        assert got == pytest.approx(0.05 * math.sqrt(2), rel=0.1)


@pytest.mark.parametrize("noise", [0.03, 0.10])
def test_the_noise_of_normal_pairs_is_their_standard_deviation(noise: float) -> None:
    draw = np.random.default_rng(14)
    got = np.median([paired(*pairs_of(list(draw.normal(0, noise, 50))), level=0.01).noise for _ in range(60)])
    assert got == pytest.approx(noise, rel=0.1), f"noise={got:.4f}, but should be {noise}"


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


def test_a_machine_that_became_faster_does_not_make_anything_slower() -> None:
    draw = np.random.default_rng(17)
    before, after = np.exp(draw.normal(0, 0.01, (2, 12)))
    effect = unpaired(before, after, level=0.01, floor=0.0, common=0.9)
    assert effect.p_slower > 0.01, f"nothing became slower, however fast the rest is: {effect}"
    assert effect.p_faster == 1.0, f"what did not become faster is not faster: {effect}"


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
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
