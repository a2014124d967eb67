"""Fresh processes: their worktrees, and the options that they get."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.gate.foreign_repo import worktrees
from meta_tests.prooflops.gate.without_processes import A, B, config
from prooflops.gate.call_resources import INSTRUCTIONS, MEMORY
from prooflops.gate.processes import ReplicateFailed, Replicates, Side, _kill, passed_on, remove_leftovers
from prooflops.machine.core_speed import PATIENCE_S


def test_worktrees_of_killed_runs_are_removed_and_those_of_others_left(foreign: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    owners = {"a": dead.pid, "b": os.getpid(), "being-written": "", "gone": dead.pid}
    for name, owner in [*((f"prooflops-gate-{name}", owner) for name, owner in owners.items()), ("mine", dead.pid)]:
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", tmp_path / name / "worktree"], cwd=foreign, check=True
        )
        (tmp_path / name / "owner").write_text(str(owner))
    subprocess.run(["git", "worktree", "add", "-q", "--detach", tmp_path / "away"], cwd=foreign, check=True)
    (tmp_path / "away").rename(tmp_path / "taken-off")  # a folder that is not there just now
    (tmp_path / "prooflops-gate-gone").rename(tmp_path / "moved")
    assert worktrees(foreign) == 7
    remove_leftovers(foreign)
    assert not (tmp_path / "prooflops-gate-a").exists()
    assert (tmp_path / "prooflops-gate-b" / "worktree").exists()
    assert (tmp_path / "prooflops-gate-being-written" / "worktree").exists(), "another run that has just begun"
    assert worktrees(foreign) == 5


def test_a_run_in_a_hook_of_git_leaves_what_is_staged(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (foreign / "work.py").write_text("STEPS = 1\n")
    subprocess.run(["git", "add", "work.py"], cwd=foreign, check=True)
    monkeypatch.setenv("GIT_INDEX_FILE", str(foreign / ".git" / "index"))
    config = SimpleNamespace(getini=lambda _: [], invocation_params=SimpleNamespace(args=[]))
    with Replicates(config, limit_s=1.0) as processes:  # type: ignore[arg-type]
        assert "STEPS = 300" in (processes.worktree(foreign, "HEAD") / "work.py").read_text()
    staged = subprocess.run(["git", "diff", "--cached", "--name-only"], cwd=foreign, capture_output=True, text=True)
    assert staged.stdout == "work.py\n"


def test_children_get_the_users_options_and_none_of_the_parents() -> None:
    parser = SimpleNamespace(_option_string_actions={
        name: SimpleNamespace(nargs=nargs)
        for name, nargs in {"--device": None, "-k": None, "--gate": 0, "--gate-versus": None, "-x": 0, "-v": 0,
                            "-o": None, "--junit-xml": None, "--cache-size": None}.items()
    })  # fmt: skip
    config = SimpleNamespace(
        getini=lambda _: ["--strict-markers", "--gate", "--benchmark-disable", "--cov", "src", "--cov-fail-under=90"],
        invocation_params=SimpleNamespace(
            args=["tests", "-x", "--device", "cuda", "--gate-versus", "main", "-k", "a or b", "-o", "addopts=-n2",
                  "--junit-xml", "x.xml", "--model=b", "-xvk", "c", "--cache-size", "3"]
        ),
        _parser=SimpleNamespace(optparser=parser),
    )  # fmt: skip
    kept = passed_on(config)  # type: ignore[arg-type]
    assert kept == ["--strict-markers", "--device", "cuda", "-k", "a or b", "--model=b", "-k", "c",
                    "--cache-size", "3"], kept  # fmt: skip


# Stands for an interpreter: keeps how it was called, leaves a record, and ends as it is told.
PYTHON = """#!/bin/sh
printf '%s\\n' "$@" > words
env > variables
[ -z "$CONTENT" ] || printf %s "$CONTENT" > "$PROOFLOPS_RECORD_TO"
eval "$END"
"""
ENDED = {
    "prefix": "/usr", "modules": {"work": "work.py"}, "reports": [{"nodeid": A}], "errors": [], "waited_s": 0.0,
    "was_fast": True, "fastest_s": 1e-5, "idle_s": 0.0, "footprint": {"peak_bytes": 1, "driver": ""},
    "calls": {A: {"stretch_s": 1e-5}, B: {"stretch_s": 2e-5}},
}  # fmt: skip


class Started:
    """A process of the side `there`, in whose place a shell script runs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **rest: Any) -> None:
        there = root / "there"
        there.mkdir()
        (root / "python").write_text(PYTHON)
        (root / "python").chmod(0o755)
        self.patch, self.config = patch, config(root / "here", **rest)
        (root / "here").mkdir()
        self.side = Side("b", str(root / "python"), there, (str(there / "src"), str(there)))
        self.will(ENDED)

    def will(self, ended: dict[str, Any] | None, end: str = "exit 0") -> None:
        benchmarks = [{"fullname": A}, {"fullname": B, "extra_info": {"contention": {"why": "was preempted"}}}]
        record = {"benchmarks": benchmarks, "prooflops": {"fingerprint": {"name": "abacus"}}, "replicate": ended}
        self.patch.setenv("CONTENT", json.dumps(record) if ended else "")
        self.patch.setenv("END", end)

    def words(self) -> list[str]:
        return (self.side.root / "words").read_text().splitlines()

    def variables(self) -> dict[str, str]:
        return dict(
            line.split("=", 1) for line in (self.side.root / "variables").read_text().splitlines() if "=" in line
        )

    def task(self) -> dict[str, Any]:
        task: dict[str, Any] = json.loads(Path(self.variables()["PROOFLOPS_GATE_TASK"]).read_text())
        return task


def test_a_process_is_told_what_to_do_and_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(tmp_path, monkeypatch)
    started.config.inipath = started.config.rootpath / "pytest.ini"
    started.config.pluginmanager.hasplugin = lambda name: name == "cacheprovider"
    monkeypatch.setenv("PYTEST_ADDOPTS", "--device=cuda")
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "GITHUB_STEP_SUMMARY", "PYTEST_VERSION"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(started.config.rootpath / "lib"), "/elsewhere"]))
    with Replicates(started.config, limit_s=60) as replicates:
        replicates.examined = [B]
        done = replicates.run(started.side, ["test_b.py"], [A], paces={"": {"max_time": 1}})
        folder, there = replicates.folder, started.side.root
        assert started.words() == [
            "-m", "pytest", "-p", "prooflops_gate.child_plugin", "-o", "addopts=", f"--rootdir={there}", "-o",
            f"cache_dir={folder / 'cache'}", "--device=cuda", "test_b.py",
        ]  # fmt: skip
        given = started.variables()
        assert not {name for name, value in given.items() if name.startswith("PYTEST_") or value == "mine"}
        assert "PYTHONHASHSEED" not in given
        assert given["PYTHONPATH"] == os.pathsep.join(
            [str(folder / "plugins"), str(there / "src"), str(there), str(there / "lib"), "/elsewhere"]
        )
        assert started.task() == {
            "ids": [A], "benchmarks_only": True, "paces": {"": {"max_time": 1}}, "examined": [B], "measured": MEMORY,
            "fastest_s": None, "patience_s": PATIENCE_S, "restore": {}, "turn": None,
        }  # fmt: skip
        (there / "pytest.ini").touch()
        replicates.share_hash_seed()
        replicates.run(started.side, ["test_b.py"], None, benchmarks_only=False)
        assert started.words()[9:11] == ["-c", str(there / "pytest.ini")]
        task = started.task()
        assert (task["ids"], task["benchmarks_only"], task["fastest_s"]) == (None, False, 1e-5)
        assert task["restore"] == {"PYTHONHASHSEED": None}
        assert 0 < int(started.variables()["PYTHONHASHSEED"]) < 2**32
        assert [path.name for path in sorted(folder.iterdir())] == [
            "0001.json", "0001.task", "0001.txt", "0002.json", "0002.task", "0002.txt", "owner", "plugins",
        ]  # fmt: skip
        for _ in range(4):
            replicates.run(started.side, ["test_b.py"], None)
        assert started.task()["measured"] == INSTRUCTIONS
    assert not folder.exists()
    assert (done.side, done.side.fresh) == (started.side, False)
    assert (done.prefix, done.modules, done.reports) == ("/usr", {"work": "work.py"}, [{"nodeid": A}])
    assert (done.fingerprint, done.calls) == ({"name": "abacus"}, ENDED["calls"])
    assert 0 < done.wall_s < 60
    fast, slow = done.record["benchmarks"]
    assert fast == {"fullname": A}
    why = "was preempted; this core ran at 50% of its speed"
    assert slow["extra_info"]["contention"] == {"why": why, "contended": True, "slowness": 2.0}


def test_a_suite_of_thousands_is_asked_for_by_its_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(tmp_path, monkeypatch)
    ids = [f"test_b.py::test_one_of_many_with_a_long_name_{number:0100}" for number in range(2000)]
    with Replicates(started.config, limit_s=60) as replicates:
        replicates.run(started.side, ["test_b.py"], ids)  # Linux allows a variable 128 KiB
        assert started.task()["ids"] == ids


def test_a_hash_seed_given_is_kept_and_waiting_is_bounded_by_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with Replicates(started.config, limit_s=60, resources=False) as replicates:
        replicates.share_hash_seed()
        done = replicates.run(started.side, [], None)
        assert started.task()["measured"] == ""
        assert started.variables()["PYTHONHASHSEED"] == "7"
        assert replicates._patience_s == 2 * done.wall_s
        started.will({**ENDED, "was_fast": False}, "exit 5")
        replicates.run(started.side, [], None)
        assert replicates._patience_s == done.wall_s


def test_a_process_that_ends_otherwise_is_named_with_how_it_ended_and_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(tmp_path, monkeypatch)
    where = f"(b: {started.side.python} in {started.side.root})"
    many = "echo Fatal first; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo $i; done; exit 1"
    with Replicates(started.config, limit_s=60) as replicates:
        for number, (ended, end, how) in enumerate([
            (ENDED, "exit 3", "ended with exit code 3. It printed:"),
            (None, "exit 0", "ended with exit code 0. It printed:"),
            (None, "kill -ABRT $$", "crashed with SIGABRT. It printed:"),
            (None, many, "ended with exit code 1. It printed:\n" + "\n".join(["Fatal first", *map(str, range(1, 16))])),
            ({**ENDED, "errors": ["t.py: broken"]}, "exit 2", "ended with exit code 2. It printed:\nt.py: broken"),
        ]):  # fmt: skip
            started.will(ended, end)
            with pytest.raises(ReplicateFailed) as failed:
                replicates.run(started.side, [], None)
            assert str(failed.value) == f"replicate {number + 1} {where} {how}"
        replicates._limit_s = 2.0
        started.will(None, "sleep 60 & echo $! > child; sleep 60")
        with pytest.raises(ReplicateFailed, match=r"was ended after 2 s \(--gate-budget\)"):
            replicates.run(started.side, [], None)
        state = Path(f"/proc/{(started.side.root / 'child').read_text().strip()}/stat")
        end = time.monotonic() + 30
        while state.exists() and state.read_text().split()[2] != "Z":
            assert time.monotonic() < end, "what the process had started still runs"


def test_what_belongs_to_the_parent_is_not_passed_on() -> None:
    parents = (
        "--gate --junitxml --junit-xml --junitprefix --junit-prefix --last-failed --lf --failed-first --ff --new-first "
        "--nf --last-failed-no-failures --lfnf --cache-show --cache-clear --sw --stepwise --sw-skip --stepwise-skip "
        "--sw-reset --stepwise-reset --exitfirst --maxfail --benchmark-autosave --benchmark-save --benchmark-save-data "
        "--benchmark-compare --benchmark-compare-fail --benchmark-json --benchmark-histogram --benchmark-storage --pdb "
        "--pdbcls --trace --trace-config --report-log --report-log-exclude-logs-on-passed-tests --html "
        "--self-contained-html --verbose --quiet --verbosity --rootdir --config-file --durations --durations-min "
        "--inifile --benchmark-disable --benchmark-skip --cov --cov-report --cov-config --cov-branch --cov-context "
        "--cov-append --cov-fail-under --cov-reset --no-cov --no-cov-on-fail -v -q -x -c -s -n -r -n4 -rA"
    ).split()
    for setting in ("--strict-markers -", ["--strict-markers", "a"]):
        run: Any = SimpleNamespace(
            getini=lambda _, setting=setting: setting, invocation_params=SimpleNamespace(args=[*parents, "--gate-x=1"])
        )
        assert passed_on(run) == ["--strict-markers"]


def test_a_worktree_of_an_unknown_revision_is_refused_in_gits_words(foreign: Path) -> None:
    with Replicates(config(foreign), limit_s=1.0) as replicates:
        with pytest.raises(pytest.UsageError, match=r"^no-such: git worktree: fatal: .*no-such"):
            replicates.worktree(foreign, "no-such")
        tree = replicates.worktree(foreign, "HEAD")
        assert tree.parent == replicates.folder
        assert tree != replicates.worktree(foreign, "HEAD")
        register, said = replicates._register, list[tuple[str, ...]]()
        replicates._register = lambda *words: said.append(words) or register(*words)
        replicates.worktree(foreign, "HEAD")
        assert [words[0] for words in said] == ["worktree", "group", "ended"], "a later process may have its number"
        assert said[1][1] == said[2][1]
    assert worktrees(foreign) == 1


@pytest.mark.parametrize("own_group", [True, False])
def test_a_killed_process_has_ended(own_group: bool) -> None:
    child = subprocess.Popen([b"sleep", b"60"], start_new_session=own_group)
    _kill(child)
    assert child.returncode == -signal.SIGKILL
