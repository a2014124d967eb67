"""Worktrees of other revisions, and that nothing of a run is left, however it ended."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta_tests.conftest import child_environment
from meta_tests.prooflops_gate.foreign_repo import (
    ALONE,
    PLUGINS,
    commit_all,
    import_path,
    run_git,
    worktrees,
)
from meta_tests.prooflops_gate.forked_processes import FORKED

HOOK = """#!/bin/sh
cd suite
exec {python} -m pytest {words} --gate --gate-versus HEAD --gate-min-effect 0.5 >{output} 2>&1
"""


@pytest.mark.prove
def test_a_hook_of_a_linked_worktree_gates_a_subfolder_and_leaves_the_staged_files(
    foreign, tmp_path
):
    (foreign / "suite").mkdir()
    for name in ("pytest.ini", "conftest.py", "work.py", "test_foreign.py"):
        run_git(foreign, "mv", name, f"suite/{name}")
    commit_all(foreign)
    linked, output = tmp_path / "linked", tmp_path / "output"
    run_git(foreign, "worktree", "add", "-q", str(linked))
    work, hook = linked / "suite" / "work.py", foreign / ".git" / "hooks" / "pre-commit"
    words = " ".join(PLUGINS)
    hook.write_text(HOOK.format(python=sys.executable, words=words, output=output))
    hook.chmod(0o755)
    work.write_text(work.read_text().replace("STEPS = 300", "STEPS = 3000"))
    run_git(linked, "add", "-A")
    done = subprocess.run(
        ["git", "--literal-pathspecs", "commit", "-m", "slower"],
        cwd=linked,
        env=child_environment(import_path(foreign), **ALONE, **{FORKED: "1"}),
    )
    assert (done.returncode, "gate: fails: 1 SLOWER" in output.read_text()) == (1, True), (
        output.read_text()
    )
    assert run_git(linked, "diff", "--cached", "--name-only") == "suite/work.py\n"
    assert worktrees(foreign) == 2, "the worktree of the other revision is still there"


def test_nothing_is_left_of_a_run_that_is_killed(foreign, tmp_path):
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
        parent.kill()
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
