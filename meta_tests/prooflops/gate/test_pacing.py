"""How often which benchmarks are taken."""

import math
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate import pacing as pacing_module
from prooflops.gate.decisions import ReplicateRule, replicate_plan
from prooflops.gate.pacing import Pacing, Pair, Take
from prooflops.history.records import Timed
from prooflops.history.rows import Row
from prooflops.statistics.plan import Plan


def timed(time_s: float, contended: str = "", slowness: float = math.inf) -> Timed:
    return Timed(time_s, {}, {}, contended=contended, slowness=slowness if contended else 1.0)


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


def test_of_contended_pairs_those_are_kept_whose_cores_ran_at_the_most_equal_speed() -> None:
    """Fixed work took 1.8 times as long on one side of a pair, and on both of the next."""
    taken = 0

    def take(names: list[str]) -> dict[str, Pair]:
        nonlocal taken
        taken += 1
        before, after = [(1.0, 1.8), (1.79, 1.81)][taken % 2]
        sides = [timed(x, "slow" if x > 1.15 else "", x) for x in (before, after)]
        return dict.fromkeys(names, (sides[0], sides[1]))

    quiet: Pair = (timed(1.0), timed(1.0))
    pacing, rows = paced({"a": quiet}, take)
    assert (rows["a"].verdict, rows["a"].effect.pairs if rows["a"].effect else 0) == ("SAME", 8), rows["a"]
    ratios = [after.time_s / before.time_s for before, after in zip(*pacing.sides["a"], strict=True)]
    assert max(ratios) < 1.02, ratios


def test_no_contended_pair_is_repeated_where_the_next_look_would_go_without_it() -> None:
    busy: Any = {"a": (timed(1.0), timed(1.0, "other processes"))}
    rule = ReplicateRule(replicate_plan(1))
    pacing = Pacing({"a": []}, rule, lambda _: busy, time.monotonic() + 0.1, lambda text, done, most: None)
    pacing.run(busy, took_s=1.0)
    assert pacing.repeated == 0
    assert len(pacing.sides["a"][1]) == 1


def test_a_benchmark_that_was_given_up_is_not_taken_again_and_the_look_is_told_what_the_others_did() -> None:
    asked, told = set[str](), list[tuple[Any, int]]()

    def take(names: list[str]) -> Any:
        asked.update(names)
        return {name: (timed(1.0), timed([1.3, 0.8, 1.2, 0.7][len(told) % 4])) for name in names}

    first: Any = {name: (timed(1.0), timed(1.1)) for name in ("long", "short")}
    pacing = Pacing(
        {name: [] for name in first}, ReplicateRule(replicate_plan(2)), take, time.monotonic() + 60,
        lambda text, done, most: None, given_up=["long"], look=lambda effects, to_go: told.append((effects, to_go)),
    )  # fmt: skip
    pacing.run(first, took_s=0.0)
    assert asked == {"short"}
    assert list(told[0][0]) == ["short"]
    assert [effects["short"].pairs for effects, _ in told[:3]] == [1, 2, 3]
    assert told[1][0]["short"].noise == math.inf, "two pairs know no noise"
    assert told[0][1] == 7, "pairs to go until the first look"
    assert 0 < told[-1][0]["short"].noise < math.inf


class Timekeeper:
    """A clock that stands still but for the seconds that each take is said to last, and what was said meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pairs: Mapping[str, Pair], each_s: float = 10.0) -> None:
        self.now, self.takes, self.said = 0.0, 0, list[tuple[str, int, int]]()
        self.pairs, self.each_s = pairs, each_s
        monkeypatch.setattr(pacing_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def take(self, names: list[str]) -> Mapping[str, Pair]:
        self.now += self.each_s
        self.takes += 1
        return self.pairs[self.takes % len(self.pairs)] if self.pairs else {}

    def pacing(self, rule: ReplicateRule, deadline: float = math.inf, **stored: list[Timed]) -> Pacing:
        return Pacing(stored, rule, self.take, deadline, lambda *said: self.said.append(said))


NOISY: list[Any] = [{"a": (timed(1.0), timed(ratio))} for ratio in (1.3, 0.8, 1.2, 0.7)]


@pytest.mark.parametrize(("deadline", "taken"), [(39.9, 4), (40.0, 5)])
def test_no_pair_begins_that_would_not_end_in_time_if_it_takes_as_long_as_the_last(
    monkeypatch: pytest.MonkeyPatch, deadline: float, taken: int
) -> None:
    clock = Timekeeper(monkeypatch, *NOISY)
    pacing = clock.pacing(ReplicateRule(replicate_plan(1)), deadline, a=[])
    pacing.run(NOISY[0], took_s=10.0)
    assert (pacing.taken, pacing.left_open) == (taken, ["a"])
    assert clock.pacing(ReplicateRule(replicate_plan(1)), 5.0, a=[]).run(NOISY[0], took_s=10.0)[0].effect.pairs == 1


def test_what_is_taken_next_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    same: Any = (timed(1.0), timed(1.001))
    clock = Timekeeper(monkeypatch, *({**each, "b": same} for each in NOISY))
    clock.pacing(ReplicateRule(replicate_plan(2)), a=[], b=[]).run({**NOISY[0], "b": same}, took_s=0.0)
    assert clock.said[0] == ("pair 2: 2 open, next look at 8", 1, 8)
    assert clock.said[-1][0] == "pair 32: 1 open, next look at 32"
    alone: Any = {name: (None, timed(1.0)) for name in "ab"}
    clock = Timekeeper(monkeypatch, {"b": alone["b"]})
    rule = ReplicateRule(replicate_plan(2, paired=False), paired=False)
    clock.pacing(rule, a=[timed(1.0)] * 9, b=[timed(1.0 + i / 5) for i in range(9)]).run(alone, took_s=0.0)
    assert clock.said[0] == ("replicate 2: 2 open, next look at 8", 1, 8)
    assert "replicate 9: 2 open, next look at 8 to 16" in [text for text, *_ in clock.said], clock.said


@pytest.mark.parametrize(("pairs", "takes"), [(1, 31), (8, 63)])
def test_a_benchmark_that_yields_nothing_is_given_up_after_four_tries_a_pair(
    monkeypatch: pytest.MonkeyPatch, pairs: int, takes: int
) -> None:
    clock = Timekeeper(monkeypatch, *NOISY)
    pacing = clock.pacing(ReplicateRule(replicate_plan(1)), a=[])
    clock.pairs = tuple(NOISY[i % 4] if 0 < i < pairs else {} for i in range(99))
    pacing.run(NOISY[0], took_s=0.0)
    assert (clock.takes, len(pacing.sides["a"][1])) == (takes, pairs), "4 tries for each of 8, or of 16, and one before"


def test_on_a_machine_quiet_at_times_as_many_contended_pairs_are_repeated_as_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy: Any = {"a": (timed(1.0), timed(1.001, "other processes"))}
    clock = Timekeeper(monkeypatch, busy, each_s=0.0)
    pacing = clock.pacing(ReplicateRule(replicate_plan(1)), a=[])
    pacing.run({"a": (timed(1.0), timed(1.001))}, took_s=0.0)
    assert clock.said[-1] == ("pair 15: 1 open, next look at 8, 7 measurements repeated", 7, 8), "7 were kept"
    assert (len(pacing.sides["a"][1]), pacing.repeated, pacing.taken, pacing.left_open) == (8, 7, 15, [])
    there: Any = {"a": (timed(1.0, "other processes"), timed(1.001))}
    assert clock.pacing(ReplicateRule(replicate_plan(1)), a=[]).run(there, took_s=0.0)[0].note, "before counts, too"


@pytest.mark.parametrize(("deadline", "repeated"), [(79.9, 0), (80.0, 1)])
def test_a_contended_pair_is_set_aside_only_where_the_first_look_still_fits_and_counts_if_no_other_comes(
    monkeypatch: pytest.MonkeyPatch, deadline: float, repeated: int
) -> None:
    clock = Timekeeper(monkeypatch, each_s=75.0)  # the one that follows yields nothing, and spends the budget
    pacing = clock.pacing(ReplicateRule(replicate_plan(1)), deadline, a=[])
    (row,) = pacing.run({"a": (timed(1.0), timed(4.0, "other processes"))}, took_s=10.0)
    assert (pacing.repeated, row.effect.ratio, len(pacing.sides["a"][1])) == (repeated, pytest.approx(4.0), 1)


@pytest.mark.parametrize(("deadline", "repeated"), [(9.9, 0), (10.0, 1)])
def test_beyond_the_first_look_a_contended_pair_is_set_aside_where_one_more_fits(
    monkeypatch: pytest.MonkeyPatch, deadline: float, repeated: int
) -> None:
    pacing = Timekeeper(monkeypatch, each_s=10.0).pacing(ReplicateRule(replicate_plan(1)), deadline, a=[])
    pacing.sides["a"] = ([timed(1.0)] * 8, [timed(1.0 + i / 5) for i in range(8)])
    pacing.run({"a": (timed(1.0), timed(4.0, "other processes"))}, took_s=10.0)
    assert pacing.repeated == repeated
