"""How long each benchmark runs in a process, and what the budget allows."""

from dataclasses import replace
from pathlib import Path

import pytest

from meta_tests.prooflops.gate.without_processes import EVEN, PLAIN, UNEVEN, effect
from prooflops.gate import process_plan
from prooflops.gate.decisions import replicate_plan
from prooflops.gate.process_plan import (
    FIRST,
    LEAST_S,
    MOST_S,
    NOISY,
    USUAL_S,
    Cost,
    ProcessPlan,
    is_noisy,
    is_plain,
    paces,
    plan_of,
)
from prooflops.gate.processes import Replicate, Side
from prooflops.statistics.plan import Plan


def plan(costs: dict[str, Cost], besides_s: float = 2.0, budget_s: float = 600.0) -> ProcessPlan:
    return ProcessPlan(costs, besides_s, pairs=8, most_pairs=34, budget_s=budget_s)


MICROSECONDS = {f"test_{number}": Cost(0.06, paced=True) for number in range(64)}


def test_microseconds_take_a_hundredth_of_a_second_each_and_less_where_there_are_many() -> None:
    assert plan(MICROSECONDS).each_s(list(MICROSECONDS), 600, 33) == USUAL_S
    process_s = plan(MICROSECONDS).process_s(list(MICROSECONDS), 0.0075)
    assert plan(MICROSECONDS).each_s(list(MICROSECONDS), 2 * 10 * process_s, 10) == pytest.approx(0.0075), "what fits"
    many = {f"test_{number}": Cost(0.06, paced=True) for number in range(500)}
    assert plan(many).each_s(list(many), 600, 33) == LEAST_S
    assert plan(many).each_s(list(many)[:3], 600, 33, MOST_S) == MOST_S  # the few that are open have all the time


def test_few_benchmarks_take_half_as_long_together_as_the_process_besides() -> None:
    few = {name: Cost(0.06, paced=True) for name in ("a", "b", "c", "d")}
    assert plan(few, besides_s=0.4).usual_s(list(few)) == 0.05
    assert plan(few, besides_s=9.0).usual_s(list(few)) == MOST_S
    assert plan(MICROSECONDS, besides_s=0.4).usual_s(list(MICROSECONDS)) == USUAL_S
    long = {"a": Cost(9.0, paced=False)}
    assert plan(long, besides_s=0.2).usual_s(list(long)) == 0.1, "one that is not paced should count for none"


def test_another_pace_changes_what_is_paced_and_nothing_else() -> None:
    assert (Cost(0.06, paced=True).at(0.1), Cost(0.01, paced=True).at(0.1)) == (pytest.approx(0.15), 0.1)
    assert Cost(9.0, paced=False).at(0.1) == 9.0
    assert Cost(0.06, paced=True, enough_s=0.008).at(LEAST_S) == pytest.approx(0.058)
    assert Cost(0.06, paced=True, enough_s=0.008).at(0.02) == pytest.approx(0.07)
    assert Cost(0.5, paced=False, enough_s=0.12).at(LEAST_S) == pytest.approx(0.59), "three of the twelve it had before"
    assert [Cost(1.0, paced, enough).gains for paced, enough in ((True, 0.0), (False, 0.1), (False, 0.0))] == [
        True, True, False
    ]  # fmt: skip
    chosen = (LEAST_S, USUAL_S, MOST_S, NOISY, process_plan.PLAIN, process_plan.SHARE, process_plan.ENOUGH)
    assert chosen == (0.005, 0.01, 0.2, 0.02, 10, 0.5, 12), "the documents speak of these"


def test_a_benchmark_without_a_time_of_its_own_has_the_usual_one() -> None:
    assert paces(USUAL_S, {"noisy": MOST_S}) == {
        "": {"max_time": USUAL_S, "min_rounds": 3},
        "noisy": {"max_time": MOST_S, "min_rounds": 3},
    }
    assert paces(0.123456, {})[""]["max_time"] == 0.1235
    assert paces(0.01, {}) == FIRST
    assert paces(USUAL_S, {})[""], "before any noise is known, pytest-benchmark would take its second"


@pytest.mark.parametrize(
    ("ratios", "plain", "noisy"),
    [
        (PLAIN, True, False),
        (PLAIN[:3], True, False),
        (PLAIN[:2], False, False),  # two pairs know no noise
        ([1.9, 2.5, 1.4, 2.2, 3.1, 1.7, 2.7, 2.0], False, True),
        ([0.7, 1.4] * 4, False, False),  # so regular that no noise is seen, but not every pair shows it
        (EVEN, False, False),
        (UNEVEN, False, True),
        (UNEVEN[:7], False, False),
    ],
)
def test_more_time_is_for_what_is_noisy_and_not_plain(ratios: list[float], plain: bool, noisy: bool) -> None:
    found = effect(ratios)
    assert (is_plain(found), is_noisy(found, 8)) == (plain, noisy), found.noise


def test_the_sentence_says_what_was_chosen_and_how_long_it_takes() -> None:
    said = plan(MICROSECONDS).sentence(USUAL_S, [])
    assert "64 benchmarks (0.01 s a benchmark and process; 2.0 s a process besides)" in said
    assert "about 1 min 33 s for 8 pairs, 6 min 37 s at most" in said  # 16 processes of 2 s and 64 x 0.06 s
    mixed = plan(MICROSECONDS | {"test_long": Cost(1.5, paced=False)}).sentence(USUAL_S, [])
    assert "1 by their own rounds" in mixed
    few = replace(plan(MICROSECONDS), pairs=3, decides=False).sentence(USUAL_S, [])
    assert few.endswith("for 3 pairs, which decide nothing, whatever they show: leave out --gate-replicates"), few
    assert plan(MICROSECONDS | {"test_long": Cost(99.0, paced=False)}).sentence(USUAL_S, ["test_long"]) == said


def test_a_budget_too_small_for_the_first_look_is_said_with_what_is_enough() -> None:
    small = plan({"a": Cost(0.06, paced=True)}, besides_s=5.0, budget_s=30.0)
    assert not small.fits(["a"])
    said = small.sentence(LEAST_S, [])
    assert "No more than 2 pairs fit into 30 s, and fewer than 8 decide nothing: give --gate-budget 2" in said
    assert plan(small.costs, 5.0, 120.0).fits(["a"]), "what was advised is not enough"
    assert plan({"a": Cost(1.0, paced=False)}, besides_s=1.0, budget_s=32.0).fits(["a"]), "16 processes of 2 s fill it"
    hour = {"a": Cost(599.0, paced=False)}
    assert plan(hour, besides_s=1.0).minutes_for(["a"]) == 193, "1.2 times 16 processes of 10 min, and a minute"


def test_a_benchmark_that_is_too_long_leaves_the_others_their_pairs() -> None:
    costs = {**MICROSECONDS, "test_long": Cost(60.0, paced=False), "test_second": Cost(1.0, paced=False)}
    assert plan(costs).too_long() == ["test_long"]
    assert plan(MICROSECONDS).too_long() == []
    exact = {"a": Cost(1.0, paced=False), "b": Cost(2.0, paced=False)}
    assert plan(exact, besides_s=1.0, budget_s=64.0).too_long() == [], "16 processes of 4 s fill the budget"
    assert plan(exact, besides_s=1.0, budget_s=63.9).too_long() == ["b"]
    assert plan({"a": Cost(60.0, paced=False)}).too_long() == [], "nothing would be left"


@pytest.mark.parametrize(
    ("round_s", "fixed", "paced", "enough_s"),
    [
        (1e-6, False, True, 12e-6),
        (1e-6, True, False, 0.0),
        (USUAL_S / 3, False, False, 0.04),
        (MOST_S / 12, False, False, MOST_S),
        (MOST_S / 11, False, False, 0.0),
    ],
)
def test_what_the_first_pair_took_is_divided_into_the_benchmarks_and_the_rest(
    round_s: float, fixed: bool, paced: bool, enough_s: float
) -> None:
    calls = {"a": {"seconds": 2.0, "once_s": 7.0, "fixed": fixed}}
    # The first compiles the modules of a new checkout, which no later process does.
    first, second = (Replicate(Side("a", "python", Path()), {}, "", {}, [], calls, wall_s) for wall_s in (13.0, 12.0))
    found = plan_of(first, second, {"a": round_s}, Plan(benchmarks=1), 600.0)
    assert found.costs == {"a": Cost(2.0, paced, pytest.approx(enough_s))}  # type: ignore[arg-type]
    assert (found.besides_s, found.pairs, found.most_pairs) == (3.0, 8, 34)
    assert [plan_of(first, second, {}, replicate_plan(64, most=most), 600.0).decides for most in (4, 5, None)] == [
        False, True, True
    ]  # fmt: skip
    alone = Replicate(Side("a", "python", Path()), {}, "", {}, [], {}, 1.0)
    assert plan_of(alone, second, {"a": round_s}, Plan(benchmarks=1), 600.0).costs["a"].call_s == 2.0, "one side's"
