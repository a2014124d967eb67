"""Who is named slow among machines of one kind: a law of the rule, and where it ends."""

import pytest

from meta_tests.prooflops.suite.fleet.test_command import run_of
from prooflops.suite.fleet.slow import CONFIRMED, ONE_OFF, SUSPECT, fleet


def runs(times_s):
    return [run_of(node=str(node), times_s={"x": time_s}) for node, time_s in enumerate(times_s)]


@pytest.mark.parametrize(
    ("times_s", "named"),
    [
        # Beyond any deviation, but by too little.
        ([1.0, 1.0, 1.0, 1.02], []),
        ([1.0, 1.0, 1.0, 1.04], ["3"]),
        # The median absolute deviation is 2 %.
        ([1.0, 0.98, 1.02, 1.09], []),
        ([1.0, 0.98, 1.02, 1.2], ["3"]),
        # A faster one is not slow.
        ([1.0, 1.01, 0.99, 0.8], []),
        # Three are too few.
        ([1.0, 1.0, 2.0], []),
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.6], ["7", "3"]),
    ],
)
def test_a_machine_is_slow_by_share_and_by_the_deviation_of_all(times_s, named):
    found = fleet("card", runs(times_s))
    assert [machine.node for machine in found.slow] == named
    assert (found.limit is None) is (len(times_s) < 4)
    assert {machine.state for machine in found.slow} <= {SUSPECT}


@pytest.mark.parametrize(("again_s", "state"), [(1.2, CONFIRMED), (1.01, ONE_OFF)])
def test_a_second_run_confirms_a_slow_machine_or_does_not(again_s, state):
    first = runs([1.0, 1.0, 1.0, 1.2])
    again = run_of(node="3", times_s={"x": again_s, "not in the first runs": 9.0})
    (machine,) = fleet("card", [*first, again]).slow
    assert machine.state == state
    assert machine.slowdown == pytest.approx(0.2)


def test_a_machine_is_slow_as_a_whole():
    names = ["a", "b", "c", "d"]
    machines = [run_of(node=str(n), times_s=dict.fromkeys(names, 1.0)) for n in range(4)]
    in_one = run_of(node="one", times_s={"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0})
    in_two = run_of(node="two", times_s={"a": 1.0, "b": 1.1, "c": 1.3, "d": 1.1})
    in_both = run_of(node="both", times_s={"c": 1.3, "d": 1.3})
    of_one = run_of(node="few", times_s={"c": 9.0})
    slow = fleet("card", [*machines, in_one, in_two, in_both, of_one]).slow
    assert [machine.node for machine in slow] == ["both", "two"]
