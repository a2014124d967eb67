"""The trend of each benchmark: one series per machine and method, its changes named by record and commit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meta_tests.prooflops.statistics.simulated import times
from prooflops.history import records, trend
from prooflops.history.records import Summary, Timed
from prooflops.suite.report.html import trend_row
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.writing import trends_of


def summary(index: int, time_s: float, *, device: str = "cpu-1", method: int = 3) -> Summary:
    benchmarks = {"bench/test_a.py::test_a": Timed(time_s, {}, {}, method)}
    moment = f"2026-11-{1 + index // 24:02d}T{index % 24:02d}:00:00"
    return Summary(Path(f"{index:04d}.json"), moment, device, "Some CPU", "2.13.0", f"c{index:07d}", benchmarks, {})


def test_the_table_names_the_record_and_commit_of_a_change() -> None:
    summaries = [summary(index, time) for index, time in enumerate(times((1.0, 12), (1.3, 12)))]
    tables = trend.tables(summaries)
    assert list(tables) == ["cpu-1"]
    head, row = tables["cpu-1"]
    assert head == trend.HEAD
    assert row[1] == "24"
    assert "at 2026-11-01T12:00:00 (c000001)" in row[-1], row


def test_a_row_has_the_first_and_the_last_time_and_says_where_records_are_too_few() -> None:
    few = [summary(index, time_s) for index, time_s in enumerate([1.0, *[1.5] * 5, 2.0])]
    row = trend.table(trend.trends(few))[1]
    assert [*row[1:4], row[-1]] == ["7", "1.00 s", "2.00 s", "too few records"]


def test_what_the_gate_said_is_kept_beside_the_records_and_shown_where_it_ran(tmp_path: Path) -> None:
    (tmp_path / "cpu-1").mkdir()
    name = "bench/test_a.py::test_a"
    for verdict, ratio in (("SLOWER", 1.104), ("INCONCLUSIVE", None)):
        rows = [{"name": name, "verdict": verdict, "ratio": ratio}]
        assert records.append_verdicts(tmp_path, "cpu-1", {"verdicts": rows})
    found = trend.trends([summary(index, 1.0) for index in range(12)])
    (shown,) = trend.with_verdicts(found, records.gate_verdicts(tmp_path, "cpu-1"))
    assert [text for _, text in shown.verdicts] == ["SLOWER 1.104", "INCONCLUSIVE"]
    earlier = replace(shown, verdicts=(("2026-11-01T04:30:00", "SLOWER 1.104"),))
    row = trend_row(earlier)
    assert row["gate"] == [{"x": f"{240 * 4.5 / 11:.1f}", "said": "SLOWER 1.104", "alarm": True}]
    assert row["said"] == "gate: SLOWER 1.104 on 2026-11-01"


def test_what_the_gate_said_before_the_first_record_is_left_out() -> None:
    summaries = [summary(index, 1.0) for index in range(12)]
    summaries[0] = replace(summaries[0], moment="2026-11-01T00:00:00.900000+00:00")
    found = trend.trends(summaries)
    moments = ("2026-10-31T23:59:59.9", "2026-11-01T00:00:00", "2026-11-01T00:30:00")
    said = [(moment, "bench/test_a.py::test_a", {"verdict": "SLOWER"}) for moment in moments]
    (shown,) = trend.with_verdicts(found, said)
    assert [moment for moment, _ in shown.verdicts] == [*moments[1:]]


def test_a_bar_is_as_high_as_its_share_of_the_range_and_noise_has_none() -> None:
    assert trend.sparkline([9.0, *[1.0] * 23, 2.0]) == "▁" * 23 + "█", "the newest 24 are shown"
    assert (trend.sparkline([1.0, 1.03001]), trend.sparkline([1.0, 1.02999])) == ("▁█", "▁▁")


def test_trends_with_enough_records_are_a_section_of_the_report_the_changed_ones_first() -> None:
    found = []
    series_of = {"steady": [1.0] * 8, "few": [1.0] * 7, "steps": times((1.0, 12), (1.3, 12)), "other": [1.0] * 9}
    for name, series in series_of.items():
        for index, time_s in enumerate(series):
            one = summary(index, time_s)
            found.append(replace(one, benchmarks={name: one.benchmarks["bench/test_a.py::test_a"]}))
    enough = trend.long_enough(found, {"steady", "few", "steps"})
    assert [each.name for each in enough] == ["steps", "steady"]
    lines = trend.markdown(enough)
    assert lines[:3] == ["## Trend", "", "| benchmark | records | first | last | trend | changes of level |"]
    assert lines[-2:] == ["Changes of level by more than 3%, by ranks.", ""]
    assert lines[-4].startswith("| steady | 8 | 1.00 s | 1.00 s |")
    assert trend.markdown([]) == []
    assert trend.sparkline([1.0, 1.03]) == "▁▁", "a bar for more than 3 %"
    assert len(trend.trends([summary(index, 1.0) for index in range(301)])[0].records) == 300


def test_another_machine_or_method_begins_a_series_of_its_own() -> None:
    summaries = [summary(0, 1.0), summary(1, 1.0, device="cpu-2"), summary(2, 1.0, method=4)]
    assert sorted(len(each.records) for each in trend.trends(summaries)) == [1, 1, 1]
    assert {device: len(rows) for device, rows in trend.tables(summaries).items()} == {"cpu-1": 3, "cpu-2": 2}


def test_of_a_long_history_the_newest_records_are_looked_at() -> None:
    draw = np.random.default_rng(0).lognormal(0, 0.05, (400, 20))
    summaries = []
    for index, row in enumerate(draw):
        benchmarks = {f"bench/test_a.py::test_{j}": Timed(time_s, {}, {}) for j, time_s in enumerate(row)}
        summaries.append(Summary(Path(f"{index:04d}.json"), f"{index:04d}", "a", "A", "2.13.0", "", benchmarks, {}))
    found = trend.trends(summaries)
    assert [len(each.records) for each in found] == [300] * 20


def test_the_report_shows_the_trend_of_its_own_benchmarks_on_its_own_machine(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    def stored(fingerprint: dict[str, str], name: str, series: list[float]) -> None:
        for time_s in series:
            record = {"benchmarks": [{"fullname": name, "stats": {"min": time_s}}]}
            records.append(tmp_path, {**record, "prooflops": {"fingerprint": fingerprint}}, fingerprint)

    mine, other = {"name": "mine"}, {"name": "other"}
    stored(mine, "a", times((1.0, 9), (1.3, 9)))
    stored(mine, "few", [1.0] * 7)
    stored(mine, "enough", [1.0] * 8)
    stored(mine, "not in this run", times((1.0, 9)))
    stored(other, "a", times((9.0, 9)))
    lines = trend.markdown(trends_of(pytestconfig, tmp_path, RunReport(mine, ()), {"a", "few", "enough"}))
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert lines[0] == "## Trend"
    assert len(rows) == 2, f"{rows}, but should be the rows of the benchmarks with enough records on this machine"
    assert rows[0].startswith("| a | 18 |")
    assert rows[1].startswith("| enough | 8 |"), "what changed comes first"
    assert rows[1].endswith("| none found |"), rows[1]
    assert "+3" in rows[0] or "+2" in rows[0], rows[0]
