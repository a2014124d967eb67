"""The loop of a comparison, on replicates that are made up: how many it takes, and when it ends."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops_gate.decide import ReplicateRule, replicate_plan
from prooflops_gate.history.records import Timed
from prooflops_gate.history.rows import Row
from prooflops_gate.options import settings
from prooflops_gate.pace import Cost, PacePlan
from prooflops_gate.process import OutOfTime, Paces, Replicates
from prooflops_gate.schedule import Pair, Schedule
from prooflops_gate.session import Session
from prooflops_gate.statistics.effects import paired

Made = Callable[[str, int], Pair]  # the pair of a benchmark, by its number


def timed(time_s: float, slowness: float = 1.0) -> Timed:
    return Timed(
        time_s, {}, {}, contended="beside others" if slowness > 1 else "", slowness=slowness
    )


class Comparison:
    """A comparison of `names` in which `made` says what each pair measures, and which takes no time."""

    def __init__(
        self, root: Path, made: Made, names: Sequence[str] = "a", budget: str = "10"
    ) -> None:
        config = config_in(
            root, "-p", "prooflops_gate.plugin", "--gate-noise-floor", f"--gate-budget={budget}"
        )
        self.made, self.asked = made, list[tuple[list[str], Paces]]()
        self.session = Session(config, settings(config), Replicates(config, 60))
        self.names = names
        self.rule = ReplicateRule(replicate_plan(len(names)))

    def take(self, names: Sequence[str], paces: Paces) -> Mapping[str, Pair]:
        self.asked.append((list(names), paces))
        return {name: self.made(name, len(self.asked)) for name in names}

    def run(self, took_s: float = 0.0, **rest: object) -> tuple[Schedule, dict[str, Row]]:
        schedule = Schedule(self.session, self.rule, self.take, **rest)  # type: ignore[arg-type]
        first = {name: self.made(name, 0) for name in self.names}
        rows = schedule.compare(first, {name: [] for name in self.names}, took_s)
        return schedule, {row.name: row for row in rows if row.quantity == "time"}


def test_each_benchmark_is_taken_until_it_is_decided(tmp_path: Path) -> None:
    ratios = {"same": 1.0, "twice": 2.0, "noisy": 1.0}

    def made(name: str, number: int) -> Pair:
        noise = 1.5 ** (number * 7 % 32 / 16 - 1) if name == "noisy" else 1 + number % 3 / 1000
        return timed(1.0), timed(ratios[name] * noise)

    comparison = Comparison(tmp_path, made, list(ratios))
    schedule, rows = comparison.run()
    assert {name: row.verdict for name, row in rows.items()} == {
        "same": "SAME", "twice": "SLOWER", "noisy": "INCONCLUSIVE"
    }  # fmt: skip
    taken = {name: len(schedule.sides[name][1]) for name in ratios}
    assert taken == {"same": 8, "twice": 13, "noisy": 32}
    assert len(comparison.asked) == 31, "the first is given"
    assert comparison.session.effort.startswith("32 pairs in ")


def test_the_loop_ends_where_another_pair_does_not_fit_into_the_budget(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, lambda name, number: (timed(1.0), timed(1.0)), budget="1")
    comparison.session.begun = time.monotonic() - 50.0
    schedule, rows = comparison.run(took_s=11.0)
    assert (schedule.taken, rows["a"].verdict) == (1, "INCONCLUSIVE")
    assert "the budget ended it (--gate-budget)" in rows["a"].note
    assert (
        "the budget of 1 min (--gate-budget) is spent: 1 benchmark left open by time"
        in comparison.session.lines
    )


@pytest.mark.parametrize(("each", "verdict"), [(1.001, "SAME"), (1.025, "INCONCLUSIVE")])
def test_what_the_budget_ends_between_two_looks_is_looked_at_once_more(
    tmp_path: Path, each: float, verdict: str
) -> None:
    def made(name: str, number: int) -> Pair:
        if number == 13:  # the second look is at 16
            raise OutOfTime
        return timed(1.0), timed(
            1.05 if number in (3, 6) else each
        )  # of the first eight too many to decide

    schedule, rows = Comparison(tmp_path, made).run()
    assert (schedule.taken, rows["a"].verdict) == (13, verdict)
    assert bool(schedule.left_open) is (verdict == "INCONCLUSIVE")


def test_no_more_pairs_are_taken_than_replicates_allow_though_other_work_competed(
    tmp_path: Path,
) -> None:
    comparison = Comparison(
        tmp_path, lambda name, number: (timed(1.0, slowness=1.5), timed(1.0, slowness=1.5))
    )
    comparison.rule = ReplicateRule(replicate_plan(1, most=2), most=2)
    schedule, rows = comparison.run()
    assert (schedule.taken, len(schedule.sides["a"][1])) == (2, 2)
    assert "--gate-replicates ended it" in rows["a"].note


@pytest.mark.parametrize(("call_s", "fits"), [(60.0, True), (100.0, False)])
def test_a_benchmark_too_long_to_be_taken_with_the_others_gets_the_time_they_leave(
    tmp_path: Path, call_s: float, fits: bool
) -> None:
    costs = {
        "a": Cost(1.0),
        "long": Cost(call_s, round_s=call_s / 5),
    }  # three of five calls: 36 and 60 s
    plan = PacePlan(costs, overhead_s=1.0, pairs=8, most_pairs=34, budget_s=600.0, left_s=600.0)
    assert plan.too_long == ["long"]
    assert "; 1 that take " in str(plan)
    assert (
        plan.paces({"long": paired([1.0], [1.0], level=0.01)}, 8, 600.0)["long"]["min_rounds"] == 1
    )
    for number, each_s in (
        (1, 0.2),
        (10, 0.05),
        (50, 0.02),
    ):  # ten rounds, all half of a start, a round each
        suite = PacePlan(
            {str(n): Cost(0.1, 0.02) for n in range(number)},
            1.0,
            8,
            34,
            600.0,
            600.0,
            start_cpu_s=1.0,
        )
        assert suite.paces({}, 8, 600.0)["0"]["max_time"] == pytest.approx(each_s)
    comparison = Comparison(tmp_path, lambda name, number: (timed(1.0), timed(1.0)), ["a", "long"])
    _, rows = comparison.run(plan=plan)
    assert [names for names, _ in comparison.asked] == [["a"]] * 7 + [["long"]] * (7 if fits else 0)
    assert rows["long"].verdict == ("SAME" if fits else "INCONCLUSIVE")
    assert ("8 pairs do not fit into the budget" in rows["long"].note) is not fits
