"""Nothing is left of a run of the gate, however it ended."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meta_tests.conftest import child_environment
from meta_tests.prooflops.gate.foreign_repo import ALONE, PLUGINS, import_path, worktrees
from prooflops.gate import cleanup_process


def test_what_was_named_is_gone_at_the_end_and_what_had_ended_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = subprocess.Popen, []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **rest: started.append(rest) or start(*words, **rest))
    for name in ("folder", "other", "tree"):
        (tmp_path / name / "deep").mkdir(parents=True)
    alive, ended = (start(["sleep", "60"], start_new_session=True) for _ in range(2))
    with cleanup_process.running() as register:
        for word, place in (("folder", "folder"), ("folder", "other")):
            register(word, str(tmp_path / place))
        register("worktree", str(tmp_path), str(tmp_path / "tree"))
        for process in (alive, ended):
            register("group", str(process.pid))
        register("ended", str(ended.pid))
        assert len(list(tmp_path.iterdir())) == 3, "nothing is removed before the end"
    assert list(tmp_path.iterdir()) == []
    assert alive.wait(30) == -signal.SIGKILL
    assert ended.poll() is None
    ended.kill()
    ended.wait()
    (given,) = started
    nothing = subprocess.DEVNULL  # a pipe of the parent's would stay open behind it
    assert given == {
        "stdin": subprocess.PIPE,
        "stdout": nothing,
        "stderr": nothing,
        "text": True,
        "start_new_session": True,
    }


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_run_that_is_killed(foreign: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "temporary").mkdir()
    (foreign / "work.py").write_text("def busy(steps=0):\n    while True:\n        pass\n\nSTEPS = 1\n")
    parent = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGINS, "test_foreign.py::test_busy_loop", "--gate", "--gate-versus=HEAD"],
        cwd=foreign, env=child_environment(import_path(foreign), TMPDIR=str(tmp_path / "temporary"), **ALONE),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def alive() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = process.read_bytes().decode().split("\0")
                if "prooflops_gate.child_plugin" in words and str(foreign) in str((process.parent / "cwd").readlink()):
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


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not seen within 30 s: {what}"
        time.sleep(0.05)
