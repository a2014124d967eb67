"""A planted change of level is found, and noise is not reported as one."""

import math

import numpy as np
import pytest

from meta_tests.prooflops.statistics.simulated import times
from prooflops.statistics.change_points import FEWEST, LEVEL, SMALLEST, _null, _rank_statistics, change_points


@pytest.mark.parametrize("at", [9, 20, 31])
def test_a_planted_step_is_found_where_it_is(at: int) -> None:
    found = [change_points(times((1.0, at), (1.1, 40 - at), seed=seed)) for seed in range(20)]
    exact = [len(each) == 1 and abs(each[0].index - at) <= 1 for each in found]
    assert sum(exact) >= 18, f"found {sum(exact)} of 20 steps of 10 % at record {at}, but should find 18 [{found}]"
    ratios = [each[0].ratio for each in found if each]
    assert np.median(ratios) == pytest.approx(1.1, abs=0.02)


def test_two_steps_are_both_found() -> None:
    found = change_points(times((1.0, 15), (1.2, 15), (0.9, 15)))
    assert [change.index for change in found] == [15, 30], f"{found}, but should change at 15 and 30"


@pytest.mark.parametrize("size", [8, 40])
def test_noise_alone_is_reported_as_a_change_no_more_often_than_stated(size: int) -> None:
    # 2000 series at a rate of 1 % alarm 20 times, and more than 36 times with a chance of 0.0003.
    alarms = sum(bool(change_points(times((1.0, size), noise=0.2, seed=seed))) for seed in range(2000))
    assert alarms <= 36, f"{alarms} of 2000 series of noise were reported as a change, but should be about 20 [{size=}]"


def test_one_slow_run_is_no_change_of_level() -> None:
    series = times((1.0, 30))
    series[-1] = 50.0
    assert change_points(series) == []


def test_a_change_too_small_to_matter_is_not_reported() -> None:
    series = times((1.0, 40), (1.01, 40), noise=0.001)
    assert change_points(series) == []
    assert change_points(series, smallest=0.005), "the same step should be reported where 0.5 % matters"


def test_a_change_is_reported_from_three_percent() -> None:
    assert [change_points([1.0] * 20 + [ratio] * 20) != [] for ratio in (1.0299, 1.03005)] == [False, True]


def test_equal_times_have_no_change() -> None:
    assert change_points([1.0] * 30) == []


def test_the_same_history_always_has_the_same_changes() -> None:
    series = times((1.0, 12), (1.06, 12), noise=0.03)
    first = change_points(series)
    _null.cache_clear()
    assert change_points(series) == first


@pytest.mark.parametrize("series", [[1.0, 0.0], [1.0, float("nan")], [-1.0]])
def test_a_time_that_is_not_positive_and_finite_is_refused(series: list[float]) -> None:
    with pytest.raises(ValueError, match="times_s should be positive, finite times"):
        change_points(series)


def test_the_statistic_of_a_split_is_its_rank_sums_distance_in_standard_deviations() -> None:
    ranks = [3.0, 1.0, 2.0, 9.0, 5.0, 4.0, 8.0, 6.0, 7.0]
    expected = [abs(sum(ranks[:before]) - before * 5) / math.sqrt(before * (9 - before) * 10 / 12) for before in (4, 5)]
    assert _rank_statistics(np.array([ranks]))[0] == pytest.approx(expected)
    largest = (30 - 4 * 5) / math.sqrt(4 * 5 * 10 / 12)
    assert (_null(9).shape, _null(9).max()) == ((1999,), pytest.approx(largest)), "ranks from 1 to 9, all orders"
    assert (FEWEST, LEVEL, SMALLEST) == (4, 0.01, 0.03)


@pytest.mark.parametrize("level", [0.0, 0.5])
def test_an_impossible_level_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=f"level should lie between 0 and 0.5, but is {level}"):
        change_points([1.0], level=level)


def test_a_step_is_found_in_nine_records_and_not_in_seven() -> None:
    rising = [float(2 ** (index // 4) + index / 100) for index in range(9)]
    assert [change.index for change in change_points(rising, level=0.05)] == [4], "as far as 9 ranks can be apart"
    assert change_points(rising[1:], level=0.04) != [], "one of C(8, 4)/2 divisions"
    assert change_points(rising[2:], level=0.49) == [], "too few on a side"
