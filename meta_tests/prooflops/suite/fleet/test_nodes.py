"""Any record is compared, or named as one that cannot be read."""

from dataclasses import replace

from hypothesis import given

from meta_tests.prooflops_gate.history.test_records import changed, unhurried
from prooflops.suite.fleet.command import page_of
from prooflops.suite.fleet.nodes import NodeRun, read_runs
from prooflops.suite.fleet.slow import fleets
from prooflops_gate.history.records import as_text

RECORD = {
    "datetime": "2026-01-01T00:00:00+00:00",
    "machine_info": {"node": "node-7"},
    "benchmarks": [
        {
            "name": "test_a",
            "fullname": "bench/test_a.py::test_a",
            "stats": {"median": 1.0, "mean": 1.0, "iqr": 0.0, "q1": 1.0, "data": [1.0, 1.0]},
            "extra_info": {
                "dtype": "bf16",
                "flop_per_s": 1e12,
                "ci_low": 0.9,
                "ci_high": 1.1,
                "mfu": 0.5,
                "contention": {"contended": False},
                "conditions": {"labels": ["throttled: hot"]},
            },
        }
    ],
    "prooflops": {
        "fingerprint": {"name": "card", "device": "cuda:1", "torch": "2.13", "driver": None},
        "verdicts": [{"id": "a.b", "verdict": "holds", "reason": "", "tests": ["t.py::test_a"]}],
    },
}
RUN = NodeRun.of(RECORD)


@unhurried
@given(record=changed(RECORD))
def test_any_record_is_compared_or_named_and_stops_no_comparison(tmp_path, record):
    for name, content in {"good": RECORD, "x": record}.items():
        (tmp_path / f"{name}.json").write_text(as_text(content))
    runs, unreadable = read_runs([str(tmp_path)])
    assert len(runs) + len(unreadable) == 2
    runs += [replace(RUN, node=f"node-{node}") for node in range(4)]
    assert page_of(runs, fleets(runs), unreadable).sections


def test_a_folder_has_the_records_of_runs_beside_other_files(tmp_path):
    files = ("node.json", "verdicts.json", "baselines/main.json", "gate/last.json", "dead.jsonl")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(as_text(RECORD) if name == "node.json" else "")
    runs, unreadable = read_runs([str(tmp_path)])
    assert [run.node for run in runs] == ["node-7 cuda:1"]
    assert unreadable == [f"{tmp_path}/dead.jsonl: the run ended before its first test"]
