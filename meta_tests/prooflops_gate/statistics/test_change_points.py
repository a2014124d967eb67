"""A planted change of level is found, and noise is not reported as one."""

import numpy as np
import pytest

from meta_tests.prooflops_gate.statistics.simulated import times
from prooflops_gate.statistics.change_points import change_points


@pytest.mark.parametrize("at", [9, 20, 31])
def test_a_planted_step_is_found_where_it_is(at):
    found = [change_points(times((1.0, at), (1.1, 40 - at), seed=seed)) for seed in range(20)]
    exact = [len(each) == 1 and abs(each[0].index - at) <= 1 for each in found]
    assert sum(exact) >= 18
    ratios = [each[0].ratio for each in found if each]
    assert np.median(ratios) == pytest.approx(1.1, abs=0.02)


@pytest.mark.parametrize("size", [8, 40])
def test_noise_alone_is_reported_as_a_change_no_more_often_than_stated(size):
    # 2000 series at a rate of 1 % alarm 20 times, and more than 36 times with a chance of 0.0003.
    alarms = sum(
        bool(change_points(times((1.0, size), noise=0.2, seed=seed))) for seed in range(2000)
    )
    assert alarms <= 36


def test_one_slow_run_is_no_change_of_level():
    series = times((1.0, 30))
    series[-1] = 50.0
    assert change_points(series) == []
