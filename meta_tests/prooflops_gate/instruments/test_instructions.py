"""The gate's count of instructions: the decision by pairs, and a count under valgrind."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prooflops_gate.comparison import settled, to_count
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments import Measured
from prooflops_gate.instruments.counts import (
    FEWER,
    MORE,
    UNSTEADY,
    Count,
    by_both,
    decide,
    resolved,
)
from prooflops_gate.instruments.instructions import Instructions
from prooflops_gate.instruments.time_rule import TimeRule, plan_for
from prooflops_gate.instruments.times import Times
from prooflops_gate.loop import exhaust
from prooflops_gate.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.statistics.effects import paired
from prooflops_gate.task import Pair

LEVEL, LIMIT = 1e-5, 0.005
# Up to 0.04 % of the 100,000 instructions.
NOISES = st.lists(st.integers(-40, 40), min_size=10, max_size=10)


@given(NOISES, st.sampled_from([0.9, 0.98, 1.0, 1.02, 1.1]))
def test_pairs_of_counts_decide_what_lies_beyond_the_limit(noise, ratio):
    count = decide([100_000] * 10, [round(100_000 * ratio) + each for each in noise], LIMIT, LEVEL)
    assert count is not None
    assert (
        count.verdict == {True: MORE, False: FEWER}[ratio > 1]
        if ratio != 1.0
        else count.verdict == "SAME"
    )
    assert count.ratio == pytest.approx(ratio, rel=0.001)


@given(st.lists(st.sampled_from([0.97, 1.03]), min_size=8, max_size=8))
def test_a_count_that_differs_in_both_directions_decides_nothing(ratios):
    count = decide(
        [100_000] * 10, [round(100_000 * ratio) for ratio in (0.97, 1.03, *ratios)], LIMIT, LEVEL
    )
    assert count is not None
    assert count.verdict == UNSTEADY


@pytest.fixture
def count(monkeypatch):
    """Counts in pairs that take so many seconds, and returns when each began, and its task.

    A benchmark "more" takes 3 % more instructions, and "lost" has no count after the change.
    """
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("prooflops_gate.loop.time", clock)

    def counted(found, pair_s):
        tasks = []

        def take(task):
            tasks.append((now[0], task))
            now[0] += pair_s(task.tests)
            before = dict.fromkeys(task.tests, 100_000)
            after = {name: 100_000 + 3000 * (name == "more") for name in before if name != "lost"}
            return Measured(Pair(*(SimpleNamespace(counts=each) for each in (before, after))), {})

        exhaust(found, take, lambda line: None)
        return tasks

    return counted


@pytest.mark.parametrize(("ends", "decided", "more"), [(400.0, 10, [MORE]), (150.0, 6, [])])
def test_as_many_are_counted_as_fit_and_what_takes_more_up_to_its_decision(
    count, ends, decided, more
):
    """One of ten takes 3 % more. Of ten a pair takes 105 s, of seven 75 s."""
    round_s = dict.fromkeys(["more", *"abcdefghi"], 10 / 150)
    found = Instructions(round_s, LIMIT, 0.0)
    found.go_on(round_s, (), 0.0, ends)
    tasks = count(found, lambda names: 5.0 + 10.0 * len(names))
    verdicts = sorted(each.verdict for each in found.found.values())
    assert verdicts == [*more, *["SAME"] * (decided - len(more))]
    began, last = tasks[-1]
    assert began + 5.0 + 10.0 * len(last.tests) <= ends


def test_of_what_time_calls_slower_one_look_is_counted(count):
    """It says whether the instructions are the same; the slowdown is decided."""
    found = Instructions({"more": 0.01}, LIMIT, 0.0)
    found.go_on(["more"], ["more"], 0.0, 600.0)
    assert len(count(found, lambda _: 1.0)) == 2
    assert not found.found


def test_a_count_that_its_time_left_open_goes_on_with_the_pairs_it_has(count):
    """The time of "more" ends after two pairs; six of them show that it takes 3 % more."""
    tasks, verdicts = [], []
    found = Instructions({"more": 0.05, "rest": 0.05}, LIMIT, 0.0)
    for names, began, ends in ((["more"], 0.0, 25.0), (["more", "rest"], 20.0, 600.0)):
        found.go_on(names, (), began, ends)
        tasks += count(found, lambda _: 10.0)
        verdicts.append({row.name: row.verdict for row in found.decide().rows})
    assert [task.tests for _, task in tasks] == [("more",)] * 6 + [("rest",)] * 2
    assert verdicts == [{"more": "INCONCLUSIVE"}, {"more": MORE, "rest": "SAME"}]


def test_what_does_not_fit_or_is_not_counted_on_a_side_leaves_the_others_theirs(count):
    """A pair of "long" takes 150 s."""
    found = Instructions({"long": 1.0, "lost": 0.01, "quick": 0.01}, LIMIT, 0.0)
    found.go_on(found.costs_s, (), 0.0, 100.0)
    count(found, lambda _: 3.0)
    assert [*found.found] == ["quick"]
    alone = Instructions({"long": 1.0}, LIMIT, 0.0)
    alone.go_on(["long"], (), 0.0, 100.0)
    assert alone.decide().notes == (
        "instructions are not counted: a pair may take 2 min 32 s under valgrind",
    )


def ran(ratio, spread=0.1, pairs=16):
    """The effect of pairs that agree about a ratio to within `spread` either way."""
    ratios = [ratio * (1 + spread * (-1) ** number) for number in range(pairs)]
    return paired([1.0] * pairs, ratios, level=0.01)


def count_of(ratio):
    verdict = "SAME" if ratio == 1.0 else MORE if ratio > 1 else FEWER
    return Count(verdict, 1e6, [math.log(ratio)] * 6)


APART = Count(UNSTEADY, 1e6, [-0.006, 0.004, 0.0])
FAR_APART = Count(UNSTEADY, 1e6, [-0.02, 0.02, 0.0])


@pytest.mark.parametrize(
    ("by_time", "effect", "count", "alone", "verdict", "by"),
    [
        # What time decides stands, unless the layout of memory explains the one slowdown.
        ("SLOWER", ran(1.08, 0), count_of(1.0), True, "SAME", INSTRUCTIONS),
        ("SLOWER", ran(1.08, 0), count_of(1.0), False, "SLOWER", TIME),
        ("SLOWER", ran(1.08, 0), count_of(1.04), True, "SLOWER", TIME),
        ("SLOWER", ran(1.12, 0), count_of(1.0), True, "SLOWER", TIME),
        ("FASTER", ran(0.95, 0), count_of(1.0), True, "FASTER", TIME),
        ("SAME", ran(1.0, 0), count_of(1.2), True, "SAME", TIME),
        # Instructions decide what time leaves open, but near a limit of 3 %.
        ("INCONCLUSIVE", ran(1.0), count_of(1.06), True, "SLOWER", INSTRUCTIONS),
        ("INCONCLUSIVE", ran(1.0), count_of(1.04), True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.0), count_of(1.02), True, "SAME", INSTRUCTIONS),
        ("INCONCLUSIVE", ran(1.0), count_of(1 / 1.02), True, "SAME", INSTRUCTIONS),
        ("INCONCLUSIVE", ran(1.0), count_of(1 / 1.04), True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.0), count_of(1 / 1.06), True, "FASTER", INSTRUCTIONS),
        # Time excludes a slowdown of 3 %.
        ("INCONCLUSIVE", ran(1.0, 0.02), count_of(1.06), True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.0, 0.04), count_of(1.06), True, "SLOWER", INSTRUCTIONS),
        # No count shows waiting: time shows a slowdown of 3 %, or estimates a large one.
        ("INCONCLUSIVE", ran(1.02, 0.005), count_of(1.0), True, "SAME", INSTRUCTIONS),
        ("INCONCLUSIVE", ran(1.05, 0.005), count_of(1.0), True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.7, 0.5, pairs=8), count_of(1.0), True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.7, 0.5, pairs=2), count_of(1.0), True, "SAME", INSTRUCTIONS),
        # A count that does not repeat within its own limit may do so within that of time.
        ("INCONCLUSIVE", ran(1.0), APART, True, "SAME", INSTRUCTIONS),
        ("INCONCLUSIVE", ran(1.05, 0.005), APART, True, "INCONCLUSIVE", ""),
        ("INCONCLUSIVE", ran(1.0), FAR_APART, True, "INCONCLUSIVE", ""),
    ],
)
def test_time_and_instructions_decide_together(by_time, effect, count, alone, verdict, by):
    row = Row("a", TIME, 1.0, effect.ratio, by_time, effect)
    decided = by_both(row, count, 0.03, alone=alone)
    assert (decided.verdict, decided.by) == (verdict, by), decided.note
    is_unsteady_and_open = count.verdict == UNSTEADY and verdict == "INCONCLUSIVE"
    assert str(count) in decided.note
    assert decided.note.endswith(f": {count.why_open}") is is_unsteady_and_open


EFFECT = paired([1.0] * 16, [1.2 + each / 1000 for each in range(16)], level=0.01)
SLOWER_ROW = Row("a", TIME, 1.0, 1.2, "SLOWER", EFFECT)


def test_every_row_stays_and_a_changed_count_adds_one():
    rows = [
        SLOWER_ROW,
        replace(SLOWER_ROW, name="uncounted"),
        Row("new", TIME, None, 1.0, "NEW"),
        Row("a", "flops", 24, 25, "CHANGED"),
    ]
    counts = {"a": Count(MORE, 1e6, [0.2] * 3), "new": Count("SAME", 1e6, [0.0] * 3)}
    found = resolved(rows, counts, lambda _: 0.03)
    assert [(row.name, row.quantity, row.verdict) for row in found] == [
        *((row.name, row.quantity, row.verdict) for row in rows),
        ("a", INSTRUCTIONS, MORE),
    ]


def test_a_count_that_scatters_does_not_contradict_what_time_has_confirmed():
    decided, three = (
        by_both(SLOWER_ROW, Count(UNSTEADY, 1e6, rises), 0.03, alone=True)
        for rises in ([0.02, 0.04, 0.03], [0.13, 0.13, 0.12])
    )
    assert (decided.verdict, decided.by) == ("SLOWER", TIME)
    assert (decided.note, decided.instructions) == ("", None)
    assert (three.verdict, three.by) == ("SLOWER", TIME)
    assert three.instructions == pytest.approx(1.139, abs=0.001)


def test_counts_settle_what_has_no_quiet_time_yet():
    """The first pair ran beside others, and is measured again."""
    contended = Timed(1.0, {}, contended="beside others")
    times = Times(["same", "more"], TimeRule(plan_for(3)), math.inf)
    process = SimpleNamespace(footprint={})
    pairs = dict.fromkeys(times.sides, (contended, contended))
    times.measure(Measured(Pair(process, process), pairs), 0.0)
    found = {"same": count_of(1.0), "more": count_of(1.1)}
    assert settled(SimpleNamespace(found=found, decide=lambda: None), times) == {"same", "more"}


@pytest.mark.parametrize(("by", "expected"), [("both", ["a"]), ("instructions", ["a", "same"])])
@pytest.mark.parametrize("asked", ["--gate-versus HEAD", ""])
def test_what_time_leaves_open_is_counted_unless_time_alone_decides(by, expected, asked):
    steady, contended = Timed(1.0, {}), Timed(1.0, {}, contended="beside others")
    process = SimpleNamespace(footprint={})
    pairs = {"a": (contended, contended), "same": (steady, steady)}
    measured = Measured(Pair(process, process), pairs)
    times = Times(pairs, TimeRule(plan_for(2)), math.inf)
    times.measure(measured, 0.0)
    for _ in range(7):
        times.measure(measured.without(["a"]), 0.0)
    for each, names in ((by, expected if asked else []), ("time", [])):
        settings = SimpleNamespace(by=each, min_instructions=LIMIT)
        question = SimpleNamespace(settings=settings, asked=asked)
        assert sorted(to_count(question, times)) == names


@pytest.mark.parametrize(
    ("ratios", "expected"), [({"a": 1.05}, ["a"]), ({"a": 1.05, "b": 1.05}, []), ({"a": 1.5}, [])]
)
def test_of_what_time_decides_a_small_slowdown_alone_is_counted(ratios, expected):
    """The same instructions would show that the layout of memory explains it."""
    process = SimpleNamespace(footprint={})
    pairs = {name: (Timed(1.0, {}), Timed(ratio, {})) for name, ratio in ratios.items()}
    measured = Measured(Pair(process, process), pairs)
    times = Times(pairs, TimeRule(plan_for(len(pairs))), math.inf)
    for _ in range(13):
        times.measure(measured, 0.0)
    assert {row.verdict for row in times.rows().values()} == {"SLOWER"}
    settings = SimpleNamespace(by="both", min_instructions=LIMIT)
    question = SimpleNamespace(settings=settings, asked="--gate-versus HEAD")
    assert sorted(to_count(question, times)) == expected
