"""`--report-compare`: a page and an exit code from many records."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from meta_tests.conftest import ROOT
from meta_tests.contradictions import contradictions
from meta_tests.prooflops.suite.fleet.test_nodes import RECORD
from prooflops.suite.fleet import command
from prooflops_gate.history.records import as_text


def write_records(folder, record, nodes, bad, by, seed=0):
    """Records as `nodes` machines of this kind would write them; the first `bad` are slower."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for node in range(nodes):
        each = copy.deepcopy(record)
        each["machine_info"] = {"node": f"node-{node}"}
        each["prooflops"]["fingerprint"]["driver"] = "550.1" if node < bad else "570.2"
        own = 0.004 * random.standard_normal() + (np.log1p(by) if node < bad else 0.0)
        for bench in each["benchmarks"]:
            bench["stats"]["median"] *= float(np.exp(own + 0.005 * random.standard_normal()))
            bench["extra_info"].pop("contention", None)
        (folder / f"{node:04d}.json").write_text(as_text(each), encoding="utf-8")


def config(tmp_path, first, *more):
    # A shell makes these of --report-compare=*.json.
    option = SimpleNamespace(
        report=str(tmp_path / "out"),
        report_compare=[str(first)],
        file_or_dir=[*map(str, more)],
    )
    return SimpleNamespace(option=option)


def test_a_bad_machine_is_a_suspect_and_by_a_second_run_bad(tmp_path):
    said = []
    write_records(tmp_path / "first", RECORD, 12, 1, 0.2)
    assert command.run(config(tmp_path, tmp_path / "first"), said.append) == 0
    assert any(
        line.startswith("suspect: node-0") and "at the same time as node-" in line for line in said
    ), said
    again = {**RECORD, "datetime": "2026-01-02T00:00:00+00:00"}
    write_records(tmp_path / "second", again, 12, 1, 0.2, seed=1)
    said.clear()
    assert command.run(config(tmp_path, tmp_path / "first", tmp_path / "second"), said.append) == 1
    assert [
        line.split()[1].strip(":,") for line in said if line.startswith(("bad: ", "suspect: "))
    ] == ["node-0"], said
    for name in ("compare.md", "compare.html"):
        assert "node-0" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_kept_evidence_is_compared_as_a_record_of_its_machine(tmp_path):
    write_records(tmp_path / "first", RECORD, 1, 0, 0.0)
    said = []
    (evidence,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    assert command.run(config(tmp_path, tmp_path / "first", evidence), said.append) == 0
    assert said[0].startswith("NVIDIA H200, torch 2.11.0+cu130, "), said
    assert said[1].startswith("2 runs of 2 machines, 2026-")
    title = said.index("Does it deliver?")
    head, verdicts = said[title + 1 : title + 3]
    assert head.startswith("figure"), "the verdicts come first, side by side"
    assert verdicts.split()[0] == "verdict"
    assert verdicts.endswith("DELIVERS")
    assert "NOT KNOWN" in verdicts


def test_of_one_run_the_page_says_that_there_is_no_other(tmp_path):
    write_records(tmp_path / "first", RECORD, 1, 0, 0.0)
    said = []
    assert command.run(config(tmp_path, tmp_path / "first"), said.append) == 0
    assert said[0] == "one run: there is no other to compare it with"
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "<h1>one run of node-0 cuda:1</h1>" in page


def test_a_whole_and_a_partial_run_are_compared_by_what_both_checked(tmp_path):
    other = {**RECORD["benchmarks"][0], "name": "test_b", "fullname": "bench/test_b.py::test_b"}
    verdicts = [{"id": name, "verdict": "holds"} for name in ("a.b", "a.c", "a.d")]
    part = {**copy.deepcopy(RECORD), "datetime": "2026-01-02T00:00:00+00:00"}
    part["benchmarks"][0]["stats"]["median"] = 1.42
    ours = RECORD["prooflops"]
    seen = [{"id": "a.b", "verdict": "FAILS"}, {"id": "a.c", "verdict": "not checked"}]
    records = {
        "whole": {
            **RECORD,
            "benchmarks": [*RECORD["benchmarks"], other],
            "prooflops": {**ours, "verdicts": verdicts},
        },
        "part": {
            **part,
            "prooflops": {**ours, "verdicts": seen, "selection": "only bench/test_a.py"},
        },
    }
    for name, record in records.items():
        (tmp_path / f"{name}.json").write_text(as_text(record), encoding="utf-8")
    said = []
    assert command.run(config(tmp_path, tmp_path), said.append) == 0
    assert (
        said[0]
        == "part of a run, against whole run: of 1 benchmark 1 slower (most a: 1.42x the time); "
        "median difference 42.0%"
    )
    assert any(
        "part of a run: node-7" in line and "only bench/test_a.py" in line for line in said
    ), said
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    text = "\n".join(said) + page
    assert "a.b" in text
    assert not any(words in text for words in ("a.c", "a.d", "none is named", "cannot tell"))
    assert page.index("1 slower") < page.index("Time, against") < page.index("Claims that differ")


def test_a_comparison_that_contradicts_its_rows_is_seen(tmp_path):
    write_records(tmp_path / "first", RECORD, 1, 0, 0.0)
    (evidence,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    later = {**RECORD, "datetime": "2026-01-02T00:00:00+00:00"}
    write_records(tmp_path / "second", later, 1, 1, 1.0)
    command.run(config(tmp_path, tmp_path / "first", tmp_path / "second"), print)
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert contradictions(page) == []
    assert "1 slower" in page
    (said,) = contradictions(page.replace("1 slower", "2 slower"))
    assert said.startswith("so many rows are slower: 1; but: ")
    command.run(config(tmp_path, tmp_path / "first", evidence), print)
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert contradictions(page) == []
    (said,) = contradictions(page.replace("TFLOP/s", "TFLOP/s BELOW FLOOR", 1))
    assert "delivers, but below their floors are" in said


def run_of_one_machine(seed, slower=0.0):
    """A record of 60 benchmarks of 0.1 µs to 1 s, with the scatter of rounds and of whole runs."""
    random = np.random.default_rng(seed)
    record = copy.deepcopy(RECORD)
    (model,) = record["benchmarks"]
    record["benchmarks"] = []
    for number, time_s in enumerate(np.geomspace(1e-7, 1.0, 60)):
        each = copy.deepcopy(model)
        each["name"] = f"test_a[{number}]"
        each["fullname"] = f"bench/test_a.py::test_a[{number}]"
        drift = 1 + 0.006 * random.standard_normal()
        rounds = time_s * drift * np.exp(0.01 * np.abs(random.standard_normal(31)))
        low, middle, high = np.quantile(rounds, (0.25, 0.5, 0.75))
        middle *= 1 + slower * (number == 0)
        each["stats"] |= {"median": float(middle), "iqr": float(high - low)}
        each["extra_info"] |= {"ci_low": float(low), "ci_high": float(high)}
        record["benchmarks"].append(each)
    return record


@pytest.mark.parametrize("slower", [0.0, 0.1])
def test_two_runs_of_one_machine_differ_by_what_is_planted_alone(tmp_path, slower):
    records = {"a": run_of_one_machine(1), "b": run_of_one_machine(2, slower)}
    for name, record in records.items():
        (tmp_path / f"{name}.json").write_text(as_text(record), encoding="utf-8")
    said = []
    assert command.run(config(tmp_path, tmp_path), said.append) == 0
    named = "1 slower (most a[0]: 1.10x the time), 59" if slower else "60"
    assert f": of 60 benchmarks {named} within their spread; median difference 0." in said[0]


def test_a_time_whose_rounds_a_slow_core_took_is_not_compared(tmp_path):
    slow = run_of_one_machine(2, slower=1.0)
    labels = ["contended: this core ran at 42% of its speed"]
    slow["benchmarks"][0]["extra_info"]["conditions"] = {"labels": labels}
    for name, record in {"a": run_of_one_machine(1), "b": slow}.items():
        (tmp_path / f"{name}.json").write_text(as_text(record), encoding="utf-8")
    said = []
    assert command.run(config(tmp_path, tmp_path), said.append) == 0
    assert ": of 59 benchmarks 59 within their spread, 1 more not compared; " in said[0]
