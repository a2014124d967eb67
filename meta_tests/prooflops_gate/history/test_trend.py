"""The trend of each benchmark.

One series per machine and method, its changes named by record and commit.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from meta_tests.prooflops_gate.statistics.simulated import times
from prooflops_gate.history import listing, records, trend
from prooflops_gate.history.records import Summary, Timed

NAME = "bench/test_a.py::test_a"


def summary(index, time_s, *, device="cpu-1", method=3):
    moment = f"2026-11-{1 + index // 24:02d}T{index % 24:02d}:00:00"
    timed = {NAME: Timed(time_s, {}, method)}
    return Summary(
        Path(f"{index:04d}.json"), moment, device, "Some CPU", "2.13.0", f"c{index:07d}", timed
    )


def test_another_machine_method_or_pace_begins_a_series_of_its_own():
    summaries = [summary(0, 1.0), summary(1, 1.0, device="cpu-2"), summary(2, 1.0, method=4)]
    summaries.append(replace(summary(3, 1.0), pace="quick"))
    assert sorted(len(each.records) for each in trend.trends(summaries)) == [1, 1, 1, 1]


@pytest.mark.parametrize(("commits", "changes"), [("a" * 24, 0), ("a" * 12 + "b" * 12, 1), ("", 1)])
def test_a_step_needs_another_commit(commits, changes):
    found = [
        replace(summary(number, time_s), commit=commits[number : number + 1])
        for number, time_s in enumerate(times((1.0, 12), (1.3, 12)))
    ]
    (shown,) = trend.trends(found)
    assert len(shown.changes) == changes


def test_the_newest_300_records_count():
    assert len(trend.trends([summary(index % 600, 1.0) for index in range(301)])[0].records) == 300


def test_records_unreadable_files_and_baselines_are_listed(tmp_path, capsys, golden):
    for number in range(9):
        contention = {"contended": number == 0}
        bench = {"fullname": "a", "stats": {"min": 1.0}, "extra_info": {"contention": contention}}
        ours = {"fingerprint": {"name": "A CPU"}}
        commit = {"id": "1a2b3c4d5e6f", "dirty": number == 0}
        record = {"benchmarks": [bench], "prooflops": ours, "commit_info": commit}
        path = records.append_record(tmp_path, record, {"name": "A CPU"})
    records.store_baseline(tmp_path, "main", "1a2b3c4d5e6f")
    (path.parent / "0.json").write_text("cut o")
    assert listing.print_history(tmp_path, [], report=None, root=tmp_path) == 0
    listed = capsys.readouterr().out
    for each in records.record_files(tmp_path):
        listed = listed.replace(each.name.ljust(37), "<record>.json")
    golden("history_list", listed, figures=True)
    assert (path.parent / "0.json").read_text() == "cut o", "a foreign file is left alone"
