"""One process of pytest in which tests of a run take place, as the runner sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prooflops.suite_root import SUITE_ROOT

# Variable of such a process: what it is to do.
WORKER = "PROOFLOPS_WORKER"
# By name: given "--report /folder", pytest takes its rootdir from there, and reads no conftest.py.
PLUGINS = ("prooflops_gate.plugin", "prooflops.plugin", "prooflops.suite.runner.worker")


class TestProcess:
    """Starts pytest, tells it which test comes next, and reads what it reports.

    It is `ready` once it has collected, and `leaving` once it runs no other test. `running` is the
    test that has begun; `announced` the one behind it: "" for the end, None where it is still open.
    """

    __test__ = False

    def __init__(
        self, task: Mapping[str, Any], output: Path, lock: int, register: Callable[..., None]
    ) -> None:
        self.output = output
        self.ready = False
        self.leaving = False
        self.running = ""
        self.announced: str | None = None
        self._register = register
        self._partial = b""
        asked, self._asking = os.pipe()
        self._told, telling = os.pipe()
        whole = {**task, "stacks": str(output), "asked": asked, "told": telling}
        options = ["no:cacheprovider", "no:faulthandler", *PLUGINS]
        words = [word for each in options for word in ("-p", each)]
        words += ["--continue-on-collection-errors", *task["arguments"]]
        with open(output, "ab") as printed:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words],
                cwd=SUITE_ROOT,
                env={**os.environ, WORKER: json.dumps(whole)},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                # So that Ctrl-C reaches the runner alone.
                start_new_session=True,
                # A process that outlives the runner still holds the file.
                pass_fds=[asked, telling, lock],
            )
        os.close(asked)
        os.close(telling)
        os.set_blocking(self._told, False)
        register("group", str(self._child.pid))

    def fileno(self) -> int:
        return self._told

    def announce(self, test: str) -> None:
        """Names the next test, and allows the one before it to begin."""
        self.running, self.announced = self.announced or "", test
        with suppress(BrokenPipeError):
            os.write(self._asking, f"{test}\n".encode())

    def has_exited(self) -> bool:
        """Whether it is gone, even where a process that a test left behind holds its pipe."""
        return self._child.poll() is not None

    def reports(self) -> list[dict[str, Any]] | None:
        """What the process reported since the last call; None once it has ended."""
        try:
            chunk = os.read(self._told, 1 << 20)
        except BlockingIOError:
            chunk = b""
        if not chunk:
            return None
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> tuple[str, str]:
        """How the process ended, and its output, with all stacks where it was killed."""
        code = self._child.wait()
        self.kill()
        self._register("ended", str(self._child.pid))
        os.close(self._told)
        os.close(self._asking)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return how, self.output.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)


def processes_for(arguments: Sequence[str]) -> int:
    """How many processes run tests side by side: one a core, or one for a few tests.

    Each takes up to 2 GiB, and some 10 CPU seconds to import and collect.
    """
    narrowed = any(
        word.partition("=")[0] in ("--claim", "-k") or "::" in word for word in arguments
    )
    if narrowed:
        return 1
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), 8, memory_bytes // 2**31))
