"""Worktrees of other revisions, and that nothing of a run is left, however it ended."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta_tests.conftest import child_environment
from meta_tests.prooflops_gate.foreign_repo import ALONE, PLUGINS, config_in, import_path, worktrees
from prooflops_gate.process import Processes


def test_a_run_in_a_hook_of_git_leaves_the_staged_files(foreign, monkeypatch):
    (foreign / "work.py").write_text("STEPS = 1\n")
    subprocess.run(["git", "add", "work.py"], cwd=foreign, check=True)
    monkeypatch.setenv("GIT_INDEX_FILE", str(foreign / ".git" / "index"))
    with Processes(config_in(foreign), limit_s=1.0) as processes:
        assert "STEPS = 300" in (processes.worktree(foreign, "HEAD") / "work.py").read_text()
        with pytest.raises(pytest.UsageError, match=r"^no-such: git worktree: fatal: .*no-such"):
            processes.worktree(foreign, "no-such")
    staged = subprocess.run(
        ["git", "diff", "--cached", "--name-only"], cwd=foreign, capture_output=True, text=True
    )
    assert staged.stdout == "work.py\n"
    assert worktrees(foreign) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_run_that_is_killed(foreign, tmp_path, how):
    (tmp_path / "temporary").mkdir()
    (foreign / "work.py").write_text(
        "import time\nSTEPS = 1\ndef busy(steps=0):\n    time.sleep(1000)\n"
    )
    options = ("test_foreign.py::test_busy_loop", "--gate", "--gate-versus=HEAD")
    temporary = str(tmp_path / "temporary")
    parent = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGINS, *options],
        cwd=foreign,
        env=child_environment(import_path(foreign), TMPDIR=temporary, **ALONE),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def alive():
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = process.read_bytes().decode()
                if "prooflops_gate.child" in words and str(foreign) in str(
                    (process.parent / "cwd").readlink()
                ):
                    found.append(process.parent.name)
            except OSError:
                continue
        return found

    try:
        until(lambda: worktrees(foreign) == 2 and alive(), "a worktree and a child of this side")
        # Until the child is registered.
        time.sleep(0.2)
    finally:
        parent.send_signal(signal.Signals[how])
        parent.wait()
    until(lambda: worktrees(foreign) == 1 and not alive(), "the worktree and the child gone")
    until(
        lambda: not list((tmp_path / "temporary").glob("prooflops-gate-*")),
        "the folder of the run gone",
    )


def until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not seen within 30 s: {what}"
        time.sleep(0.05)
