"""A claim about speed has three answers; their interval covers as often as it says."""

import random
import time
from itertools import count

import pytest
import torch
from _pytest.outcomes import Failed, Skipped

from prooflops.suite.speed import Speed
from prooflops_gate.machine.contention import SHORTEST_S


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def rivals(monkeypatch):
    """What competes for the cores, in words; nothing at first."""
    words = [""]

    class Watched:
        def stop(self):
            return {"why": words[-1]}

    monkeypatch.setattr("prooflops.suite.speed.Watch", Watched)
    return words


@pytest.fixture
def assert_slower(monkeypatch, recorded, rivals):
    """Compares two functions whose times are made up.

    `slow()` takes the next of `times`, `fast()` one second.
    """

    def compared(times, **options):
        speed = Speed(torch.device("cpu"), recorded.append)
        monkeypatch.setattr(speed, "seconds", lambda function, calls=1: function())
        return speed.assert_slower(lambda: next(times), lambda: 1.0, "A over B", **options)

    return compared


def noisy(centre, spread):
    generator = random.Random(0)
    return (centre * generator.lognormvariate(0, spread) for _ in count())


@pytest.mark.parametrize(
    ("centre", "options", "pairs"), [(1.5, {}, 10), (1.1, {}, 61), (1.5, {"at_most": 1.6}, 61)]
)
def test_a_clear_difference_holds_by_the_first_ten_pairs_if_all_show_it(
    assert_slower, recorded, centre, options, pairs
):
    assert_slower(noisy(centre, 0.05), **options)
    assert recorded[0].startswith("A over B: 1.")
    assert recorded[0].endswith(f", {pairs} pairs)")


@pytest.mark.parametrize(("centre", "at_least"), [(0.5, 1), (1.0, 1), (1.5, 2)])
def test_a_clear_contradiction_fails_with_the_ratio(assert_slower, centre, at_least):
    ratio = rf"A over B: the ratio of times is {centre}\dx \(.*\), but should be above {at_least}$"
    with pytest.raises(Failed, match=ratio):
        assert_slower(noisy(centre, 0.02), at_least=at_least)


@pytest.mark.parametrize(("options", "far"), [({}, 0.05), ({"at_least": 0.1, "at_most": 0.3}, 5)])
def test_beside_other_work_only_a_far_contradiction_is_concluded(
    assert_slower, rivals, options, far
):
    rivals.append("other processes kept 1.00 cores busy")
    with pytest.raises(Skipped, match=r"not known: contended.*noise.*1.00 cores busy.*0.5"):
        assert_slower(noisy(0.5, 0.05), **options)
    with pytest.raises(Failed):
        assert_slower(noisy(far, 0.05), **options)
    assert_slower(noisy(1.5, 0.05))


def test_a_contradiction_takes_as_long_as_seeing_other_work_does(assert_slower):
    start = time.perf_counter()
    with pytest.raises(Failed):
        assert_slower(noisy(0.5, 0.05))
    assert time.perf_counter() - start >= SHORTEST_S


@pytest.mark.parametrize("centre", [1.0, 1.02, 0.98])
def test_an_effect_within_the_noise_is_neither(assert_slower, centre):
    with pytest.raises(
        Skipped,
        match=r"noise \(\d+ %\) is too large to tell whether .* is above or below 1: A over B",
    ):
        assert_slower(noisy(centre, 0.5))


@pytest.mark.parametrize(
    ("centre", "reason"), [(3, "healthy machines show a ratio of 1.5 to 2: A"), (2, "below 2")]
)
def test_a_ratio_that_no_healthy_machine_showed_is_not_checked(assert_slower, centre, reason):
    with pytest.raises(Skipped, match=reason):
        assert_slower(noisy(centre, 0.05), at_most=4, usual=(1.5, 2))
    assert_slower(noisy(1.75, 0.05), at_most=4, usual=(1.5, 2))
