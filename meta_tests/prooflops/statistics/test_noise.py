"""The one time of a process, the noise floor and the common shift: on simulated rounds and sessions of fixed seeds."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from meta_tests.prooflops.statistics.simulated import least, most
from prooflops.statistics.decision_rule import decide
from prooflops.statistics.effects import paired
from prooflops.statistics.noise import common_shift, location, noise_floor
from prooflops.statistics.plan import Plan


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


def test_the_noise_floor_covers_the_next_session() -> None:
    draw, runs, beyond = np.random.default_rng(15), 400, 0
    for _ in range(runs):
        levels = draw.normal(0, 0.02, 6)
        groups = [list(np.exp(level + draw.normal(0, 0.001, 5))) for level in levels]
        beyond += np.median(groups[5]) / np.exp(np.mean(levels[:5])) > 1 + noise_floor(groups[:5], level=0.05)
    assert least(0.05, runs) <= beyond <= most(0.05, runs), f"{beyond} of {runs} sessions were beyond their floor"
    assert noise_floor([[1.0, 1.1]]) == math.inf, "one session says nothing about the next"
    two = 6.3138 * math.log(1.1) / math.sqrt(2) * math.sqrt(1.5)  # t(1), the deviation of two, one session more
    assert noise_floor([[1.0], [1.1]], level=0.05) == pytest.approx(math.expm1(two), rel=1e-4)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: common_shift([[1.0]], []), "before and after should be the same benchmarks, but are 1 and 0"),
        (lambda: location([]), "rounds_s should be a non-empty sequence of times"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
