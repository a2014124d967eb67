"""How often which benchmarks are taken."""

import math
import time
from collections.abc import Mapping
from typing import Any

from prooflops.gate.decisions import ReplicateRule, replicate_plan
from prooflops.gate.pacing import Pacing, Pair, Take
from prooflops.history.records import Timed
from prooflops.history.rows import Row
from prooflops.statistics.plan import Plan


def timed(time_s: float, contended: str = "") -> Timed:
    return Timed(time_s, {}, {}, contended=contended)


def paced(first: Mapping[str, Pair], take: Take, minutes: float = 10) -> tuple[Pacing, dict[str, Row]]:
    rule = ReplicateRule(replicate_plan(len(first)))
    deadline = time.monotonic() + 60 * minutes
    pacing = Pacing({name: [] for name in first}, rule, take, deadline, lambda text, done, most: None)
    return pacing, {row.name: row for row in pacing.run(first, took_s=0.0)}


def test_only_benchmarks_whose_verdict_is_open_are_taken_again() -> None:
    asked: list[list[str]] = []
    noisy = [1.3, 0.8, 1.2, 0.7]

    def take(names: list[str]) -> Any:
        asked.append(names)
        figures = {"slow": 1.5, "noisy": noisy[len(asked) % 4]}
        return {name: (timed(1.0), timed(figures[name])) for name in names}

    _, rows = paced({"slow": (timed(1.0), timed(1.5)), "noisy": (timed(1.0), timed(1.2))}, take)
    assert rows["slow"].verdict == "SLOWER", rows
    assert rows["noisy"].verdict == "INCONCLUSIVE", rows
    assert "replicates a side would decide" in rows["noisy"].note, rows["noisy"]
    assert asked[0] == ["slow", "noisy"], asked
    assert asked[-1] != ["slow", "noisy"], asked
    assert rows["slow"].effect, rows["slow"]
    assert rows["slow"].effect.pairs == 8 + Plan(benchmarks=2).plain_pairs, rows["slow"]


def test_a_contended_pair_is_repeated_and_where_it_stays_contended_labelled() -> None:
    taken = 0

    def quiet(names: list[str]) -> Any:
        nonlocal taken
        taken += 1
        return {name: (timed(1.0), timed(1.001)) for name in names}

    pacing, rows = paced({"a": (timed(1.0), timed(4.0, "other processes"))}, quiet)
    assert rows["a"].verdict == "SAME", rows
    assert rows["a"].effect.ratio < 1.01, rows
    assert taken == 8, taken
    assert pacing.repeated == 1, taken

    busy = {"a": (timed(1.0), timed(1.001, "other processes"))}
    _, rows = paced(busy, lambda _: busy)
    assert "replicates contended: other processes" in rows["a"].note, rows["a"]


def test_a_spent_budget_leaves_open_what_is_open() -> None:
    def never(names: list[str]) -> Any:
        raise AssertionError(f"asked for {names} after the budget was spent")

    pacing, rows = paced({"a": (timed(1.0), timed(2.0))}, never, minutes=-1)
    assert rows["a"].verdict == "INCONCLUSIVE", rows
    assert pacing.left_open == ["a"], rows


def test_a_machine_that_is_always_busy_gets_its_pairs_after_two_repeats() -> None:
    taken = 0

    def take(names: list[str]) -> Any:
        nonlocal taken
        taken += 1
        return {name: (timed(1.0), timed([1.3, 0.8][taken % 2], "other processes")) for name in names}

    pacing, rows = paced({"a": (timed(1.0), timed(1.0, "other processes"))}, take)
    assert rows["a"].effect, rows
    assert (rows["a"].effect.pairs, pacing.repeated) == (32, 2), rows


def test_no_contended_pair_is_repeated_where_the_next_look_would_go_without_it() -> None:
    busy: Any = {"a": (timed(1.0), timed(1.0, "other processes"))}
    rule = ReplicateRule(replicate_plan(1))
    pacing = Pacing({"a": []}, rule, lambda _: busy, time.monotonic() + 0.1, lambda text, done, most: None)
    pacing.run(busy, took_s=1.0)
    assert pacing.repeated == 0
    assert len(pacing.sides["a"][1]) == 1


def test_a_benchmark_that_was_given_up_is_not_taken_again_and_the_look_is_told_the_noise_of_the_others() -> None:
    asked, noises = set[str](), []

    def take(names: list[str]) -> Any:
        asked.update(names)
        return {name: (timed(1.0), timed([1.3, 0.8, 1.2, 0.7][len(noises) % 4])) for name in names}

    first: Any = {name: (timed(1.0), timed(1.1)) for name in ("long", "short")}
    pacing = Pacing(
        {name: [] for name in first}, ReplicateRule(replicate_plan(2)), take, time.monotonic() + 60,
        lambda text, done, most: None, given_up=["long"], look=lambda noise, to_go: noises.append((noise, to_go)),
    )  # fmt: skip
    pacing.run(first, took_s=0.0)
    assert asked == {"short"}
    assert list(noises[0][0]) == ["short"]
    assert noises[1][0]["short"] == math.inf, "two pairs know no noise"
    assert noises[0][1] == 7, "pairs to go until the first look"
    assert 0 < noises[-1][0]["short"] < math.inf
