"""Cleans up after a gate run, however it ended: runs as a process of its own, which outlives even a killed parent.

The parent writes lines to its standard input: `folder PATH`, `worktree REPOSITORY PATH`, `group PID`, `ended PID`. When
that input ends (the parent is done, or dead) the processes still alive are killed, worktrees and folders removed. Being
the only place that cleans up, it is tried by every run. Standard library only; nothing of the suite is imported.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def main() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
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
        subprocess.run(["git", "-C", repository, "worktree", "remove", "--force", "--force", path], capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
    for folder in folders:
        # What was killed may still be writing its last file.
        deadline = time.monotonic() + 10
        while Path(folder).exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.01)


if __name__ == "__main__":
    main()
