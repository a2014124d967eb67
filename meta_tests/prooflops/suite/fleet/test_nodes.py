"""Records are read from folders, files and pytest-benchmark's storages, and what cannot be read is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from meta_tests.prooflops.history.test_records import changed, unhurried
from prooflops.history.records import as_text
from prooflops.suite.fleet.bad_nodes import fleets
from prooflops.suite.fleet.command import headline, tables_of
from prooflops.suite.fleet.nodes import NodeRun, _shortened, read_runs

RECORD = {
    "datetime": "2026-01-01T00:00:00+00:00",
    "machine_info": {"node": "node-7"},
    "benchmarks": [{"name": "test_a", "fullname": "bench/test_a.py::test_a",
                    "stats": {"median": 1.0, "mean": 1.0, "iqr": 0.0, "q1": 1.0, "data": [1.0, 1.0]},
                    "extra_info": {"dtype": "bf16", "flop_per_s": 1e12, "ci_low": 0.9, "ci_high": 1.1, "mfu": 0.5,
                                   "contention": {"contended": False},
                                   "conditions": {"labels": ["throttled: hot"]}}}],
    "prooflops": {"fingerprint": {"name": "card", "device": "cuda:1", "torch": "2.13", "driver": None},
                  "verdicts": [{"id": "a.b", "verdict": "holds", "reason": "", "tests": ["t.py::test_a"]}]},
}  # fmt: skip
RUN = NodeRun.of(RECORD, "")


def test_records_of_a_folder_are_read_and_others_named(tmp_path: Path) -> None:
    (tmp_path / "card" / "baselines").mkdir(parents=True)
    (tmp_path / "card" / "1.json").write_text(json.dumps(RECORD))
    (tmp_path / "card" / "torn.json").write_text('{"benchmarks": [')
    (tmp_path / "card" / "baselines" / "main.json").write_text("{}")
    (run,), (unreadable,) = read_runs([str(tmp_path)])
    assert (run.node, run.kind, run.software) == ("node-7 cuda:1", "card", {"torch": "2.13"})
    assert run.best["bf16"].arithmetic_rate == 1e12
    assert run.traits["torch"] == "2.13"
    assert "driver" not in run.traits
    assert "torn.json: not a record of this suite" in unreadable
    assert read_runs([str(tmp_path / "card" / "1.json")])[0] == [run]


def test_a_storage_of_pytest_benchmark_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "Linux-CPython-3.11-64bit"
    folder.mkdir()
    (folder / "0001_run.json").write_text(json.dumps({**RECORD, "version": "5.3.1"}))
    (run,), _ = read_runs([f"file://{tmp_path}"])
    assert run.node == "node-7 cuda:1"


@pytest.mark.parametrize("there", [True, False])
def test_a_source_without_a_record_is_refused(tmp_path: Path, there: bool) -> None:
    source = tmp_path if there else tmp_path / "nowhere"
    with pytest.raises(ValueError, match=r"no record of this suite in it|no such folder or file"):
        read_runs([str(source)])


def test_what_no_comparison_asks_for_is_passed_over_and_whatever_the_form_the_run_is_the_same(tmp_path: Path) -> None:
    def backwards(value: Any) -> Any:
        return {key: backwards(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    text = as_text({**RECORD, "benchmarks": 2 * RECORD["benchmarks"]})
    assert not [part for part in ("data", "tests", "reason") if f'"{part}"' in _shortened(text.encode()).decode()]
    for name, form in {"1": text, "2": json.dumps(json.loads(text)), "3": as_text(backwards(json.loads(text)))}.items():
        (tmp_path / f"{name}.json").write_text(form)
    first, *others = read_runs([str(tmp_path)])[0]
    assert [replace(each, source=first.source) for each in others] == [first, first]


@pytest.mark.parametrize("times_s", [{}, {"bench/test_a.py::test_a": 1.0}])
def test_contended_measurements_are_left_out(times_s: dict[str, float]) -> None:
    (bench,) = RECORD["benchmarks"]
    extra = {**bench["extra_info"], "contention": {"contended": not times_s}}
    assert NodeRun.of({**RECORD, "benchmarks": [{**bench, "extra_info": extra}]}, "").times_s == times_s


@pytest.mark.parametrize("text", ["[" * 100_000, '{"prooflops": ' * 100_000, "1" * 5000, "\ufeff{}", "", "null"])
def test_a_file_that_is_no_record_is_named_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.json").write_text(as_text(RECORD))
    (tmp_path / "2.json").write_text(text, encoding="utf-8")
    (_,), (unreadable,) = read_runs([str(tmp_path)])
    assert unreadable.startswith(f"{tmp_path / '2.json'}: not a record of this suite")


@pytest.mark.parametrize(
    "extra",
    [{"ci_low": "a", "ci_high": 1}, {"contention": ["x"]}, {"conditions": {"labels": [5]}}, {"flop_per_s": 10**400}],
)
def test_a_figure_of_a_wrong_type_is_the_fault_of_its_record_alone(tmp_path: Path, extra: dict[str, Any]) -> None:
    (bench,) = RECORD["benchmarks"]
    wrong = {**RECORD, "benchmarks": [{**bench, "extra_info": {**bench["extra_info"], **extra}}]}
    for name, content in {"1": RECORD, "2": wrong}.items():
        (tmp_path / f"{name}.json").write_text(as_text(content))
    (_,), (unreadable,) = read_runs([str(tmp_path)])
    assert "2.json: not a record of this suite" in unreadable


@unhurried
@given(record=changed(RECORD))
def test_any_record_among_others_is_compared_or_named_and_stops_no_comparison(tmp_path: Path, record: Any) -> None:
    for name, content in {"good": RECORD, "x": record}.items():
        (tmp_path / f"{name}.json").write_text(as_text(content))
    runs, unreadable = read_runs([str(tmp_path)])
    assert len(runs) + len(unreadable) == 2
    runs += [replace(RUN, node=f"node-{node}") for node in range(4)]
    assert headline(runs, fleets(runs))
    assert tables_of(runs, {"card": 2.0})
