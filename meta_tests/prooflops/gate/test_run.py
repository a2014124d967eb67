"""The gate on a small foreign repo that knows nothing of it, in real processes; its rules with made-up replicates."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from meta_tests.conftest import House
from prooflops.gate import decisions as judging
from prooflops.gate import processes as replicates
from prooflops.gate import run as gate
from prooflops.gate import settings, sides
from prooflops.history.records import Summary, Timed
from prooflops.statistics.plan import CONFIRMING_PAIRS, LOOKS

ROOT = Path(__file__).resolve().parents[3]

# The plan in force takes 26 pairs to confirm anything: these runs are about everything else, with six.
QUICK = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from prooflops.gate import decisions
    from prooflops.statistics import effects as statistics
    def plan(self, benchmarks):
        looks = (self.most if self.fixed else 3,)
        return statistics.Plan(benchmarks=1, looks=looks, alarm_rate=0.2, confirmation_level=0.2, confirming_pairs=3,
                               shared_baseline=not self.paired)
    decisions.Rule.plan = plan
"""

MORE = """
import pytest
import work

def test_{name}(benchmark):
    benchmark.pedantic(work.busy, args=(400,), rounds=30, iterations=4)

def test_slow(benchmark):
    benchmark.pedantic(work.busy, args=({steps},), rounds=30, iterations=4)

@pytest.mark.gate(ignore=True)
def test_searched_anew(benchmark):
    benchmark.extra_info["flops"] = {steps}
    benchmark.pedantic(work.busy, args=({steps},), rounds=3)

def test_that_fails():
    assert {steps} == 400, "the test's own failure"

def test_that_is_skipped_now(benchmark):
    if {steps} != 400:
        pytest.skip("one call takes too long")
    benchmark.pedantic(work.busy, args=(400,), rounds=3)
"""


# What opens a device, were the parent of a gate run to call it.
PARENT = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from accounting import measured
    from prooflops.machine import device
    def opened(*_):
        raise AssertionError("the parent opened the device")
    device.headline = device.fingerprint = device.unmet = measured.clock = opened
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The foreign repo under git, its one commit checked out."""
    repo = tmp_path / "foreign"
    shutil.copytree(ROOT / "meta_tests" / "foreign", repo, ignore=shutil.ignore_patterns("__pycache__"))
    (repo / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (repo / ".gitignore").write_text("__pycache__\n.prooflops\n")
    (repo / "test_more.py").write_text(MORE.format(name="old_name", steps=400))
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "quick_plan.py").write_text(QUICK)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=repo, check=True)
    return repo


def environment(repo: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PROOFLOPS_", "GITHUB_"))}
    return {**kept, "PYTHONPATH": f"{repo.parent / 'path'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", **more}


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "prooflops.plugin", "-p", "quick_plan", *options]


def run(repo: Path, *options: str, **more: str) -> tuple[int, str]:
    done = subprocess.run(
        command(*options), cwd=repo, env=environment(repo, **more), capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def worktrees(repo: Path) -> int:
    return subprocess.run(["git", "worktree", "list"], cwd=repo, capture_output=True, text=True).stdout.count("\n")


def test_a_slowdown_a_rename_an_exact_change_and_a_failure_each_stop_the_gate_and_what_is_unchanged_does_not(
    foreign: Path, tmp_path: Path
) -> None:
    (foreign / "test_more.py").write_text(MORE.format(name="new_name", steps=1200))
    (foreign / "work.py").write_text((foreign / "work.py").read_text().replace("STEPS = 300", "STEPS = 301"))
    junit, page = tmp_path / "junit.xml", tmp_path / "page.md"
    before = subprocess.run(["git", "status", "--porcelain"], cwd=foreign, capture_output=True, text=True).stdout

    code, said = run(
        foreign, "--gate", "--gate-versus", "HEAD", "--gate-min-effect", "40%", "--device", "abacus",
        f"--junitxml={junit}", GITHUB_STEP_SUMMARY=str(page),
    )  # fmt: skip

    assert code == 1, f"exit code {code}, but should be 1:\n{said}"
    cases = {case.get("name"): case for case in ET.parse(junit).getroot().iter("testcase")}
    verdicts = {
        (name, row.get("name")): row.get("value") for name, case in cases.items() for row in case.iter("property")
    }
    assert verdicts["test_slow", "gate.time"] == "SLOWER", said
    assert verdicts["test_busy_loop", "gate.flops"] == "CHANGED", said
    assert verdicts["test_busy_loop", "gate.time"] in ("SAME", "INCONCLUSIVE"), said
    assert verdicts["test_old_name", "gate.time"] == "MISSING", said
    assert verdicts["test_new_name", "gate.time"] == "NEW", said
    assert verdicts["test_that_is_skipped_now", "gate.time"] == "INCONCLUSIVE", said
    assert "skipped this time: one call takes too long" in said, said
    assert "test_searched_anew" in cases
    assert not [key for name, key in verdicts if name == "test_searched_anew" and key.startswith("gate.")], said
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {"test_slow", "test_busy_loop", "test_old_name", "test_that_fails"}, said
    assert "the test's own failure" in said, said
    assert "| test_more.py::test_slow | time |" in page.read_text(), page.read_text()
    assert worktrees(foreign) == 1, "the worktree of the other revision is still there"
    after = subprocess.run(["git", "status", "--porcelain"], cwd=foreign, capture_output=True, text=True).stdout
    assert after == before, f"the user's working tree was touched: {after!r}, before {before!r}"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_run_that_is_killed(foreign: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "temporary").mkdir()
    (foreign / "work.py").write_text("def busy(steps=0):\n    while True:\n        pass\n\nSTEPS = 1\n")
    parent = subprocess.Popen(
        command("test_foreign.py::test_busy_loop", "--gate", "--gate-versus", "HEAD"),
        cwd=foreign, env=environment(foreign, TMPDIR=str(tmp_path / "temporary")),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def alive() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = process.read_bytes().decode().split("\0")
                if "prooflops_gate_child_plugin" in words and str(foreign) in str((process.parent / "cwd").readlink()):
                    found.append(process.parent.name)
            except OSError:
                continue
        return found

    try:
        until(lambda: worktrees(foreign) == 2 and alive(), "a worktree and a child of this side")
    finally:
        parent.send_signal(signal.Signals[how])
        parent.wait()
    until(lambda: worktrees(foreign) == 1 and not alive(), "the worktree and the child gone")
    until(lambda: not list((tmp_path / "temporary").glob("prooflops-gate-*")), "the folder of the run gone")


def test_worktrees_of_killed_runs_are_removed_and_those_of_others_left(foreign: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name, owner in (("prooflops-gate-a", dead.pid), ("prooflops-gate-b", os.getpid()), ("mine", dead.pid)):
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", tmp_path / name / "worktree"], cwd=foreign, check=True
        )
        (tmp_path / name / "owner").write_text(str(owner))
    subprocess.run(["git", "worktree", "add", "-q", "--detach", tmp_path / "away"], cwd=foreign, check=True)
    (tmp_path / "away").rename(tmp_path / "taken-off")  # a folder that is not there just now
    assert worktrees(foreign) == 5
    replicates.remove_leftovers(foreign)
    assert not (tmp_path / "prooflops-gate-a").exists()
    assert (tmp_path / "prooflops-gate-b" / "worktree").exists()
    assert worktrees(foreign) == 4


def test_a_run_in_a_hook_of_git_leaves_what_is_staged(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (foreign / "work.py").write_text("STEPS = 1\n")
    subprocess.run(["git", "add", "work.py"], cwd=foreign, check=True)
    monkeypatch.setenv("GIT_INDEX_FILE", str(foreign / ".git" / "index"))
    config = SimpleNamespace(getini=lambda _: [], invocation_params=SimpleNamespace(args=[]))
    with replicates.Replicates(config, limit_s=1.0) as processes:  # type: ignore[arg-type]
        assert "STEPS = 300" in (processes.worktree(foreign, "HEAD") / "work.py").read_text()
    staged = subprocess.run(["git", "diff", "--cached", "--name-only"], cwd=foreign, capture_output=True, text=True)
    assert staged.stdout == "work.py\n"


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not seen within 30 s: {what}"
        time.sleep(0.05)


def test_a_baseline_of_fresh_processes_is_stored_and_gated_against(foreign: Path) -> None:
    code, said = run(foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "3")
    assert code == 0, said
    assert "baseline main: 3 records" in said, said
    code, said = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main", OMP_NUM_THREADS="7")
    assert code == 4, f"exit code {code}:\n{said}"
    assert "environment.OMP_NUM_THREADS: None -> 7" in said, said
    (foreign / "work.py").write_text((foreign / "work.py").read_text().replace("STEPS = 300", "STEPS = 1500"))
    code, said = run(foreign, "test_foreign.py", "--gate", "--gate-baseline", "main")
    assert code == 1, said
    assert "SLOWER: test_foreign.py::test_busy_loop" in said, said
    assert "flops is 3000, but was 600" in said, said
    assert "what a change of sitting does to 1 benchmarks is not known" in said, said


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("HEAD", "both sides are the same"),
        (".", "both sides are the same"),
        (sys.executable, "both sides are the same"),
        ("no-such", "no folder, no interpreter, and no revision of this repository"),
    ],
)
def test_the_same_side_twice_and_an_unknown_side_are_refused(
    foreign: Path, other: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    config = SimpleNamespace(rootpath=foreign, invocation_params=SimpleNamespace(args=[f"--gate-versus={other}"]))
    with pytest.raises(pytest.UsageError, match=why):
        sides.other_side(other, config, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variable", "arguments", "alone"),
    [
        ("", ["--gate-versus", "../b"], True),
        ("", ["--gate-versus=../b"], False),
        ("--gate-versus ../b", [], True),
        ("-q --gate-versus=../b", ["--gate"], False),
        ("", [], False),  # of `addopts` in the ini, which has been found by then
    ],
)
def test_a_path_that_stands_alone_moves_the_rootdir_wherever_it_was_given(
    variable: str, arguments: list[str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", variable)
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=arguments))
    assert settings.stands_alone("--gate-versus", "../b", config) is alone  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "why"),
    [("--gate-versus=no-such", "no folder, no interpreter"), ("--gate-baseline=no-such", "no baseline of that name")],
)
def test_what_is_not_there_to_compare_with_is_refused_before_anything_runs(
    foreign: Path, option: str, why: str
) -> None:
    (foreign / "test_foreign.py").write_text("def test_it(benchmark):\n    open('it-ran', 'w')\n")
    code, said = run(foreign, "test_foreign.py", "--gate", option)
    assert code == 4, f"exit code {code}:\n{said}"
    assert why in said, said
    assert not (foreign / "it-ran").exists(), said


def test_a_history_that_cannot_be_written_is_told_and_the_processes_reported(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said = run(
        foreign, "test_foreign.py", "--gate-record", "main", "--gate-replicates", "2",
        PROOFLOPS_HISTORY=str(tmp_path / "file"),
    )  # fmt: skip
    assert code == 1, f"exit code {code}:\n{said}"
    assert "could not be written" in said, said
    assert " passed" in said, said


def test_code_beside_itself_passes_says_what_can_be_found_and_stores_it(foreign: Path) -> None:
    for sitting, pairs in ((1, 3), (2, 1)):
        code, said = run(
            foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", f"--gate-replicates={pairs}", "-q"
        )
        assert code == 0, f"exit code {code}:\n{said}"
        assert "1 passed" in said, said
        assert "slowdowns are found from" in said, said
        (stored,) = foreign.glob(".prooflops/history/*/noise-floor.json")
        row = json.loads(stored.read_text())["benchmarks"]["test_foreign.py::test_busy_loop"]
        assert row["pairs"] == pairs, row
        assert len(row["sittings_s"]) == sitting, row
        assert (row["floor"] is not None) == (sitting == 2), row


def test_a_benchmark_that_is_skipped_stops_a_strict_gate(foreign: Path, tmp_path: Path) -> None:
    tests = foreign / "test_foreign.py"
    tests.write_text("import pytest\npytestmark = pytest.mark.skip('later')\n" + tests.read_text())
    code, said = run(
        foreign, "test_foreign.py", "--gate", "--gate-versus", "HEAD", "--gate-strict", f"--junitxml={tmp_path / 'x'}"
    )
    assert code == 1, f"exit code {code}:\n{said}"
    assert "INCONCLUSIVE: test_foreign.py::test_busy_loop: time: skipped this time: later" in said, said


def test_a_fresh_process_that_hangs_is_ended_and_told(foreign: Path) -> None:
    (foreign / "work.py").write_text("import time\nSTEPS = 1\ndef busy(steps=0):\n    time.sleep(60)\n")
    code, said = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor", "--gate-budget", "0.03")
    assert code == 1, f"exit code {code}:\n{said}"
    assert "was ended after 2 s (--gate-budget)" in said, said


def test_a_crash_of_a_fresh_process_is_that_of_the_test_and_is_told(foreign: Path) -> None:
    (foreign / "work.py").write_text("import os\nSTEPS = 1\ndef busy(steps=0):\n    os.abort()\n")
    code, said = run(foreign, "test_foreign.py::test_busy_loop", "--gate-noise-floor")
    assert code == 1, f"exit code {code}:\n{said}"
    assert "SIGABRT" in said, f"exit code {code}:\n{said}"


# ---- rules, with made-up replicates ------------------------------------------------------------------------------


def test_a_benchmark_that_vanished_is_missing_where_its_file_was_asked_for(tmp_path: Path) -> None:
    def asked(name: str, *arguments: str, **option: bool) -> bool:
        params = SimpleNamespace(dir=tmp_path / "sub")
        config = SimpleNamespace(
            rootpath=tmp_path, args=list(arguments), invocation_params=params, option=SimpleNamespace(**option)
        )
        return gate.is_asked_for(name, config)  # type: ignore[arg-type]

    assert asked("sub/test_a.py::test_old", "test_a.py")
    assert asked("sub/test_a.py::test_old", str(tmp_path))
    assert asked("sub/test_a.py::Test::test_old[3]", "test_a.py::Test::test_old")
    assert asked("sub/test_a.py::Test::test_old[3]", "test_b.py", "test_a.py::Test")
    assert not asked("sub/test_a.py::test_old", "test_a.py", lf=True)
    assert not asked("sub/test_a.py::test_old", "test_a.py", stepwise=True)
    assert not asked("test_a.py::test_old", "test_a.py")
    assert not asked("sub/test_ab.py::test_old", "test_a.py")
    assert not asked("sub/test_a.py::test_older", "test_a.py::test_old")


@pytest.mark.parametrize(
    ("most", "benchmarks"), [(1, 1), (4, 1), (9, 1), (12, 20), (20, 3), (20, 200), (50, 20), (70, 1)]
)
def test_no_more_replicates_are_taken_than_were_allowed(most: int, benchmarks: int) -> None:
    rule = judging.Rule(most=most)
    plan = rule.plan(benchmarks)
    assert plan.looks[-1] <= most, plan
    both: dict[str, Any] = {f"test_{number}": ([], []) for number in range(benchmarks)}
    while judging.timed_rows(both, rule)[1]:
        for before, after in both.values():
            before.append(timed(1.0))
            after.append(timed(1.5))
        assert len(both["test_0"][1]) <= most, plan
    rows, _ = judging.timed_rows(both, rule)
    enough = most - plan.confirming_pairs >= math.log2(1 / plan.level(len(plan.looks) - 1))
    assert {row.verdict for row in rows} == {"SLOWER" if enough else "INCONCLUSIVE"}, (plan, rows[0])


def test_a_baseline_too_small_to_decide_anything_is_named_and_costs_one_process() -> None:
    rule = judging.Rule(paired=False)
    rows, wanted = judging.timed_rows({"a": ([timed(1.0)], [timed(2.0)])}, rule)
    assert not wanted, wanted
    assert "the baseline holds 1 processes" in rows[0].note, rows[0]
    fewest = judging.fewest_stored(rule.plan(1))
    both: Any = {"a": ([timed(1.0 + number / 1000) for number in range(fewest)], [])}
    while judging.timed_rows(both, rule)[1]:
        both["a"][1].append(timed(2.0))
    (row,), _ = judging.timed_rows(both, rule)
    assert row.verdict == "SLOWER", (fewest, row)


def test_a_noise_floor_takes_all_pairs_where_a_comparison_would_stop() -> None:
    settings: Any = SimpleNamespace(noise_floor=True, direction="slower", min_effect=0.03, replicates=None)
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None), get_verbosity=lambda: -1, stash={}
    )
    rule = gate.Gate(config, settings).rule(paired=True)
    both: Any = {"a": ([], [])}
    while judging.timed_rows(both, rule)[1]:
        both["a"][0].append(timed(1.0))
        both["a"][1].append(timed(1.001))
    ((row,), _) = judging.timed_rows(both, rule)
    assert row.effect, row
    assert row.effect.pairs == len(both["a"][1]) == LOOKS[-1], row
    assert row.verdict == "SAME", row


def test_the_other_sides_claims_are_compared_where_both_were_checked() -> None:
    blank = Summary(Path("a"), "", "x", "", "", "", {}, {})
    before = {"a": "holds", "b": "holds", "c": "not checked", "d": "holds"}
    rows = gate.claim_rows(blank, before, {"a": "holds", "b": "FAILS", "c": "holds", "d": "not checked"})
    assert [(row.name, row.verdict, row.before, row.after) for row in rows] == [("b", "CHANGED", "holds", "FAILS")]


def test_the_parent_asks_the_device_nothing_and_leaves_report_and_records_alone(house: House) -> None:
    with open(house.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(PARENT)
    house.claim("demo.one")
    house.test("@pytest.mark.claim('demo.one')\n@pytest.mark.needs('c++')\ndef test_one():\n    assert True\n")
    house.test("def test_time(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=3)\n", "bench/test_b.py")
    done = house.run("--gate-replicates", "2", "--quick")
    assert done.code == 0, done.output
    assert not (house.root / "reports").exists(), done.output
    records = [json.loads(file.read_text()) for file in house.root.glob(".prooflops/history/*/*.json")]
    told = [(len(record["benchmarks"]), len(record["prooflops"]["verdicts"])) for record in records]
    assert told == [(1, 1), (1, 1)], f"{told}, but should be those of the two fresh processes: {done.output}"


def timed(time_s: float, contended: str = "", **exact: int) -> Timed:
    return Timed(time_s=time_s, exact=exact, portable={}, contended=contended)


def adapted(first: Any, take: Any, minutes: float = 10) -> tuple[gate.Gate, Any]:
    config = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None), get_verbosity=lambda: -1, stash={}
    )
    run_of = gate.Gate(config, SimpleNamespace(budget_s=60 * minutes, replicates=None))  # type: ignore[arg-type]
    run_of.begun = time.monotonic()
    run_of.exact_rows = lambda _: []  # type: ignore[method-assign]
    run_of.adapt(first, {name: [] for name in first}, judging.Rule(), take)
    return run_of, {row.name: row for row in run_of.rows}


def test_only_benchmarks_whose_verdict_is_open_are_taken_again() -> None:
    asked: list[list[str]] = []
    noisy = [1.3, 0.8, 1.2, 0.7]

    def take(names: list[str]) -> Any:
        asked.append(names)
        figures = {"slow": 1.5, "noisy": noisy[len(asked) % 4]}
        return {name: (timed(1.0), timed(figures[name])) for name in names}

    _, rows = adapted({"slow": (timed(1.0), timed(1.5)), "noisy": (timed(1.0), timed(1.2))}, take)
    assert rows["slow"].verdict == "SLOWER", rows
    assert rows["noisy"].verdict == "INCONCLUSIVE", rows
    assert "replicates a side would decide" in rows["noisy"].note, rows["noisy"]
    assert asked[0] == ["slow", "noisy"], asked
    assert asked[-1] != ["slow", "noisy"], asked
    assert rows["slow"].effect, rows["slow"]
    assert rows["slow"].effect.pairs == 16 + CONFIRMING_PAIRS, rows["slow"]


def test_a_contended_pair_is_repeated_and_where_it_stays_contended_labelled() -> None:
    taken = 0

    def quiet(names: list[str]) -> Any:
        nonlocal taken
        taken += 1
        return {name: (timed(1.0), timed(1.001)) for name in names}

    run_of, rows = adapted({"a": (timed(1.0), timed(4.0, "other processes"))}, quiet)
    assert rows["a"].verdict == "SAME", rows
    assert rows["a"].effect.ratio < 1.01, rows
    assert taken == 8, (taken, run_of.lines)
    assert "1 repeated" in run_of.lines[-1], (taken, run_of.lines)

    busy = {"a": (timed(1.0), timed(1.001, "other processes"))}
    _, rows = adapted(busy, lambda _: busy)
    assert "replicates contended: other processes" in rows["a"].note, rows["a"]


def test_a_spent_budget_leaves_open_what_is_open() -> None:
    def never(names: list[str]) -> Any:
        raise AssertionError(f"asked for {names} after the budget was spent")

    run_of, rows = adapted({"a": (timed(1.0), timed(2.0))}, never, minutes=-1)
    assert rows["a"].verdict == "INCONCLUSIVE", (rows, run_of.lines)
    assert "budget" in run_of.lines[0], (rows, run_of.lines)


@pytest.mark.parametrize(
    ("verdict", "direction", "strict", "stops"),
    [
        ("SLOWER", "slower", False, True), ("SLOWER", "faster", False, False), ("FASTER", "both", False, True),
        ("FASTER", "slower", False, False), ("MISSING", "slower", False, True), ("CHANGED", "slower", False, True),
        ("INCONCLUSIVE", "slower", False, False), ("INCONCLUSIVE", "slower", True, True), ("NEW", "both", True, False),
    ],
)  # fmt: skip
def test_what_stops_the_gate(verdict: str, direction: str, strict: bool, stops: bool) -> None:
    row = judging.Row("a", "time", 1.0, 2.0, verdict)
    assert judging.fails(row, direction, strict) is stops


def test_children_get_the_users_options_and_none_of_the_parents() -> None:
    parser = SimpleNamespace(_option_string_actions={
        name: SimpleNamespace(nargs=nargs)
        for name, nargs in {"--device": None, "-k": None, "--gate": 0, "--gate-versus": None, "-x": 0, "-v": 0,
                            "-o": None, "--junit-xml": None, "--cache-size": None}.items()
    })  # fmt: skip
    config = SimpleNamespace(
        getini=lambda _: ["--strict-markers", "--gate"],
        invocation_params=SimpleNamespace(
            args=["tests", "-x", "--device", "cuda", "--gate-versus", "main", "-k", "a or b", "-o", "addopts=-n2",
                  "--junit-xml", "x.xml", "--model=b", "-xvk", "c", "--cache-size", "3"]
        ),
        _parser=SimpleNamespace(optparser=parser),
    )  # fmt: skip
    kept = replicates.passed_on(config)  # type: ignore[arg-type]
    assert kept == ["--strict-markers", "--device", "cuda", "-k", "a or b", "--model=b", "-k", "c",
                    "--cache-size", "3"], kept  # fmt: skip
