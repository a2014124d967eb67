"""A planted change of level is found, and noise is not told as one."""

from pathlib import Path

import numpy as np
import pytest

from prooflops.history import records as history
from prooflops.history import trend
from prooflops.history.records import Summary, Timed
from prooflops.suite import report


def times(*levels: tuple[float, int], noise: float = 0.02, seed: int = 0) -> list[float]:
    """Log-normal times at one level after the other, so many records each."""
    draw = np.random.default_rng(seed)
    return [level * float(np.exp(draw.normal(0, noise))) for level, count in levels for _ in range(count)]


def summary(index: int, time_s: float, *, device: str = "cpu-1", method: int = 3) -> Summary:
    benchmarks = {"bench/test_a.py::test_a": Timed(time_s, {}, {}, method)}
    moment = f"2026-11-{1 + index // 24:02d}T{index % 24:02d}:00:00"
    return Summary(Path(f"{index:04d}.json"), moment, device, "Some CPU", "2.13.0", f"c{index:07d}", benchmarks, {})


@pytest.mark.parametrize("at", [9, 20, 31])
def test_a_planted_step_is_found_where_it_is(at: int) -> None:
    found = [trend.change_points(times((1.0, at), (1.1, 40 - at), seed=seed)) for seed in range(20)]
    exact = [len(each) == 1 and abs(each[0].index - at) <= 1 for each in found]
    assert sum(exact) >= 18, f"found {sum(exact)} of 20 steps of 10 % at record {at}, but should find 18 [{found}]"
    ratios = [each[0].ratio for each in found if each]
    assert np.median(ratios) == pytest.approx(1.1, abs=0.02)


def test_two_steps_are_both_found() -> None:
    found = trend.change_points(times((1.0, 15), (1.2, 15), (0.9, 15)))
    assert [change.index for change in found] == [15, 30], f"{found}, but should change at 15 and 30"


@pytest.mark.parametrize("size", [8, 40])
def test_noise_alone_is_told_as_a_change_no_more_often_than_stated(size: int) -> None:
    # 2000 series at a rate of 1 % alarm 20 times, and more than 36 times with a chance of 0.0003.
    alarms = sum(bool(trend.change_points(times((1.0, size), noise=0.2, seed=seed))) for seed in range(2000))
    assert alarms <= 36, f"{alarms} of 2000 series of noise were told as a change, but should be about 20 [{size=}]"


def test_one_slow_run_is_no_change_of_level() -> None:
    series = times((1.0, 30))
    series[-1] = 50.0
    assert trend.change_points(series) == []


def test_a_change_too_small_to_matter_is_not_told() -> None:
    series = times((1.0, 40), (1.01, 40), noise=0.001)
    assert trend.change_points(series) == []
    assert trend.change_points(series, smallest=0.005), "the same step should be told where 0.5 % matters"


def test_equal_times_have_no_change() -> None:
    assert trend.change_points([1.0] * 30) == []


def test_the_same_history_is_told_in_the_same_words() -> None:
    series = times((1.0, 12), (1.06, 12), noise=0.03)
    first = trend.change_points(series)
    trend._null.cache_clear()
    assert trend.change_points(series) == first


@pytest.mark.parametrize("series", [[1.0, 0.0], [1.0, float("nan")], [-1.0]])
def test_a_time_that_is_none_is_refused(series: list[float]) -> None:
    with pytest.raises(ValueError, match="times_s should be positive, finite times"):
        trend.change_points(series)


def test_the_table_names_the_record_and_commit_of_a_change() -> None:
    summaries = [summary(index, time) for index, time in enumerate(times((1.0, 12), (1.3, 12)))]
    tables = trend.tables(summaries)
    assert list(tables) == ["cpu-1"]
    head, row = tables["cpu-1"]
    assert head == trend.HEAD
    assert row[1] == "24"
    assert "at 2026-11-01T12:00:00 (c000001)" in row[-1], row


def test_another_machine_or_method_begins_a_series_of_its_own() -> None:
    summaries = [summary(0, 1.0), summary(1, 1.0, device="cpu-2"), summary(2, 1.0, method=4)]
    assert sorted(len(each.records) for each in trend.trends(summaries)) == [1, 1, 1]


def test_of_a_long_history_the_newest_records_are_looked_at() -> None:
    draw = np.random.default_rng(0).lognormal(0, 0.05, (400, 20))
    summaries = []
    for index, row in enumerate(draw):
        benchmarks = {f"bench/test_a.py::test_{j}": Timed(time_s, {}, {}) for j, time_s in enumerate(row)}
        summaries.append(Summary(Path(f"{index:04d}.json"), f"{index:04d}", "a", "A", "2.13.0", "", benchmarks, {}))
    found = trend.trends(summaries)
    assert [len(each.records) for each in found] == [trend.LONGEST] * 20


def test_the_report_tells_the_trend_of_its_own_benchmarks_on_its_own_machine(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    def stored(fingerprint: dict[str, str], name: str, series: list[float]) -> None:
        for time_s in series:
            record = {"benchmarks": [{"fullname": name, "stats": {"min": time_s}}]}
            history.append(tmp_path, {**record, "prooflops": {"fingerprint": fingerprint}}, fingerprint)

    mine, other = {"name": "mine"}, {"name": "other"}
    stored(mine, "a", times((1.0, 9), (1.3, 9)))
    stored(mine, "few", [1.0] * (2 * trend.FEWEST - 1))
    stored(mine, "not in this run", times((1.0, 9)))
    stored(other, "a", times((9.0, 9)))
    benchmarks = [{"fullname": "a"}, {"fullname": "few"}]
    lines = report.trend_lines(pytestconfig, tmp_path, report.Finished(mine, [], [], benchmarks, None, None))
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert lines[0] == "## Trend"
    assert len(rows) == 1, f"{rows}, but should be the one row of the benchmark with 18 records on this machine"
    assert rows[0].startswith("| a | 18 |")
    assert "+3" in rows[0] or "+2" in rows[0], rows[0]
