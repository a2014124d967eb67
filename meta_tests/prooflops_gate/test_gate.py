"""The gate in a small foreign repository, in real processes.

Verdicts, exit codes, and what is left behind.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from meta_tests.prooflops_gate.foreign_repo import (
    INI,
    MORE_TESTS,
    commit_all,
    run,
    run_git,
    valid_json,
    worktrees,
)
from prooflops_gate.comparison import STOPPED


def status(repo):
    """What git says of the working tree."""
    return run_git(repo, "status", "--porcelain")


ONE, SLOW = "test_foreign.py::test_busy_loop", "test_more.py::test_slow"


def change(repo, old, new):
    work = repo / "work.py"
    assert old in work.read_text()
    work.write_text(work.read_text().replace(old, new))


def test_a_slowdown_and_an_exact_change_each_stop_the_gate(foreign, tmp_path):
    (foreign / "test_more.py").write_text(MORE_TESTS.format(name="new_name", steps=1200))
    # As many have.
    (foreign / "pytest.ini").write_text(INI.replace("addopts =", "addopts = --benchmark-disable"))
    change(foreign, "STEPS = 300", "STEPS = 301")
    junit, page, comment = (tmp_path / name for name in ("junit.xml", "page.md", "comment.md"))
    written = tmp_path / "new" / "gate.json"
    options = "--gate --gate-versus HEAD --gate-min-effect 40% --device abacus".split()
    files = f"--junitxml={junit} --gate-json={written} --gate-markdown={comment}".split()
    before = status(foreign)

    on_github = {"GITHUB_STEP_SUMMARY": str(page), "GITHUB_ACTIONS": "true"}
    done = run(foreign, *options, *files, **on_github)

    assert done.code == 1
    content = valid_json(written)
    found = [content[key] for key in ("status", "gates", "fails", "failed_tests")]
    assert found == ["finished", True, True, []]
    rows = {(row["name"].partition("::")[2], row["quantity"]): row for row in content["rows"]}
    busy = rows.pop(("test_busy_loop", "time"))["verdict"]
    assert busy in ("SAME", "INCONCLUSIVE")
    verdicts = {name: row["verdict"] for (name, _), row in rows.items() if row["verdict"] != "SAME"}
    assert verdicts == {
        "test_slow": "SLOWER",
        "test_busy_loop": "CHANGED",
        "test_new_name": "NEW",
        "test_old_name": "GONE",
        "test_that_is_skipped_now": "INCONCLUSIVE",
    }
    slow = rows["test_slow", "time"]
    assert slow["where"].startswith("work.py:busy ")
    assert slow["sentence"].endswith(": work.py:busy"), slow["sentence"]
    assert content["counts"]["SLOWER"] == 1
    assert 1 < slow["low"] <= slow["ratio"] <= slow["high"]
    cases = {case.get("name"): case for case in ET.parse(junit).getroot().iter("testcase")}
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {"test_slow", "test_busy_loop"}
    assert {name for (name, _), row in rows.items() if row["fails"]} == failed
    assert "test_that_fails" not in cases, "what is no benchmark is not run"
    assert not [row for row in content["rows"] if "test_searched_anew" in row["name"]]
    assert "test_old_name" not in cases, "what a change removed is no test of this side"
    assert page.read_text() == comment.read_text() + "\n"
    assert f"title=gate::SLOWER: {SLOW} is " in done.output
    assert worktrees(foreign) == 1, "the worktree of the other revision is still there"
    assert status(foreign) == before, "the user's working tree was touched"


def test_a_run_that_decides_nothing_says_so_and_passes_with_a_warning(
    foreign,
):
    # A process of either side sleeps for 60 rounds of 0.03 s. The first pair fits into 6.6 s where
    # a start takes up to 1.5 s, and a second one nowhere.
    (foreign / "work.py").write_text(
        "import time\nSTEPS = 300\ndef busy(steps=0):\n    time.sleep(0.03)\n"
    )
    commit_all(foreign)
    (foreign / "test_more.py").unlink()
    options = (ONE, "--gate", "--gate-versus", "HEAD", "--gate-budget", "0.11", "-q")
    options = (*options, "--benchmark-autosave")
    done = run(foreign, *options)
    assert done.code == 0
    assert "warning: this run decided nothing: 1 undecided" in done.output
    assert "fewer than 2 pairs fit into that" in done.output, "progress is printed under -q, too"
    assert "Not saving anything" not in done.output


STOPS = """
import os, shutil, signal, time

def test_stops(benchmark):
    with open({starts!r}, "a") as file:
        file.write("x")
        start = file.tell()
    if start == 1:
        shutil.copy({written!r}, {written!r} + ".first")
    if start == 3:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(1000)
    benchmark.pedantic(time.sleep, args=(0.001,), rounds=3)
"""


def test_the_file_of_an_interrupted_run_says_so_from_its_start(foreign, tmp_path):
    starts, written = tmp_path / "starts", foreign / "gate.json"
    (foreign / "test_more.py").write_text(STOPS.format(starts=str(starts), written=str(written)))
    commit_all(foreign)
    change(foreign, "STEPS = 300", "STEPS = 299")
    run(foreign, "test_more.py", "--gate", "--gate-versus", "HEAD", "--gate-json", "gate.json")
    said = [valid_json(file) for file in (foreign / "gate.json.first", written)]
    assert [content["status"] for content in said] == ["interrupted"] * 2
    assert [content["fails"] for content in said] == [True, True]
    assert [content["reason"] for content in said] == ["it was killed", "stopped by the user"]
    first, last = (content["rows"] for content in said)
    assert first == []
    assert [row["note"] for row in last] == [STOPPED]


HANGS = """
import time

def test_hangs(benchmark):
    with open({starts!r}, "a") as file:
        file.write("x")
        third = file.tell() == 3
    benchmark.pedantic(time.sleep, args=(1000 if third else 0.001,), rounds=3)
"""
# The clock of the gate, on which the budget has passed as soon as the third process hangs.
LATE = """
if "PROOFLOPS_RECORD_TO" not in os.environ:
    import forked_processes
    from prooflops_gate.unpatched import time
    forked_processes.time, now = time, time.monotonic
    def late():
        hangs = os.path.exists({starts!r}) and os.path.getsize({starts!r}) == 3
        return now() + 600 * hangs
    time.monotonic = late
"""
HANGING = "test_more.py::test_hangs"


@pytest.mark.parametrize("in_turn", ["true", pytest.param("false", marks=pytest.mark.prove)])
def test_a_pair_that_hangs_ends_with_the_budget_and_leaves_it_open(foreign, tmp_path, in_turn):
    starts = tmp_path / "starts"
    (foreign / "test_more.py").write_text(HANGS.format(starts=str(starts)))
    with open(tmp_path / "path" / "quick_plan.py", "a", encoding="utf-8") as plugin:
        plugin.write(LATE.format(starts=str(starts)))
    (foreign / "pytest.ini").write_text(INI + f"gate_in_turn = {in_turn}\ngate_undecided = fail\n")
    commit_all(foreign)
    change(foreign, "STEPS = 300", "STEPS = 299")
    done = run(foreign, "test_more.py", "--gate", "--gate-versus", "HEAD", "-v")
    assert starts.read_text() == "xxx", "processes that began the benchmark; the third one hangs"
    assert done.code == 1
    assert f"FAILED {HANGING}" in done.output
    assert re.search(r"; 1 pair in 1\d min .*$", done.output, re.MULTILINE)


# The plan of these tests alarms on 30 % of runs: half as slow again is beyond its noise.
VERSUS_HEAD = "--gate --gate-versus HEAD --gate-min-effect 0.5".split()
ALONE = """
import fcntl

import pytest
import work

@pytest.fixture(scope="session", autouse=True)
def held():
    with open({lock!r}, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield

# Between the two the other side has its turn.
@pytest.mark.parametrize("number", [1, 2])
def test_alone(benchmark, number):
    benchmark.pedantic(work.busy, rounds=15, iterations=4)
"""


@pytest.mark.parametrize("setting", ["true", "false"])
def test_sides_that_cannot_live_at_the_same_time_run_one_after_the_other(
    foreign, tmp_path, setting
):
    (foreign / "test_more.py").write_text(ALONE.format(lock=str(tmp_path / "lock")))
    (foreign / "pytest.ini").write_text(INI + f"gate_in_turn = {setting}\n")
    commit_all(foreign)
    change(foreign, "STEPS = 300", "STEPS = 299")
    done = run(foreign, "test_more.py", *VERSUS_HEAD)
    assert done.code == 0
    assert ("one process after the other: a test failed" in done.output) == (setting == "true")


def test_a_process_that_crashes_fails_its_tests(foreign):
    (foreign / "work.py").write_text("import os\nSTEPS = 1\ndef busy(steps=0):\n    os.abort()\n")
    done = run(foreign, ONE, "--gate-noise-floor")
    assert done.code == 1
    assert "SIGABRT" in done.output
    assert f"FAILED {ONE}" in done.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--gate --gate-baseline=no-such", "no baseline of that name"),
        (
            "--gate-noise-floor -k is_no_benchmark",
            "no test with the fixture or the marker `benchmark`",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(foreign, options, why):
    (foreign / "test_foreign.py").write_text(
        "def test_is_no_benchmark(): ...\ndef test_it(benchmark): open('ran', 'w')\n"
    )
    done = run(foreign, "test_foreign.py", *options.split(" ", 2))
    assert done.code == 4
    assert why in done.output
    assert not (foreign / "ran").exists()


def test_a_baseline_is_stored_and_its_commit_gated_against(foreign):
    done = run(foreign, "test_foreign.py", "--gate-record", "main")
    assert done.code == 0
    assert "baseline main: commit " in done.output
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert (done.code, "main: both sides are the same" in done.output) == (4, True)
    change(foreign, "STEPS = 300", "STEPS = 1500")
    change(foreign, "total = 0", "total, held = 0, bytes(90_000)")
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert done.code == 1
    assert "the baseline main (" in done.output
    assert re.search(f"FAILED {ONE} - SLOWER: [0-9]", done.output)
    assert "flops is 3,000, but was 600" in done.output
    assert re.search("MORE MEMORY: takes .* memory, ", done.output)
    assert worktrees(foreign) == 1, "the worktree of the baseline's commit is still there"
    done = run(foreign, "test_foreign.py", "--gate-record", "main")
    assert "not stored as main: files differ from commit " in done.output
    shutil.rmtree(foreign / ".git")
    done = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert (done.code, "the project is not under git" in done.output) == (4, True)


@pytest.mark.prove
def test_another_interpreter_is_a_side(foreign, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    packages = {
        str(Path(sys.modules[name].__file__ or "").parents[1]) for name in ("pytest", "numpy")
    }
    (site / "shared.pth").write_text("\n".join(packages))
    # Too few to call anything slower.
    options = ("--gate-replicates=2",)
    done = run(foreign, ONE, "--gate", f"--gate-versus={tmp_path / 'venv'}", *options)
    assert done.code == 0
    assert f"interpreter {tmp_path / 'venv'} (before) beside this side" in done.output
