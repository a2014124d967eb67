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
    titles,
)
from prooflops.suite.fleet.nodes import NodeRun, Timing
from prooflops.suite.fleet.slow import fleet
from prooflops.suite.page.measurement import Measurement
from prooflops_gate.history.records import as_text
from prooflops_gate.page.section import Page, Section

LATER = {**RECORD, "datetime": "2026-01-02T00:00:00+00:00"}


def write_records(folder, record, nodes, slowdown):
    """Records as `nodes` machines of this kind would write them; the first one is slower."""
    folder.mkdir(parents=True)
    for node in range(nodes):
        each = copy.deepcopy(record)
        each["machine_info"] = {"node": f"node-{node}"}
        for bench in each["benchmarks"]:
            factor = 1 + (slowdown if node == 0 else 0.002 * node)
            bench["stats"]["median"] *= factor
            bench["extra_info"]["flop_per_s"] /= factor
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
    golden("fleet_of_machines", said, figures=True)
    for name in ("compare.md", "compare.html"):
        assert "node-0" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_kept_evidence_is_compared_as_a_record_of_its_machine(tmp_path, golden):
    first = write_records(tmp_path / "first", RECORD, 1, 0.0)
    (evidence,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    code, said = compared(tmp_path, first, evidence)
    assert code == 0
    golden("fleet_of_two_runs", said, figures=True)


def test_of_one_run_the_page_says_that_there_is_no_other(tmp_path):
    code, said = compared(tmp_path, write_records(tmp_path / "first", RECORD, 1, 0.0))
    assert code == 0
    assert "Only one run was given, so there is nothing to compare it with" in said
    assert "needed to name" not in said
    assert "Claims that" not in said


def test_of_two_machines_none_is_slow_and_a_claim_may_fail_on_one(tmp_path):
    records = write_records(tmp_path / "first", RECORD, 2, 0.2)
    failing = records / "0001.json"
    failing.write_text(failing.read_text().replace("holds", "FAILS"))
    _, said = compared(tmp_path, records)
    assert "card, 2 machines: 4 are needed to name a slow one." in said.splitlines()
    _, claims = said.split("Claims that fail or differ\n")
    assert "a.b" in claims
    assert "Slow machines" not in said


def test_each_row_is_printed_or_counted():
    for more in (0, 1):
        said = []
        rows = [["row"]] * (command.MOST_PRINTED_ROWS + more)
        command.print_page(Page("", "", [Section("", [["head"], *rows])]), said.append)
        assert [line for line in said if "more" in line] == ["and 1 more on the page"] * more
        assert sum("row" in line for line in said) == command.MOST_PRINTED_ROWS


def run_of(times_s=None, spreads=None, **facts):
    plain = {"node": "a", "kind": "card", "date": "2026-01-01", "software": {}, "verdicts": {}}
    times_s = times_s or {"x": 1.0}
    timings = {
        name: Timing(time_s, "s", (spreads or {}).get(name, 0.0))
        for name, time_s in times_s.items()
    }
    return NodeRun(**{**plain, "timings": timings, **facts})


def test_two_runs_are_compared_by_what_both_settled():
    settled = dict.fromkeys(("a.b", "a.c", "a.d", "a.e", "a.g"), "holds") | {"a.f": "FAILS"}
    whole = run_of(verdicts=settled, times_s={"x": 1.0, "y": 1.0}, spreads={"x": 0.1, "y": 0.1})
    verdicts = {"a.b": "FAILS", "a.c": "not checked", "a.d": "holds", "a.e": "corrected"}
    part = run_of(date="2026-01-02", verdicts=verdicts, times_s={"x": 1.42}, partial="only x")
    shown = [whole, part]
    assert titles(shown) == ["a, 2026-01-01", "a, 2026-01-02"]
    assert contested_claims(shown) == [
        ["a.b", "holds", "FAILS"],
        ["a.e", "holds", "corrected"],
        ["a.f", "FAILS", "-"],
    ]
    assert times(shown) == [["x", "1.00 s", "1.42x"]]


def test_the_software_that_differs_stands_in_the_titles():
    old, new = (run_of(software={"torch": torch, "cuda": "13"}) for torch in ("2.6", "2.7"))
    assert titles([old, new]) == ["a, torch 2.6", "a, torch 2.7"]


def test_of_many_machines_those_that_stand_out_have_a_column():
    runs = [run_of(node=f"n{number}") for number in range(9)]
    bad = run_of(node="n7", verdicts={"a.b": "FAILS"}, date="2026-01-02")
    shown = columns([*runs, bad, run_of(node="below", answer="BELOW FLOOR")], ["n3"])
    assert [run.node for run in shown] == ["n0", "n3", "n7", "below"]
    assert shown[2] is bad, "the newest run of a machine"
    assert columns(runs[:8], []) == runs[:8]
    assert len(columns(runs, [run.node for run in runs])) == 8


def test_a_change_is_what_two_runs_of_one_machine_would_not_show():
    before = run_of(times_s={"a": 1.0, "b": 1.0, "c": 1.0}, spreads={"a": 0.0, "b": 0.1, "c": 0.0})
    again = {"a": 1.1, "b": 1.1, "c": 1.02}
    spreads = {"a": 0.05, "b": 0.05, "c": 0.0}
    (said,) = changes([before, run_of(date="2026-01-02", times_s=again, spreads=spreads)])
    assert "3 benchmarks, 1 slower, 0 faster, the others within" in said
    assert "a differs most, taking 1.10x the time" in said
    wide = Timing(1.0, "s", 0.9)
    assert not is_within_spread(wide, wide, 0.002), "500 times as fast is no noise"


def test_a_time_whose_rounds_a_slow_core_took_is_not_compared():
    record = copy.deepcopy(RECORD)
    labels = ["contended: this core ran at 42% of its speed"]
    record["benchmarks"][0]["extra_info"]["conditions"] = {"labels": labels}
    assert NodeRun.of(record).timings == {}
    assert NodeRun.of(record, contended=True).timings


@pytest.mark.parametrize(
    ("first", "other", "cells"),
    [
        ({}, {}, ["1.00 s", "2.00x"]),
        # Sizes that fit each machine are compared by their rates.
        ({"flop_per_s": 8.0}, {"flop_per_s": 2.0}, ["8.00 FLOP/s", "4.00x"]),
        ({"tokens_per_s": 512}, {"tokens_per_s": 8192}, ["512 tokens/s", "1/16"]),
        ({"flop_per_s": 8.0}, {}, ["8.00 FLOP/s", "-"]),
    ],
)
def test_rates_are_compared_where_there_are_any_else_times(first, other, cells):
    shown = [
        run_of(timings={"x": Timing.of(Measurement("x", "x", median_s, 0.0, info))})
        for median_s, info in ((1.0, first), (2.0, other))
    ]
    assert times(shown) == [["x", *cells]]


def test_a_machine_with_smaller_arrays_is_compared_by_its_rate():
    runs = [run_of(node=str(n), timings={"x": Timing(100.0, "B/s")}) for n in range(5)]
    slow = run_of(node="slow", timings={"x": Timing(70.0, "B/s")})
    assert [each.node for each in fleet("card", [*runs, slow]).slow] == ["slow"]
