"""Times, on pairs that are made up: how many are taken, and when it ends."""

import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.pace import LEAST_S, MOST_S, Cost, PacePlan
from prooflops_gate.instruments.time_rule import TimeRule, plan_for
from prooflops_gate.instruments.times import UNSYNCHRONISED, Times
from prooflops_gate.loop import exhaust
from prooflops_gate.statistics.effects import paired

# The times of a benchmark's pair, by its number.


def timed(time_s, slowness=1.0):
    contended = "beside others" if slowness > 1 else ""
    return Timed(time_s, {}, contended=contended, slowness=slowness)


class Run:
    """Times of `names`, in which `made` says what each pair measures, and which takes no time."""

    def __init__(self, made, names="a", budget_s=600.0, **rest):
        self.made, self.names = made, names
        self.asked = []
        rule = rest.pop("rule", TimeRule(plan_for(len(names))))
        self.times = Times(names, rule, time.monotonic() + budget_s, **rest)

    def take(self, task):
        self.asked.append(task)
        return self.measured(task.tests or (), len(self.asked))

    def measured(self, names, number):
        pairs = {name: self.made(name, number) for name in names}
        return Measured(None, pairs)  # type: ignore[arg-type]

    def run(self, took_s=0.0):
        self.times.measure(self.measured(self.names, 0), took_s)
        exhaust(self.times, self.take, lambda line: None)
        return {row.name: row for row in self.times.decide().rows}


@pytest.mark.parametrize(("looks", "seen"), [(0, 3), (1, 8), (2, 16)])
def test_times_wait_after_their_looks_until_they_go_on(looks, seen):
    """Between them instructions may decide: noise leaves open whether "noisy" got slower."""
    draw = random.Random(1)
    ratios = {"same": 1.0, "twice": 2.0, "noisy": 1.0, "settled": 1.0}

    def made(name, number):
        is_noisy = name in ("noisy", "settled")
        noise = draw.lognormvariate(0, 0.2) if is_noisy else 1 + number % 3 / 1000
        return timed(1.0), timed(ratios[name] * noise)

    plan = PacePlan(dict.fromkeys(ratios, Cost(0.01)), 1.0, 8, 34, 600.0, 600.0)
    run = Run(made, list(ratios), plan=plan)
    run.times.wait_at(time.monotonic() + 600.0, looks, ratios)
    run.run()
    taken = {name: len(run.times.sides[name][1]) for name in ratios}
    assert taken == {"same": min(seen, 8), "twice": 13, "noisy": seen, "settled": seen}
    run.times.go_on({"settled"}, plan, look=8)
    exhaust(run.times, run.take, lambda line: None)
    verdicts = {row.name: row.verdict for row in run.times.decide().rows}
    left = dict.fromkeys(("noisy", "settled"), "INCONCLUSIVE")
    assert verdicts == {"same": "SAME", "twice": "SLOWER", **left}
    taken = {name: len(run.times.sides[name][1]) for name in ratios}
    assert taken == {"same": 8, "twice": 13, "noisy": 32, "settled": max(seen, 8)}


def test_what_instructions_settle_first_has_a_look_at_times_which_alone_show_waiting():
    """A wait that doubles a time takes no instructions; noise takes no further pairs."""
    draw = random.Random(1)
    run = Run(
        lambda name, _: (timed(1.0), timed((1 + (name == "waits")) * draw.lognormvariate(0, 0.2))),
        ["waits", "noisy"],
        rule=TimeRule(plan_for(2), settled=("waits", "noisy"), look=8),
    )
    rows = run.run()
    taken = {name: len(run.times.sides[name][1]) for name in rows}
    assert rows["waits"].verdict == "SLOWER"
    assert taken["noisy"] == 8 < taken["waits"]


def test_times_wait_where_another_pair_would_end_too_late():
    run = Run(lambda name, number: (timed(1.0), timed(1.0)))
    run.times.wait_at(time.monotonic() + 10.0, 2, "a")
    run.run(took_s=11.0)
    assert run.times.taken == 1


def test_a_plain_slowdown_is_confirmed_alone_before_the_others(monkeypatch):
    """Each plan is said once, with the time that pairs of its benchmarks take."""
    now, said, costs_s = [0.0], [], {"same": 2.0, "twice": 1.0}
    monkeypatch.setattr("prooflops_gate.loop.time", SimpleNamespace(monotonic=lambda: now[0]))
    costs = {name: Cost(each_s) for name, each_s in costs_s.items()}
    plan = PacePlan(costs, 0.0, 8, 34, 600.0, 600.0)
    run = Run(lambda name, _: (timed(1.0), timed(1 + (name == "twice"))), costs_s, plan=plan)
    run.times.ends = 600.0

    def take(task):
        now[0] += sum(costs_s[name] for name in task.tests)
        return run.take(task)

    def say(line):
        said.append((now[0], line))

    run.times.say = say
    run.times.measure(run.measured(run.names, 0), 9.0)
    exhaust(run.times, take, say)
    assert said == [
        (3.0, "times of 2 benchmarks: 6 more pairs, about 18 s"),
        (6.0, "times of 1 benchmark that is plainly slower: 5 more pairs, about 5 s"),
        (11.0, "times of 1 benchmark that is plainly slower: 5 more pairs, about 5 s"),
        (16.0, "SLOWER: twice"),
        (16.0, "times of 1 benchmark: 5 more pairs, about 10 s"),
    ]
    assert {name: len(run.times.sides[name][1]) for name in run.names} == {"same": 8, "twice": 13}


def test_a_plain_slowdown_neither_waits_for_full_speed_nor_repeats_a_busy_pair():
    """Two of the first three pairs are repeated, the ten that confirm it are not."""
    run = Run(lambda name, number: (timed(1.0, 1.5), timed(2.0, 1.5)))
    assert run.run()["a"].verdict == "SLOWER"
    assert not run.times.decide().notes, "it may have missed no slowdown"
    assert [task.patient for task in run.asked] == [True] * 4 + [False] * 10


def test_a_run_that_is_to_end_at_its_first_failure_measures_no_further_pair():
    """A slowdown below 10 % ends nothing: the layout of memory may explain it."""
    ratios = {"same": 1.0, "slightly": 1.08, "twice": 2.0}
    rule = TimeRule(plan_for(3), most_slower=1)
    for names, verdicts in (
        ("same slightly twice", ["INCONCLUSIVE", "INCONCLUSIVE", "SLOWER"]),
        ("same slightly", ["SAME", "SLOWER"]),
    ):
        run = Run(lambda name, _: (timed(1.0), timed(ratios[name])), names.split(), rule=rule)
        rows = run.run()
        assert [rows[name].verdict for name in run.names] == verdicts


def test_the_loop_ends_where_another_pair_does_not_fit_into_the_budget():
    run = Run(lambda name, number: (timed(1.0), timed(1.0)), budget_s=0.0)
    rows = run.run(took_s=11.0)
    assert (run.times.taken, rows["a"].verdict) == (1, "INCONCLUSIVE")
    assert "the budget ended it (--gate-budget)" in rows["a"].note
    spent = "the budget (--gate-budget) is spent: time leaves 1 benchmark undecided"
    assert spent in run.times.decide().notes


@pytest.mark.parametrize(
    ("kept", "left_s", "is_repeated"),
    [(1, 65.0, False), (1, 75.0, True), (8, 5.0, False), (8, 15.0, True)],
)
def test_a_busy_pair_is_repeated_where_the_pairs_of_the_next_look_still_fit(
    kept, left_s, is_repeated
):
    """A pair takes 10 s, and the first look needs eight."""
    run = Run(lambda name, number: [timed(1.0, 1 + number)] * 2)
    for _ in range(kept):
        run.times.measure(run.measured("a", 0), 10.0)
    run.times.ends = 10.0 + left_s
    run.times.next_task(0.0)
    run.times.measure(run.measured("a", 1), 10.0)
    assert len(run.times.sides["a"][1]) == kept + (not is_repeated)


@pytest.mark.parametrize(
    ("rule", "taken", "kept", "why"),
    [
        (TimeRule(plan_for(1)), 34, 32, "noise"),
        (TimeRule(plan_for(1, most=2), most=2), 2, 2, "--gate-replicates ended it"),
    ],
)
def test_where_every_pair_is_busy_two_are_repeated_as_far_as_replicates_allow(
    rule, taken, kept, why
):
    draw = random.Random(1)

    def made(name, number):
        return timed(1.0, 1.5), timed(draw.lognormvariate(0, 0.2), 1.5)

    run = Run(made, rule=rule)
    assert why in run.run()["a"].note
    assert (run.times.taken, len(run.times.sides["a"][1])) == (taken, kept)


@pytest.mark.parametrize(
    ("rule", "pairs"),
    [
        (TimeRule(plan_for(2, most=6), most=6), 6),
        (TimeRule(plan_for(2), all_pairs=True), 32),
    ],
)
def test_each_benchmark_has_all_of_a_bounded_number_of_pairs(rule, pairs):
    run = Run(lambda name, _: (timed(1.0), timed(1 + (name == "b"))), "ab", rule=rule)
    run.run()
    assert [len(run.times.sides[name][1]) for name in "ab"] == [pairs, pairs]


def test_a_benchmark_is_named_that_once_timed_a_launch_alone():
    def made(name, number):
        return timed(1.0), replace(timed(1.0), is_launch=(name, number) == ("b", 3))

    run = Run(made, "ab")
    run.run()
    assert f"b: {UNSYNCHRONISED}" in run.times.decide().notes


def test_a_benchmark_too_long_for_the_others_is_left_out():
    # Three of five calls take 36 s.
    costs = {"a": Cost(1.0), "long": Cost(60.0, round_s=12.0)}
    plan = PacePlan(costs, overhead_s=1.0, pairs=8, most_pairs=34, budget_s=600.0, left_s=600.0)
    assert plan.too_long == ["long"]
    assert "; 1 that take " in str(plan)
    effects = {"long": paired([1.0], [1.0], level=0.01)}
    assert plan.paces(effects, 8, 600.0)["long"]["min_rounds"] == 1
    run = Run(lambda name, number: (timed(1.0), timed(1.0)), ["a", "long"], plan=plan)
    rows = run.run()
    assert [task.tests for task in run.asked] == [("a",)] * 7
    assert rows["long"].verdict == "INCONCLUSIVE"
    assert "8 pairs of processes need --gate-budget" in rows["long"].note


def test_a_benchmark_whose_noise_more_rounds_lower_gets_more_time():
    costs = {name: Cost(0.1, 0.001) for name in ("noisy", "quiet", "early")} | {"fixed": Cost(0.1)}
    plan = PacePlan(costs, 1.0, 8, 34, 600.0, 600.0, start_cpu_s=1.0)

    def scattered(step, pairs=8):
        ratios = [1 + step * number for number in range(pairs)]
        return paired([1.0] * pairs, ratios, level=0.01)

    effects = {"noisy": scattered(0.05), "quiet": scattered(0.001), "early": scattered(0.05, 7)}
    paces = plan.paces({**effects, "fixed": scattered(0.05)}, 8, 600.0)
    assert [name for name in costs if paces[name]["max_time"] > paces[""]["max_time"]] == ["noisy"]


# Ten rounds, all half of a start, a round each.
@pytest.mark.parametrize(("number", "each_s"), [(1, 0.2), (10, 0.05), (50, 0.02)])
def test_the_rounds_of_a_long_suite_are_fewer(number, each_s):
    costs = {str(each): Cost(0.1, 0.02) for each in range(number)}
    suite = PacePlan(costs, 1.0, 8, 34, 600.0, 600.0, start_cpu_s=1.0)
    assert suite.paces({}, 8, 600.0)["0"]["max_time"] == pytest.approx(each_s)


@given(
    rounds_s=st.lists(st.floats(1e-5, 0.003), min_size=1),
    asked_s=st.floats(LEAST_S / 2, 2 * MOST_S),
    pairs=st.integers(1, 40),
)
def test_the_pairs_fit_into_the_time_left_and_use_it(rounds_s, asked_s, pairs):
    costs = {str(number): Cost(0.01, round_s) for number, round_s in enumerate(rounds_s)}
    plan = PacePlan(costs, 0.5, 8, 34, 600.0, 600.0)
    left_s = 2 * pairs * (0.5 + asked_s * len(costs))
    each_s = plan.fitting_s(list(costs), left_s, pairs, MOST_S)
    taken_s = 2 * pairs * plan.process_s(list(costs), each_s)
    assert LEAST_S <= each_s <= MOST_S
    assert taken_s == pytest.approx(left_s) or each_s == (LEAST_S if taken_s > left_s else MOST_S)
