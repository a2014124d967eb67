"""The benchmarks that a comparison decides first, by the bytecodes of a pair that is made up."""

import time
from types import SimpleNamespace

import pytest

from prooflops_gate.focus import focus_of, short_enough, traced_in
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.pace import Cost, PacePlan

NAMES = "abcdefgh"


TIMED = {name: Timed(0.1, {}, test=name) for name in NAMES}


def pace_of(start_s):
    costs = dict.fromkeys(NAMES, Cost(1.0))
    return PacePlan(costs, start_s, pairs=8, most_pairs=34, budget_s=900.0, left_s=900.0)


def focus(after, start_s=0.1):
    """The focus where each benchmark executed 100 bytecodes before."""
    before = {name: {"work": 100} for name in NAMES}
    pair = SimpleNamespace(steps=before), SimpleNamespace(steps=before | after)
    return focus_of(pair, SimpleNamespace(after=TIMED), pace_of(start_s))


def test_the_benchmarks_whose_bytecodes_changed_come_before_the_others():
    assert focus({}) == set()
    assert focus({"c": {"work": 101}, "d": {"work": 90, "moved": 10}}) == {"c", "d"}


@pytest.mark.parametrize(("start_s", "named"), [(0.0, "defg"), (7.0, ""), (4.0, "fg")])
def test_where_many_changed_those_that_changed_most_come_first(start_s, named):
    """Their pairs take half as long as those of all eight, start included, so that it pays."""
    changed = {name: {"work": 101 + place} for place, name in enumerate(NAMES[:7])}
    assert focus(changed, start_s) == set(named)


@pytest.mark.parametrize(("start_s", "replicates", "is_traced"), [
    (0.1, None, True), (7.0, None, False), (0.1, 8, False)
])  # fmt: skip
def test_a_pair_is_traced_only_where_a_benchmark_alone_pays(start_s, replicates, is_traced):
    """And where nothing bounds the number of pairs."""
    asked = []
    settings = SimpleNamespace(replicates=replicates)
    question = SimpleNamespace(
        asked="--gate-versus HEAD~1", settings=settings, ends=time.monotonic() + 900, say=print
    )
    traced_in(question, SimpleNamespace(after=TIMED), pace_of(start_s), asked.append)
    assert bool(asked) == is_traced


def test_the_shortest_benchmarks_are_traced_within_the_time():
    timed = [Timed(each, {}, test=str(each)) for each in (0.1, 3.0, 0.2)]
    assert short_enough(timed, left_s=16.0) == ("0.1", "0.2")
