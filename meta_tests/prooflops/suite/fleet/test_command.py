"""`python -m prooflops compare`: a page and an exit code from many records."""

import copy

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.suite.fleet.test_nodes import RECORD
from prooflops.suite.fleet import command
from prooflops.suite.fleet.columns import (
    changes,
    columns,
    contested_claims,
    is_within_spread,
    times,
)
from prooflops.suite.fleet.nodes import NodeRun, Timing
from prooflops.suite.fleet.slow import fleet
from prooflops.suite.page.measurement import Measurement
from prooflops_gate.history.records import as_text

LATER = {**RECORD, "datetime": "2026-01-02T00:00:00+00:00"}


def write_records(folder, record, nodes, slowdown):
    """Records as `nodes` machines of this kind would write them; the first one is slower."""
    folder.mkdir(parents=True)
    for node in range(nodes):
        each = copy.deepcopy(record)
        each["machine_info"] = {"node": f"node-{node}"}
        for bench in each["benchmarks"]:
            bench["stats"]["median"] *= 1 + (slowdown if node == 0 else 0.002 * node)
        (folder / f"{node:04d}.json").write_text(as_text(each), encoding="utf-8")
    return folder


def compared(tmp_path, first, *more):
    """The exit code, and what is printed."""
    said = []
    code = command.run([str(each) for each in (first, *more)], tmp_path / "out", said.append)
    return code, "\n".join(said)


def test_a_slow_machine_is_a_suspect_and_by_a_second_run_bad(tmp_path, golden):
    first = write_records(tmp_path / "first", RECORD, 12, 0.2)
    assert compared(tmp_path, first)[0] == 0
    second = write_records(tmp_path / "second", LATER, 12, 0.2)
    code, said = compared(tmp_path, first, second)
    assert code == 1
    golden("fleet_of_machines", said)
    for name in ("compare.md", "compare.html"):
        assert "node-0" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_kept_evidence_is_compared_as_a_record_of_its_machine(tmp_path, golden):
    first = write_records(tmp_path / "first", RECORD, 1, 0.0)
    (evidence,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    code, said = compared(tmp_path, first, evidence)
    assert code == 0
    golden("fleet_of_two_runs", said)


def test_of_one_run_the_page_says_that_there_is_no_other(tmp_path):
    code, said = compared(tmp_path, write_records(tmp_path / "first", RECORD, 1, 0.0))
    assert code == 0
    assert said.startswith("one run: there is no other to compare it with")


def run_of(times_s=None, spreads=None, **facts):
    plain = {"node": "a", "kind": "card", "date": "2026-01-01", "software": {}, "verdicts": {}}
    times_s = times_s or {"x": 1.0}
    timings = {
        name: Timing(time_s, (spreads or {}).get(name, 0.0)) for name, time_s in times_s.items()
    }
    return NodeRun(**{**plain, "timings": timings, **facts})


def test_a_whole_and_a_partial_run_are_compared_by_what_both_settled():
    whole = run_of(
        verdicts=dict.fromkeys(("a.b", "a.c", "a.d"), "holds"),
        times_s={"x": 1.0, "y": 1.0},
        spreads={"x": 0.1, "y": 0.1},
    )
    verdicts = {"a.b": "FAILS", "a.c": "not checked"}
    part = run_of(date="2026-01-02", verdicts=verdicts, times_s={"x": 1.42}, partial="only x")
    shown = columns([whole, part])
    assert [column.title for column in shown] == ["2026-01-01", "2026-01-02"]
    assert contested_claims(shown) == [["a.b", "holds", "FAILS"]]
    assert times(shown) == [["x", "1.00 s", "1.42x"]]


def test_many_runs_are_shown_by_kind_with_the_number_of_each_verdict():
    runs = [run_of(node=f"n{number}", verdicts={"a.b": "holds"}) for number in range(9)]
    runs.append(run_of(node="n0", verdicts={"a.b": "FAILS"}, times_s={"x": 3.0}))
    other = run_of(node="m", kind="other", verdicts={"a.b": "holds"}, times_s={"x": 2.0})
    shown = columns([*runs, other])
    assert [column.title for column in shown] == ["card, x9", "other, x1"]
    assert contested_claims(shown) == [["a.b", "holds ×8, FAILS ×1", "holds"]]
    assert times(shown) == [["x", "1.00 s", "2.00x"]]


def test_a_claim_that_fails_everywhere_or_in_one_run_alone_is_listed():
    both = run_of(verdicts={"a.b": "FAILS", "a.c": "holds", "a.d": "FAILS"})
    one = run_of(date="2026-01-02", verdicts={"a.b": "FAILS", "a.e": "holds"})
    assert contested_claims(columns([both, one])) == [
        ["a.b", "FAILS", "FAILS"],
        ["a.d", "FAILS", "-"],
    ]


def test_a_change_is_what_two_runs_of_one_machine_would_not_show():
    before = run_of(times_s={"a": 1.0, "b": 1.0, "c": 1.0}, spreads={"a": 0.0, "b": 0.1, "c": 0.0})
    again = {"a": 1.1, "b": 1.1, "c": 1.02}
    spreads = {"a": 0.05, "b": 0.05, "c": 0.0}
    (said,) = changes(columns([before, run_of(date="2026-01-02", times_s=again, spreads=spreads)]))
    assert "of 3 benchmarks 1 slower, 0 faster, 2 within their spread; most in a: 1.10x" in said
    wide = Timing(1.0, 0.9)
    assert not is_within_spread(wide, wide, 0.002), "500 times as fast is no noise"


def test_a_time_whose_rounds_a_slow_core_took_is_not_compared():
    record = copy.deepcopy(RECORD)
    labels = ["contended: this core ran at 42% of its speed"]
    record["benchmarks"][0]["extra_info"]["conditions"] = {"labels": labels}
    assert NodeRun.of(record).timings == {}
    assert NodeRun.of(record, contended=True).timings


def row_of(median_s, **info):
    return Timing.of(Measurement("x", "x", median_s, 0.0, info))


@pytest.mark.parametrize(
    ("first", "other", "cells"),
    [
        # Equal work: by time, though the rates are there.
        ({"flops": 8, "flop_per_s": 8.0}, {"flops": 8, "flop_per_s": 4.0}, ["1.00 s", "2.00x"]),
        # An operator that moves fewer bytes for the same FLOPs does the same work.
        ({"flops": 8, "bytes": 9}, {"flops": 8, "bytes": 5}, ["1.00 s", "2.00x"]),
        # Nothing is declared: the test is the same, and so is what it does.
        ({}, {}, ["1.00 s", "2.00x"]),
        (
            {"flops": 4_736_417_792, "flop_per_s": 4.7e9},
            {"flops": 14_308_356_390_912, "flop_per_s": 7.2e12},
            ["4.70 GFLOP/s", "1,532x the rate"],
        ),
        ({"tokens_per_s": 512}, {"tokens_per_s": 8192}, ["512 tokens/s", "16.00x the rate"]),
        # A launch-bound row has no rate.
        (
            {"bytes": 524_288, "bytes_per_s": 5e5, "bound": "launch"},
            {"bytes": 31_457_280, "bytes_per_s": 2e7},
            ["1.00 s", "not compared: 524 kB, 31.5 MB"],
        ),
        (
            {"flops": 8, "flop_per_s": 8.0},
            {},
            ["8.00 FLOP/s", "not compared: 8.00 FLOP, undeclared work"],
        ),
    ],
)
def test_times_of_equal_work_are_compared_else_rates_else_sizes(first, other, cells):
    runs = [
        run_of(timings={"x": row_of(1.0, **first)}),
        run_of(timings={"x": row_of(2.0, **other)}, date="2026-01-02"),
    ]
    shown = columns(runs)
    assert times(shown) == [["x", *cells]]
    (said,) = changes(shown)
    ratio = cells[1]
    assert ratio.removeprefix("not compared: ").replace(", ", " and ") in said


def test_a_machine_with_smaller_arrays_is_compared_with_those_of_its_size():
    large = {"x": Timing(1.0, work=(100, "B"))}
    small = {"x": Timing(0.5, work=(50, "B"))}
    runs = [run_of(node=str(n), timings=large if n < 4 else small) for n in range(6)]
    assert not fleet("card", runs).slow
    slow = run_of(node="slow", timings={"x": Timing(0.7, work=(50, "B"))})
    assert [each.node for each in fleet("card", [*runs, slow]).slow] == ["slow"]
