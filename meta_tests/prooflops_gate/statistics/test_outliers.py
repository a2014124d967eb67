"""Who is named among N machines, and how often a healthy fleet has one named."""

import math

import numpy as np
import pytest

from prooflops_gate.statistics.outliers import (
    LEVEL,
    deviations_at,
    distances_and_scale,
    least_distance,
    tail_freedom,
    threshold,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Z is infinite, but the share is small.
        ([1.0, 1.0, 1.0, 1.02], []),
        # Far apart, but so are all.
        ([1.0, 1.1, 1.2, 1.3, 1.4], []),
        # A faster one is an outlier too.
        ([1.0, 1.01, 0.99, 0.8], [3]),
        # Three are too few.
        ([1.0, 1.0, 2.0], []),
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.5], [3, 7]),
    ],
)
def test_an_outlier_is_far_by_share_and_by_the_deviation_of_all(values, expected):
    found = deviations_at(*distances_and_scale(values), LEVEL, math.inf)
    assert [i for i, each in enumerate(found) if each.outlier] == expected


@pytest.mark.parametrize("machines", [4, 8, 16, 64, 200])
@pytest.mark.parametrize("freedom", [math.inf, 5.0])
def test_a_healthy_fleet_has_a_machine_named_as_often_as_stated(machines, freedom):
    random = np.random.default_rng(7)
    fleets = random.standard_normal((4000, machines)) if freedom == math.inf else random.standard_t(
        freedom, (4000, machines))  # fmt: skip
    far = np.abs(fleets - np.median(fleets, axis=1, keepdims=True))
    beyond = far.max(axis=1) > threshold(machines, LEVEL, freedom) * 1.4826 * np.median(far, axis=1)
    # Of 4,000 at 5 % one standard deviation is 0.35 %; above 64 machines the limit is on the safe
    # side.
    assert 0.015 <= beyond.mean() <= 0.062, beyond.mean()


def test_the_tail_is_read_off_the_side_that_bad_machines_do_not_reach():
    random = np.random.default_rng(3)
    normal, heavy = random.standard_normal(20_000), random.standard_t(3, 20_000)
    slow = normal.copy()
    slow[:1000] += 20
    assert tail_freedom(normal) >= 20
    assert tail_freedom(slow) >= 20
    assert tail_freedom(heavy / (1.4826 * np.median(np.abs(heavy)))) in (2.0, 3.0, 4.0)
    assert tail_freedom(normal[:500]) == 5.0, "of few values nothing is known"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # One beyond the limit, and twice as far as the next.
        ([5.0, 1.0, 0.5, 0.2], 2.0),
        # Three beyond it.
        ([5.0, 3.0, 2.0, 0.2], 2.0),
        (
            [5.0, 2.6, 2.4, 2.2, 1.9],
            10.0,
            # No gap: a further one would have to be twice as far as the farthest.
        ),
        # A gap, but not beyond the limit.
        ([1.9, 0.5, 0.5, 0.2], 3.8),
        ([0.9, 0.5, 0.5, 0.2], 2.0),
    ],
)
def test_beyond_the_limit_those_are_named_that_stand_apart_from_the_next(values, expected):
    assert least_distance([*values, -0.1, -0.2], 2.0, LEVEL) == pytest.approx(expected)


@pytest.mark.parametrize("power", [0.2, 1 / 3, 0.5])
def test_of_a_healthy_tail_of_any_power_a_gap_is_as_rare_as_stated(power):
    random = np.random.default_rng(5)
    tails = random.uniform(size=(600, 400)) ** -power
    named = sum(least_distance(tail, math.inf, LEVEL) <= tail.max() for tail in tails)
    # Expected are 30; the level is divided among gaps that are not independent, so fewer.
    assert 5 <= named <= 42, named
