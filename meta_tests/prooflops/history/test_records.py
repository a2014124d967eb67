"""Run records survive kills, two writers and foreign files."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from meta_tests.conftest import ROOT
from prooflops.history import records as history

FINGERPRINT = {"name": "Some GPU 80GB", "torch": "2.13.0"}
RECORD = {"benchmarks": [], "prooflops": {"verdicts": []}}


def append_many(folder: Path, count: int) -> None:
    for index in range(count):
        history.append(folder, {**RECORD, "index": index}, FINGERPRINT)


def test_a_record_comes_back_as_it_was_written_in_order(tmp_path: Path) -> None:
    append_many(tmp_path, 5)
    assert [record["index"] for _, record in history.records(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_benchmark_whose_marker_says_ignore_is_left_out_of_every_comparison() -> None:
    benchmarks = [{"fullname": name, "stats": {"min": 1.0}, "extra_info": {}} for name in ("judged", "searched")]
    benchmarks[1]["extra_info"] = {"gate": {"ignore": True}}
    summary = history.summary_of({"benchmarks": benchmarks, "prooflops": {}}, Path("a.json"), [])
    assert list(summary.benchmarks) == ["judged"]


@pytest.mark.parametrize(
    ("given", "written"),
    [(np.int64(7), 7), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.longdouble(2), "2.0"), (Path("a"), "a")],
    ids=str,
)
def test_a_figure_of_numpy_is_written_as_the_number_that_it_is(given: object, written: object) -> None:
    assert json.loads(history.as_text({"flops": given})) == {"flops": written}


def test_a_time_that_has_no_ratio_is_left_out_of_every_comparison() -> None:
    times = {"good": 1.0, "none": 0.0, "unknown": float("nan")}
    benchmarks = [{"fullname": name, "stats": {"min": time_s}} for name, time_s in times.items()]
    summary = history.summary_of({"benchmarks": benchmarks, "prooflops": {}}, Path("a.json"), [])
    assert list(summary.benchmarks) == ["good"]


def test_a_baseline_of_no_records_is_said_to_be_one(tmp_path: Path) -> None:
    stored = history.store_baseline("main", [history.append(tmp_path, RECORD, FINGERPRINT)])
    stored.write_text('{"records": []}')
    with pytest.raises(history.UnreadableRecord, match="no records"):
        history.baseline(tmp_path, "main", "", [])


def test_another_fingerprint_has_another_folder(tmp_path: Path) -> None:
    one = history.append(tmp_path, RECORD, FINGERPRINT)
    two = history.append(tmp_path, RECORD, {**FINGERPRINT, "torch": "2.14.0"})
    assert one.parent != two.parent
    assert one.parent.name.startswith("Some-GPU-80GB-")


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_many, args=(tmp_path, 30)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(history.records(tmp_path))) == 60


def test_a_kill_while_writing_leaves_only_whole_records(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from prooflops.history import records as history\n"
        "big = {'benchmarks': [], 'prooflops': {}, 'padding': 'x' * 2_000_000}\n"
        "while True: history.append(Path(sys.argv[1]), big, {'name': 'a'})"
    )
    for delay in (0.0, 0.003, 0.011, 0.017, 0.029):
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
        deadline = time.monotonic() + 60
        before = len(list(tmp_path.glob("*/*.json")))
        while len(list(tmp_path.glob("*/*.json"))) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    found = list(history.records(tmp_path))
    assert len(found) >= 5
    assert all(isinstance(record, dict) and len(record["padding"]) == 2_000_000 for _, record in found)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "verdicts.json"
    history.write_atomically(file, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        history.write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "text",
    ["", '{"benchmarks": [', "[1, 2]", '{"benchmarks": []}', "\x00\xff", "9" * 5000],
    ids=["empty", "cut off", "a list", "pytest-benchmark's", "no text", "a number that Python refuses"],
)
def test_a_truncated_or_foreign_file_is_reported_by_name_and_left_alone(tmp_path: Path, text: str) -> None:
    good = history.append(tmp_path, RECORD, FINGERPRINT)
    bad = good.parent / "0-foreign.json"
    bad.write_text(text, encoding="latin-1")
    found = dict(history.records(tmp_path))
    assert isinstance(found[bad], history.UnreadableRecord)
    assert str(bad) in str(found[bad])
    assert found[good] == json.loads(json.dumps(RECORD))
    assert bad.read_text(encoding="latin-1") == text
