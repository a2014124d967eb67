"""A baseline of fresh processes, where it can be stored and where not; `test_against_history` compares with one."""

from pathlib import Path

import pytest

from meta_tests.prooflops.gate.foreign_repo import run
from meta_tests.prooflops.gate.without_processes import FINGERPRINT, A, B, Processes, measurement
from prooflops.gate.process_plan import FIRST
from prooflops.gate.recording import record
from prooflops.history import records


def processes() -> Processes:
    return Processes(lambda _: {A: (1.0, 1.2, 1.1), B: 2e-3})


def test_a_history_that_cannot_be_written_is_reported_and_so_are_the_processes(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(
        foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "2",
        PROOFLOPS_HISTORY=str(tmp_path / "file"),
    )  # fmt: skip
    assert done.code == 1
    assert "could not be written" in done.output
    assert " passed" in done.output


def test_every_process_runs_all_tests_at_the_first_pace_and_is_a_record_of_the_baseline(tmp_path: Path) -> None:
    given = processes()
    found = measurement(tmp_path, given, record="main", replicates=3)
    given.extra = {"contention": {"contended": True}}
    record(found, [A, B])
    assert [(each.ids, each.benchmarks_only, each.paces) for each in given.asked] == [([A, B], False, FIRST)] * 3
    stored = records.baseline(tmp_path / "history", "main", records.fingerprint_id(FINGERPRINT), ())
    assert [each.benchmarks[A].time_s for each in stored] == [1.0, 1.2, 1.1]
    assert [each.pace for each in stored] == [FIRST] * 3
    assert found.title == "3 fresh processes recorded"
    assert found.table == [
        ["benchmark", "processes", "time", "spread", "slowest", "contended"],
        [A, "3", "1.10 s", "12.9%", "+9.1%", "3"],
        [B, "3", "2.00 ms", "0.0%", "+0.0%", "3"],
    ]
    assert [line.partition(", named in ")[0] for line in found.lines] == ["baseline main: 3 records"]


def test_without_a_name_five_processes_are_recorded_and_none_is_a_baseline(tmp_path: Path) -> None:
    found = measurement(tmp_path, processes())
    said: list[str] = []
    found.progress = lambda text, ahead_s: said.append(text)  # type: ignore[assignment]
    record(found, [A])
    assert said == ["replicate 1 of 5"], "and later ones no sooner than 20 s after it"
    assert found.title == "5 fresh processes recorded"
    assert found.table[1][-1] == "", "nothing competed"
    assert (found.lines, records.baselines(tmp_path / "history")) == ([], {})


def test_what_is_not_whole_is_no_baseline(tmp_path: Path) -> None:
    given = processes()
    given.outcome = "failed"
    found = measurement(tmp_path, given, record="main", replicates=1)
    record(found, [A, B])
    assert found.lines == ["not stored as main: 2 tests failed"]
    with pytest.raises(pytest.UsageError, match="no test is selected"):
        record(found, [])
    found = measurement(tmp_path, given := processes(), record="main", replicates=3, folder=tmp_path / "test_b.py")
    record(found, [A])
    assert len(given.asked) == 1, "the next could not be stored either"
    assert (found.title, found.lines) == ("0 fresh processes recorded", [])
    given.prooflops.clear()
    with pytest.raises(pytest.UsageError, match=r"prooflops\.plugin is not active"):
        record(found, [A])
    assert not records.baselines(tmp_path / "history")
