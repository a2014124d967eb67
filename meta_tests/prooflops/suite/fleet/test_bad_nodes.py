"""Bad machines are named, healthy ones are not, and a second run settles it."""

from dataclasses import replace

import pytest

from meta_tests.prooflops.suite.fleet.simulated import SPREADS, found, runs
from prooflops.suite.fleet.bad_nodes import CONFIRMED, ONE_OFF, OVERALL, SUSPECT, fleet, fleets
from prooflops.suite.fleet.nodes import NodeRun

NORMAL = SPREADS[0]


@pytest.mark.parametrize("nodes", [8, 64])
def test_bad_machines_are_named_and_no_others(nodes: int) -> None:
    for made in found(nodes, 0.05, 0.10, NORMAL, 3):
        expected = {f"node-{node}" for node in range(max(round(nodes * 0.05), 1))}
        assert {named.node for named in made.bad} == expected
        assert all(OVERALL in named.slower for named in made.bad)


def test_of_healthy_fleets_hardly_any_has_a_machine_named() -> None:
    healthy = found(8, 0.0, 0.0, NORMAL, 40)
    assert sum(bool(each.named) for each in healthy) <= 6  # 5 % of 40 are 2
    assert not any(each.bad for each in healthy), "none by both runs"


def slow_in(runs: list[NodeRun], node: str, benchmark: str, by: float) -> list[NodeRun]:
    """The first run of a machine with one benchmark slower."""
    at = next(index for index, run in enumerate(runs) if run.node == node)
    slower = {**runs[at].times_s, benchmark: runs[at].times_s[benchmark] * by}
    return [*runs[:at], replace(runs[at], times_s=slower), *runs[at + 1 :]]


def test_what_a_second_run_does_not_confirm_was_a_one_off() -> None:
    made = slow_in(runs(16, 0, 0.0, 1, NORMAL), "node-5", "b3", 2.0)
    (named,) = fleet("card", made).named
    assert (named.node, named.state, set(named.slower)) == ("node-5", ONE_OFF, {"b3"})
    (named,) = fleet("card", made[:16]).named
    assert named.state == SUSPECT, "without a second run"
    assert named.beside.startswith("node-"), "a good machine for the second try"


def test_what_the_named_have_in_common_is_said() -> None:
    made = [
        replace(run, traits={"driver": "550" if run.node in ("node-0", "node-1") else "570", "torch": "2.13"})
        for run in runs(32, 2, 0.10, 2, NORMAL)
    ]
    (named, other) = fleet("card", made).named
    assert named.common == other.common == ["driver 550: all 2 named, 0 of 30 others"]
    assert (named.state, other.state) == (CONFIRMED, CONFIRMED)


def test_of_three_machines_nobody_is_named_and_it_says_so() -> None:
    made = fleet("card", runs(3, 1, 1.0, 3, NORMAL))
    assert not made.named
    assert made.limits.startswith("cannot tell: 3 of this kind")


def test_a_noisy_small_fleet_says_what_it_cannot_tell() -> None:
    made = fleet("card", runs(4, 0, 0.0, 4, replace(NORMAL, node_sd=0.05)))
    assert "cannot tell about a machine less than" in made.limits


def test_machines_of_another_kind_are_another_fleet() -> None:
    mixed = [replace(run, kind=run.node[-1]) for run in runs(4, 0, 0.0, 5, NORMAL)]
    assert [len(each.nodes) for each in fleets(mixed)] == [1, 1, 1, 1]
