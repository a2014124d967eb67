"""Run records survive kills, two writers, full disks and foreign files, and a long history is read in time."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.history.long_history import large_history
from meta_tests.prooflops.history.stress_history_writers import kill_writers
from prooflops.history import records

EXACT = ("flops",)
FINGERPRINT = {"name": "Some GPU 80GB", "torch": "2.13.0"}
RECORD = {"benchmarks": [], "prooflops": {"verdicts": []}}


def append_many(folder: Path, count: int) -> None:
    for index in range(count):
        records.append(folder, {**RECORD, "index": index}, FINGERPRINT)


def test_a_record_comes_back_as_it_was_written_in_order(tmp_path: Path) -> None:
    append_many(tmp_path, 5)
    assert [record["index"] for _, record in records.records(tmp_path)] == [0, 1, 2, 3, 4]
    assert records.as_text({"a": 1, "b": {"c": 2.5}}) == '{\n "a": 1,\n "b": {\n  "c": 2.5\n }\n}\n'


def test_comparing_reads_all_it_needs_of_a_record() -> None:
    extra = {
        "flops": 24, "bytes": 8, "mfu": 0.5, "hfu": 1e18, "share_of_ceiling": True, "peak": 2.0, "method": 3,
        "contention": {"contended": True}, "gate": {"min_effect": 0.05},
        "gate_resources": {"memory": 12_600, "none": 0, "slip": -1, "beyond": 1e18},
    }  # fmt: skip
    why = {"contention": {"contended": True, "why": "a busy core", "slowness": 1.8}, "gate": {}}
    quiet = {"contention": {"contended": False, "why": "nothing"}}
    rows = [("a", "1.5", extra), ("b", 1, why), ("c", 1, quiet), ("d", 1.001e-18, {}), ("e", 1e-18, {})]
    benchmarks = [{"fullname": name, "stats": {"min": least}, "extra_info": each} for name, least, each in rows]
    fingerprint = {"name": "Some CPU", "packages": {"torch": "2.13.0"}}
    pace = {"": {"max_time": "0.02", "min_rounds": 3.0}}
    record = {
        "datetime": "2026-11-22", "benchmarks": benchmarks,
        "prooflops": {
            "fingerprint": fingerprint, "verdicts": [{"id": "x.a", "verdict": "holds"}], "partial": 2, "pace": pace,
        },
    }  # fmt: skip
    first = records.Timed(1.5, {"flops": 24}, {"mfu": 0.5, "share_of_ceiling": 1.0}, 3, "other work",
                          {"min_effect": 0.05}, {"memory": 12_600.0, "none": 0.0}, math.inf)  # fmt: skip
    timed = {
        "a": first,
        "b": records.Timed(1.0, {}, {}, None, "a busy core", {}, slowness=1.8),
        "c": records.Timed(1.0, {}, {}),
    }
    timed["d"] = records.Timed(1.001e-18, {}, {})
    assert records.summary_of(record, Path("a.json"), EXACT) == records.Summary(
        Path("a.json"), "2026-11-22", records.fingerprint_id(fingerprint), "Some CPU", "2.13.0", "", timed,
        {"x.a": "holds"}, "2", False, {"": {"max_time": 0.02, "min_rounds": 3}},
    )  # fmt: skip
    bare = records.summary_of({"benchmarks": [], "prooflops": {"pace": "quick"}}, Path("a.json"), EXACT)
    assert (bare.moment, bare.torch, bare.partial, bare.pace) == ("", "", "", None)


@pytest.mark.parametrize("share", [0, 1, -0.1])
def test_a_marker_whose_smallest_effect_is_no_share_is_refused(share: float) -> None:
    bench = {"fullname": "a", "stats": {"min": 1.0}, "extra_info": {"gate": {"min_effect": share}}}
    with pytest.raises(
        records.UnreadableRecord, match=f"a.json.*min_effect should be a share between 0 and 1.*{share}"
    ):
        records.summary_of({"benchmarks": [bench], "prooflops": {}}, Path("a.json"), EXACT)


def test_what_runs_of_the_gate_said_is_read_in_order_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    assert records.append_verdicts(tmp_path, "mine", {}) is None, "where the machine has no records"
    (tmp_path / "mine").mkdir()
    for verdict in ("SAME", "SLOWER"):
        stored = records.append_verdicts(tmp_path, "mine", {"verdicts": [{"name": "a", "verdict": verdict}]})
    (tmp_path / "mine" / "gate" / "0.json").write_text("cut o")
    found = list(records.gate_verdicts(tmp_path, "mine"))
    assert [(name, row["verdict"]) for _, name, row in found] == [("a", "SAME"), ("a", "SLOWER")]
    assert stored is not None
    assert [stored.parent.name, found[1][0]] == ["gate", json.loads(stored.read_text())["datetime"]]
    assert found[0][0] < found[1][0]
    assert list(records.gate_verdicts(tmp_path, "other")) == []


def test_a_benchmark_whose_marker_says_ignore_is_left_out_of_every_comparison() -> None:
    benchmarks = [{"fullname": name, "stats": {"min": 1.0}, "extra_info": {}} for name in ("compared", "searched")]
    benchmarks[1]["extra_info"] = {"gate": {"ignore": True}}
    summary = records.summary_of({"benchmarks": benchmarks, "prooflops": {}}, Path("a.json"), [])
    assert list(summary.benchmarks) == ["compared"]


def test_a_time_that_has_no_ratio_is_left_out_of_every_comparison() -> None:
    times = {"good": 1.0, "none": 0.0, "unknown": float("nan")}
    benchmarks = [{"fullname": name, "stats": {"min": time_s}} for name, time_s in times.items()]
    summary = records.summary_of({"benchmarks": benchmarks, "prooflops": {}}, Path("a.json"), [])
    assert list(summary.benchmarks) == ["good"]


def test_a_baseline_of_no_records_is_refused(tmp_path: Path) -> None:
    stored = records.store_baseline("main", [records.append(tmp_path, RECORD, FINGERPRINT)])
    stored.write_text('{"records": []}')
    with pytest.raises(records.UnreadableRecord, match="no records"):
        records.baseline(tmp_path, "main", "", [])


def test_a_baseline_whose_record_is_missing_is_refused(tmp_path: Path) -> None:
    kept, gone = (records.append(tmp_path, RECORD, FINGERPRINT) for _ in range(2))
    records.store_baseline("main", [kept, gone])
    gone.unlink()
    with pytest.raises(records.UnreadableRecord, match=f"one of its records is missing or unreadable.*{gone.name}"):
        records.baseline(tmp_path, "main", "", [])


@pytest.mark.parametrize(
    ("info", "commit", "dirty"),
    [({"id": "1a2b3c", "dirty": True}, "1a2b3c", True), ({"id": "unversioned"}, "", False), (None, "", False)],
)
def test_a_record_knows_its_commit(info: object, commit: str, dirty: bool) -> None:
    record = {"benchmarks": [], "prooflops": {}, "commit_info": info}
    summary = records.summary_of(record, Path("a.json"), [])
    assert (summary.commit, summary.dirty) == (commit, dirty)


def test_of_several_fingerprints_latest_is_the_newest_record_that_has_most_benchmarks(tmp_path: Path) -> None:
    def stored(name: str, *benchmarks: str) -> Path:
        rows = [{"fullname": each, "stats": {"min": 1.0}} for each in benchmarks]
        record = {"benchmarks": rows, "prooflops": {"fingerprint": {"name": name}}}
        return records.append(tmp_path, record, {"name": name})

    def latest(own: str, *benchmarks: str) -> Path:
        return records.baseline(tmp_path, "latest", own, EXACT, benchmarks)[0].path

    both, other, one = stored("mine", "a", "b"), stored("other", "a", "b"), stored("mine", "a")
    assert latest(both.parent.name, "a", "b") == both, "a run of part of the benchmarks is not meant"
    assert latest(both.parent.name, "a") == one
    assert latest("unknown", "a", "b") == one, "another machine's newest run, for the caller to refuse"
    assert latest(other.parent.name, "a", "b", "c") == other, "another machine's is none, however much it has"


def test_of_other_fingerprints_that_have_a_baseline_the_newest_is_taken(tmp_path: Path) -> None:
    stored = {}
    for age, name in enumerate(("newest", "older", "oldest")):
        record = {"benchmarks": [], "prooflops": {"fingerprint": {"name": name}}}
        file = records.append(tmp_path, record, {"name": name})
        os.utime(records.store_baseline("main", [file]), (1e9 - age, 1e9 - age))
        stored[name] = file.parent.name
    for own, expected in (("unknown", "newest"), (stored["older"], "older")):
        (found,) = records.baseline(tmp_path, "main", own, EXACT)
        assert found.name == expected


def test_noise_floors_are_stored_beside_those_of_other_benchmarks(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    assert records.noise_floors(folder, "mine") == {}
    records.store_noise_floors(folder, "mine", {"a": {"floor": 0.01}, "é": {"floor": None}})
    stored = records.store_noise_floors(folder, "mine", {"a": {"floor": 0.02}})
    assert stored == folder / "mine" / "noise-floor.json"
    assert records.noise_floors(folder, "mine") == {"a": {"floor": 0.02}, "é": {"floor": None}}
    assert "stored" in json.loads(stored.read_text(encoding="utf-8"))


def test_fingerprints_differ_in_what_is_named() -> None:
    first = {"torch": "2.12", "cpu": {"cores": 2, "isa": "avx2"}, "flags": {"tf32": 1}}
    second = {"torch": "2.13", "cpu": {"cores": 4, "isa": "avx2"}, "flags": None}
    said = ["cpu.cores: 2 -> 4", "flags: {'tf32': 1} -> None", "torch: 2.12 -> 2.13"]
    assert records.differences(first, second) == said


@pytest.mark.parametrize("name", ["", "latest", "a.json", "a/b", "-a", "x" * 81])
def test_a_name_that_cannot_be_a_baselines_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a baseline's name is letters, digits and"):
        records.check_name(name)
    assert records.check_name("x" * 80) == "x" * 80


def test_the_folders_new_name_is_written_to_the_disk_and_the_folder_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    records.write_atomically(tmp_path / "a.json", "{}")
    assert len(synced) == 2, "the file and its folder"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(synced[1])


def test_a_record_is_contended_where_any_benchmark_was() -> None:
    quiet, busy = records.Timed(1.0, {}, {}), records.Timed(1.0, {}, {}, contended="other work")
    whole = records.Summary(Path("a"), "", "", "", "", "", {"a": quiet, "b": busy}, {})
    assert (whole.contended, whole.dirty, whole.partial) == (True, False, "")
    assert (records.PORTABLE, records.SCHEMA) == (("mfu", "hfu", "share_of_ceiling"), 1)


def test_another_fingerprint_has_another_folder(tmp_path: Path) -> None:
    one = records.append(tmp_path, RECORD, FINGERPRINT)
    two = records.append(tmp_path, RECORD, {**FINGERPRINT, "torch": "2.14.0"})
    assert one.parent != two.parent
    slug, _, digest = one.parent.name.rpartition("-")
    assert (slug, len(digest)) == ("Some-GPU-80GB", 12)
    assert records.fingerprint_id(dict(reversed(FINGERPRINT.items()))) == one.parent.name


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_many, args=(tmp_path, 30)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(records.records(tmp_path))) == 60


def test_a_kill_while_writing_leaves_only_whole_records(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from prooflops.history import records\n"
        "big = {'benchmarks': [], 'prooflops': {}, 'padding': 'x' * 2_000_000}\n"
        "while True: records.append(Path(sys.argv[1]), big, {'name': 'a'})"
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
    found = list(records.records(tmp_path))
    assert len(found) >= 5
    assert all(isinstance(record, dict) and len(record["padding"]) == 2_000_000 for _, record in found)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "verdicts.json"
    records.write_atomically(file, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        records.write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "text",
    ["", '{"benchmarks": [', "[1, 2]", '{"benchmarks": []}', "\x00\xff", "9" * 5000],
    ids=["empty", "cut off", "a list", "pytest-benchmark's", "no text", "a number that Python refuses"],
)
def test_a_truncated_or_foreign_file_is_reported_by_name_and_left_alone(tmp_path: Path, text: str) -> None:
    good = records.append(tmp_path, RECORD, FINGERPRINT)
    bad = good.parent / "0-foreign.json"
    bad.write_text(text, encoding="latin-1")
    found = dict(records.records(tmp_path))
    assert isinstance(found[bad], records.UnreadableRecord)
    assert str(bad) in str(found[bad])
    assert found[good] == json.loads(json.dumps(RECORD))
    assert bad.read_text(encoding="latin-1") == text


def test_a_file_too_large_for_the_disk_leaves_nothing_of_itself(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path; from prooflops.history import records\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "records.append(Path(sys.argv[1]), {'padding': 'x' * 200_000}, {'name': 'a'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert "File too large" in done.stderr, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.prove)])
def test_what_killed_writers_had_stored_is_all_there(tmp_path: Path, kills: int) -> None:
    found = kill_writers(tmp_path, kills)
    assert found["kills"] == kills
    assert found["said"] >= kills


def test_a_long_history_is_listed_in_time(tmp_path: Path) -> None:
    large_history(tmp_path, 200, 20, 20)
    start = time.process_time()
    found = records.summaries(tmp_path, EXACT)
    took_s = time.process_time() - start
    assert len(found) == 200
    assert took_s < 2, f"a fifth of 1,000 records of 20 benchmarks took {took_s:.2f} CPU s to list, and should take < 2"


def test_a_record_that_changed_is_read_as_it_is_now(tmp_path: Path) -> None:
    large_history(tmp_path, 3, 1, 1)
    records.summaries(tmp_path, EXACT)
    path = next(iter(records.records(tmp_path)))[0]
    path.write_text(path.read_text().replace('"min": 1.0', '"min": 7.0'))
    (changed, *_) = records.summaries(tmp_path, EXACT)
    assert isinstance(changed, records.Summary)
    assert changed.benchmarks["test_it.py::test_0"].time_s == 7.0


def test_the_newest_records_are_read_alone(tmp_path: Path) -> None:
    large_history(tmp_path, 5, 1, 1)
    found = records.summaries(tmp_path, EXACT, newest=2)
    assert found == records.summaries(tmp_path, EXACT)[-2:]


def test_the_latest_baseline_is_the_newest_readable_record_of_this_machine(tmp_path: Path) -> None:
    kept = []
    for fingerprint in (FINGERPRINT, {"name": "other"}):
        record = {"benchmarks": [], "prooflops": {"fingerprint": fingerprint}}
        kept.append(records.append(tmp_path, record, fingerprint))
    mine, newer = kept
    (mine.parent / "99990101T000000.json").write_text("cut o")
    for own, expected in ((mine.parent.name, mine), ("unknown", newer)):
        (found,) = records.baseline(tmp_path, "latest", own, EXACT)
        assert found.path == expected
