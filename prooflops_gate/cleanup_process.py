"""Cleans up after a gate run, however it ended.

It runs as a process of its own, which outlives even a killed parent. The parent writes lines to its
standard input: `folder PATH`, `worktree REPOSITORY PATH`, `group PID`, `ended PID`. When that input
ends (the parent is done, or dead), it kills the processes still alive and removes worktrees and
folders. No other code cleans up, so every run exercises it. Standard library only; nothing of the
suite is imported.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def running(environment: Mapping[str, str] | None = None) -> Iterator[Callable[..., None]]:
    """Starts this file as a process, and yields the function that writes a line to it.

    When the block ends, this waits until the process has cleaned up.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin
    pipe = process.stdin

    def register(*words: str) -> None:
        pipe.write("\t".join(words) + "\n")
        pipe.flush()

    try:
        yield register
    finally:
        pipe.close()
        process.wait()


def main() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    folders, worktrees, groups = [], [], set()
    for line in sys.stdin:
        kind, _, rest = line.rstrip("\n").partition("\t")
        if kind == "folder":
            folders.append(rest)
        elif kind == "worktree":
            worktrees.append(rest.split("\t"))
        elif kind == "group":
            groups.add(int(rest))
        elif kind == "ended":
            groups.discard(int(rest))
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for repository, path in worktrees:
        subprocess.run(
            ["git", "-C", repository, "worktree", "remove", "--force", "--force", path],
            capture_output=True,
        )
        shutil.rmtree(path, ignore_errors=True)
    for folder in folders:
        # A killed process may still be writing its last file.
        deadline = time.monotonic() + 10
        while Path(folder).exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.01)


if __name__ == "__main__":
    main()
