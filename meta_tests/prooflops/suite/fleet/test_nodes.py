"""Records are read from folders, files and pytest-benchmark's storages, and what cannot be read is named."""

import json
from pathlib import Path

import pytest

from prooflops.suite.fleet.nodes import read_runs

RECORD = {
    "datetime": "2026-01-01T00:00:00+00:00",
    "machine_info": {"node": "node-7"},
    "benchmarks": [{"name": "test_a", "fullname": "bench/test_a.py::test_a",
                    "stats": {"median": 1.0, "mean": 1.0, "iqr": 0.0},
                    "extra_info": {"dtype": "bf16", "flop_per_s": 1e12}}],
    "prooflops": {"fingerprint": {"name": "card", "device": "cuda:1", "torch": "2.13", "driver": None},
                  "verdicts": [{"id": "a.b", "verdict": "holds"}]},
}  # fmt: skip


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
