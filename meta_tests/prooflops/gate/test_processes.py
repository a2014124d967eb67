"""Fresh processes: their worktrees, and the options that they get."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from meta_tests.prooflops.gate.foreign_repo import worktrees
from prooflops.gate.processes import Replicates, passed_on, remove_leftovers


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
    remove_leftovers(foreign)
    assert not (tmp_path / "prooflops-gate-a").exists()
    assert (tmp_path / "prooflops-gate-b" / "worktree").exists()
    assert worktrees(foreign) == 4


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
