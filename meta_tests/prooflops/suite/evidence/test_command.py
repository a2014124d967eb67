"""A killed run loses the running test alone, and another clone completes it, without git."""

import fcntl
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from subprocess import PIPE, STDOUT
from types import SimpleNamespace

import pytest

from meta_tests.conftest import House, child_environment, new_house
from prooflops.suite import commands
from prooflops.suite.controller import task_of
from prooflops.suite.evidence.__main__ import (
    KEPT_RUNS,
    is_left_to_pytest,
    remove_old_runs,
    unfinished_in,
    words_for_workers,
)
from prooflops.suite.evidence.file import HALF_A_LOG_CHARACTERS, EvidenceFile, Rows, shortened
from prooflops.suite.evidence.results import seconds_of
from prooflops.suite.ranks import VARIABLES
from prooflops_gate.machine import limits

TESTS = """
import os, signal, time

@pytest.mark.claim("demo.holds")
@pytest.mark.parametrize("n", range(12))
def test_short(n):
    time.sleep(0.1)

@pytest.mark.claim("demo.hangs")
def test_hangs():
    time.sleep(100)

@pytest.mark.timed
@pytest.mark.claim("demo.dies")
def test_dies():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.claim("demo.fails")
def test_fails():
    assert 1 == 2, "one is not two"

@pytest.fixture
def broken():
    yield
    {}["bf16"]

@pytest.mark.claim("demo.crashes")
def test_crashes(broken): ...
"""
BENCHMARK = "def test_sum(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=5)"


@dataclass
class Story:
    """What some kills left, and what a last call in another clone made of it."""

    file: EvidenceFile
    clone: House
    kills: int
    killed: Path
    # After the last kill.
    lines: list[bytes]
    code: int
    output: str


def call(clone, *arguments, **variables):
    own = ["--timeout", "8"]
    line = [sys.executable, "-m", "prooflops.suite.evidence", *own, *arguments]
    return subprocess.Popen(
        line,
        cwd=clone.root,
        env=child_environment(**variables),
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )


@pytest.fixture(
    scope="module", params=[1, pytest.param(10, marks=pytest.mark.prove)], ids="{} kills".format
)
def story(request, tmp_path_factory):
    clones = [new_house(tmp_path_factory.mktemp("clone")) for _ in range(2)]
    for clone in clones:
        for claim in ("holds", "hangs", "dies", "fails", "crashes"):
            clone.claim(f"demo.{claim}")
        clone.test(TESTS)
        clone.test(BENCHMARK, "bench/test_demo.py")
    killed = EvidenceFile(tmp_path_factory.mktemp("machine") / "deep" / "killed.jsonl")
    today = random.Random(datetime.now(timezone.utc).date().isoformat())
    for kill in range(request.param):
        more = len(killed.ended()) + today.randint(1, 2)
        # A worker of xdist first, then a plain process.
        options = ("--device", "cpu", "-n", str(1 - kill % 2))
        process = call(clones[kill % 2], "--out", str(killed.path), *options)
        while len(killed.ended()) < more and process.poll() is None:
            time.sleep(0.01)
        time.sleep(today.uniform(0, 0.1))
        process.kill()
        process.communicate()
    last = clones[1].root / "results" / "last.jsonl"
    lines = killed.lines()
    last.parent.mkdir(exist_ok=True)
    shutil.copy(killed.path, last)
    process = call(clones[1], "--resume", str(last), "-n", "1", PATH="/no-git")
    output, _ = process.communicate(timeout=200)
    return Story(
        EvidenceFile(last), clones[1], request.param, killed.path, lines, process.returncode, output
    )


def test_the_newest_unfinished_run_of_these_arguments_is_resumed(tmp_path):
    runs = {"1": ["-x"], "2": ["-x"], "3": [], "4": ["-x"]}
    for name, arguments in runs.items():
        file = EvidenceFile(tmp_path / f"{name}.jsonl")
        file.append("plan", tests={"a": []}, arguments=arguments)
    file.end_without_report("a", "passed", "")
    found = [unfinished_in(tmp_path, arguments) for arguments in ([], ["-x"], ["-k"])]
    assert [file and file.path.stem for file in found] == ["3", "2", None]


def test_a_kill_loses_nothing_but_the_running_test(story):
    starts = story.file.rows("start")
    ends = Counter(row["test"] for row in story.file.rows("end"))
    assert set(ends.values()) == {1}, "a test that had ended ran again"
    assert len(starts) <= len(ends) + story.kills, "more was lost than the test that ran"
    assert story.lines == story.file.lines()[: len(story.lines)], "the other clone lost a line"


def test_the_call_in_another_clone_completes_it(story):
    assert (story.code, "git" in story.output) == (1, False), story.output
    assert story.file.remaining() == []
    assert {
        test.rpartition("::")[2]: row["status"] for test, row in story.file.ended().items()
    } == {
        **{f"test_short[{n}]": "passed" for n in range(12)},
        "test_hangs": "timed out",
        "test_dies": "crashed",
        "test_fails": "failed",
        "test_crashes": "error",
        "test_sum": "passed",
    }


def test_timed_tests_run_alone_after_the_others(story):
    """In the last call, whose tests a worker runs first; a plain process takes them as they are."""
    call = story.file.rows("slice")[-1]["at"]
    began, ended = (
        {row["test"].rpartition("::")[2]: row["at"] for row in story.file.rows(event)}
        for event in ("start", "end")
    )
    alone = {"test_dies", "test_sum"}
    ends_of_others = [at for test, at in ended.items() if test not in alone]
    starts = [began[test] for test in alone if began[test] >= call]
    assert max(ends_of_others) <= min(starts, default=inf)


def test_what_was_lost_with_its_process_has_its_stacks(story):
    rows = {test.rpartition("::")[2]: row for test, row in story.file.ended().items()}
    assert "in test_hangs" in rows["test_hangs"]["log"]
    assert rows["test_hangs"]["reason"] == "it took longer than its limit of 8 s"
    assert rows["test_dies"]["reason"] == "its process ended: Segmentation fault"
    assert "in test_dies" in rows["test_dies"]["log"]
    assert rows["test_crashes"]["reason"] == "teardown: KeyError: 'bf16'"
    assert "AssertionError: one is not two" in rows["test_fails"]["log"]
    assert str(story.clone.root) not in rows["test_fails"]["log"], "a path of this machine"


def test_the_page_and_the_index_are_made_of_the_file_alone(story):
    (verdicts,) = story.file.rows("verdicts")
    words = {claim: verdict for claim, (verdict, _) in verdicts["verdicts"].items()}
    assert list(words.values()) == ["holds", "error", "error", "FAILS", "error"], words
    page = story.file.path.with_suffix(".md").read_text()
    assert all(f"<code>{claim}</code> {verdict}: " in page for claim, verdict in words.items())
    assert "commit unknown" in page
    assert "one is not two" in page
    assert "](last.md)" in (story.file.path.parent / "README.md").read_text()


REFUSED = (
    "--out /proc/x/y.jsonl",
    "--out x.jsonl --device all",
    "--timeout 0",
    "--minutes 1.5",
    "--minutes nan",
    "--resume",
    "--resume {killed} --quick",
    "--resume {last}",
    "--out {last}",
    "--resume {killed} --out x.jsonl",
)


def test_refusals(story, golden):
    plan = story.file.plan
    names = {"killed": story.killed, "last": story.file.path}
    said = []
    for arguments in REFUSED:
        process = call(story.clone, *arguments.format(**names).split())
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 4, output
        said.append(output)
    assert not [*story.clone.root.glob(".prooflops/runs/*")], "a run that never began is left"
    text = "".join(said).replace(plan["fingerprint"]["name"], "<machine>")
    for name, path in {**names, "clone": story.clone.root}.items():
        text = text.replace(str(path), f"<{name}>")
    golden("run_refusals", re.sub(r"torch [^)]*", "torch <version>", text))


def test_a_run_goes_on_on_its_own_machine_alone(story, tmp_path):
    elsewhere, machine = tmp_path / "run.jsonl", story.file.plan["fingerprint"]["name"]
    elsewhere.write_text(story.killed.read_text().replace(machine, "Another"))
    process = call(story.clone, "--resume", str(elsewhere), "-n", "0")
    assert "is a run of Another (cpu, torch " in process.communicate(timeout=100)[0]
    assert process.returncode == 4


def test_no_test_starts_in_the_last_minute_and_a_half_of_a_call(story, tmp_path):
    file = EvidenceFile(Path(shutil.copy(story.killed, tmp_path)))
    left = file.remaining()
    process = call(story.clone, "--resume", str(file.path), "-n", "0", "--minutes", "1.501")
    assert f"{len(left)} of " in process.communicate(timeout=100)[0]
    assert file.remaining() == left


@pytest.mark.parametrize(
    ("cores", "free_gib", "most"), [(64, 100, 8), (3, 100, 3), (64, 5, 2), (64, 0, 1)]
)
def test_workers_keep_within_the_memory_and_the_cores(cores, free_gib, most, monkeypatch):
    pytest.importorskip("xdist")
    monkeypatch.setattr(limits, "usable_cores", lambda: cores)
    monkeypatch.setattr(limits, "free_bytes", lambda: free_gib * 2**30)
    words = words_for_workers(SimpleNamespace(plan=None), "auto", [])
    assert words[:4] == ["-n", "auto", "--maxprocesses", str(most)]


@pytest.mark.parametrize(
    ("number", "arguments", "left"),
    [
        ("auto", ["--claim=flops"], ["a", "timed"]),
        ("auto", ["test_a.py::a"], ["a", "timed"]),
        ("0", [], ["a", "timed"]),
        ("auto", [], ["timed"]),
    ],
)
def test_few_tests_and_timed_ones_run_in_one_process(number, arguments, left):
    file = SimpleNamespace(plan={"alone": ["timed"]}, remaining=lambda: left)
    assert words_for_workers(file, number, arguments) == []


def test_rows_tell_which_tests_are_left_and_why():
    rows = Rows()
    rows.append("slice", slice=1)
    rows.append("plan", tests={"a": [], "b": [], "bench/c": []})
    rows.end_without_report("a", "passed", "")
    assert rows.remaining() == ["b", "bench/c"]
    assert rows.partial == "2 of 3 tests not run yet, 1 benchmark left"
    rows.end("interrupted")
    assert rows.partial == "interrupted, after 1 of 3 tests, 1 benchmark left"
    assert rows.is_over
    rows.append("slice", slice=2)
    assert not rows.is_over


def test_the_time_of_a_run_is_that_of_its_calls():
    times_s = [("slice", 0), ("end", 10), ("slice", 100), ("end", 105)]
    rows = [{"event": event, "at": at} for event, at in times_s]
    assert seconds_of(SimpleNamespace(rows=lambda: rows)) == 15


def test_two_runs_that_begin_in_one_second_have_a_file_each(tmp_path):
    given = SimpleNamespace(args=["-n2"])
    config = SimpleNamespace(rootpath=tmp_path, invocation_params=given, getoption=lambda *_: 2)
    assert task_of(config)["path"] != task_of(config)["path"]


def test_a_log_keeps_its_slashes_where_the_run_is_in_the_root_folder(monkeypatch):
    monkeypatch.chdir("/")
    assert shortened("a/b: 1/2") == "a/b: 1/2"
    half = "a" * HALF_A_LOG_CHARACTERS
    assert shortened(f"{half}bc{half}") == f"{half}\n... 2 characters ...\n{half}"


@pytest.mark.parametrize(
    ("words", "is_left"),
    [
        ("--claims=matmul", True),
        ("--gate-record main", True),
        ("--device all", True),
        ("--device=all", True),
        ("--claim matmul --device cpu -k all", False),
    ],
)
def test_what_runs_no_tests_or_in_its_own_way_is_left_to_pytest(words, is_left):
    assert is_left_to_pytest(words.split()) is is_left


def test_only_a_rank_of_a_job_is_left_to_pytest(monkeypatch):
    for name in VARIABLES:
        # Some clusters set RANK and WORLD_SIZE in every shell.
        assert not is_left_to_pytest([])
        monkeypatch.setenv(name, "1")
    assert is_left_to_pytest([])


def test_old_runs_are_removed_but_for_one_in_use(tmp_path):
    files = [tmp_path / f"20260101T0000{number:02}-1.jsonl" for number in range(KEPT_RUNS + 3)]
    for file in files:
        file.touch()
    with open(files[0], "ab") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        remove_old_runs(tmp_path)
    assert sorted(tmp_path.iterdir()) == [files[0], *files[3:]]


@pytest.mark.parametrize(
    ("made", "repeated"),
    [
        ("validate --claim flops", 'make validate ARGS="--claim flops"'),
        ("evidence ", "make evidence"),
    ],
)
def test_the_target_of_make_that_was_given_is_repeated(monkeypatch, made, repeated):
    monkeypatch.setenv("PROOFLOPS_MADE", made)
    assert commands.given(["--claim", "flops"]) == repeated
    assert commands.resuming(Path("a.jsonl")).startswith("make validate ARGS=")


EVIDENCE = "-m prooflops.suite.evidence"
TEST = "bench/test_launch.py::test_launch"
# How a process was started, and what its commands begin with.
STARTED = {
    "python /bin/pytest -m slow": ("pytest", f"python {EVIDENCE}"),
    ".venv/bin/python -m pytest -x": (".venv/bin/python -m pytest", f".venv/bin/python {EVIDENCE}"),
    "python3 -X dev -m pytest": ("python3 -X dev -m pytest", f"python3 -X dev {EVIDENCE}"),
    f"python3.11 {EVIDENCE}": (f"python3.11 {EVIDENCE}", f"python3.11 {EVIDENCE}"),
}


@pytest.mark.parametrize("started", STARTED)
def test_commands_name_the_python_that_was_called(monkeypatch, started):
    monkeypatch.setattr("sys.orig_argv", started.split())
    monkeypatch.delenv("PROOFLOPS_MADE", raising=False)
    program, resumes = STARTED[started]
    is_runner = program.endswith("evidence")
    again = commands.given([]) if is_runner else commands.called("pytest")
    assert again == program
    assert commands.of_tests(f"{again} -k x bench", ["-k", "x", "bench"], [TEST]) == (
        f"{program} -k x {TEST}"
    )
    assert commands.resuming(Path("a.jsonl")) == f"{resumes} --resume a.jsonl"


@pytest.mark.prove
def test_ctrl_c_ends_a_run_which_says_how_to_go_on(tmp_path):
    house = new_house(tmp_path)
    house.claim("demo.holds")
    house.test('@pytest.mark.claim("demo.holds")\ndef test_first(): ...')
    house.test("import time\n\ndef test_long():\n    time.sleep(100)")
    file = EvidenceFile(tmp_path / "run.jsonl")
    options = ("--device", "cpu", "--timeout", "90", "-n", "0")
    process = call(house, "--out", str(file.path), *options)
    while process.poll() is None and not any("long" in test for test in file.unended()):
        time.sleep(0.05)
    # A hook of pytest may still run, and an interrupt within a callback of gc is lost.
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert "partial run: interrupted, after 1 of 2 tests" in output
    last = output.splitlines()[-1]
    runner = f"{sys.executable} -m prooflops.suite.evidence"
    assert last == f"to resume: {runner} --resume {file.path}"
    assert output.count(last) == 2, "the first is of the page, above the verdict"
    assert file.rows("over")[-1]["stopped"] == "interrupted"
    assert [*file.ended()] == ["test_claims/test_demo.py::test_first"]
