"""Tells if any process of a pair opened a file in which the two sides differ.

Where none did, the commit changed nothing that the benchmarks read, as one of documents alone. Both
sides then ran the same program on the same data, and no time is needed to call them SAME. The
kernel (Linux's inotify) reports every opening, by C code and started programs, too.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from prooflops_gate import git
from prooflops_gate.console.tables import many
from prooflops_gate.task import Pair, Side
from prooflops_gate.unpatched import os

# The mask of openings, and the flags of a descriptor that neither blocks nor stays (inotify.h).
OPENED, NONBLOCKING = 0x20, 0o2004000
# An event's fixed part: watch, mask, cookie, and the length of the name that follows.
EVENT = struct.Struct("iIII")
EVENTS_BYTES = 1 << 16
# Few systems allow fewer watches.
MOST_FILES = 1000
# Files of code and of pytest's settings, which benchmarks and pytest do open.
CODE = (".py", ".pyi", ".pyx", ".pxd", ".c", ".cpp", ".h", ".rs", ".so", ".toml", ".cfg", ".ini")


class Unread:
    """The files in which two sides differ, watched from now on; none where they are unknown.

    Of a folder, its own openings count, and not those of what lies in it.
    """

    def __init__(self, here: Side, other: Side) -> None:
        self.files = differing(here, other)
        settle(other.root, self.files)
        self._descriptor = -1
        libc = ctypes.CDLL(None)
        if not self.files or not hasattr(libc, "inotify_init1"):
            return
        self._descriptor = libc.inotify_init1(NONBLOCKING)
        for side, name in itertools.product((here, other), self.files):
            path = os.fsencode(there(side.root, name))
            if libc.inotify_add_watch(self._descriptor, path, OPENED) < 0:
                self.close()
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @property
    def is_likely(self) -> bool:
        """True if it is worth a short pair: files differ, and none is code or pytest's settings."""
        return self._descriptor >= 0 and not any(name.endswith(CODE) for name in self.files)

    def explains(self, pair: Pair) -> str:
        """Why both sides of a pair ran the same program, in words; empty where that is unknown."""
        if self._descriptor < 0:
            return ""
        before, after = (
            {name: file.removeprefix(f"{done.side.root}/") for name, file in done.modules.items()}
            for done in pair
        )
        is_read = set(self.files) & set(after.values())
        if before != after or is_read or self._is_any_opened():
            return ""
        return f"no process opened a file that differs ({many(len(self.files), 'file')})"

    def _is_any_opened(self) -> bool:
        """True if the kernel reports an opening, or has dropped some reports."""
        with suppress(BlockingIOError):
            while events := os.read(self._descriptor, EVENTS_BYTES):
                while events:
                    *_, length = EVENT.unpack_from(events)
                    if not length:
                        return True
                    events = events[EVENT.size + length :]
        return False


def differing(here: Side, other: Side) -> list[str]:
    """The paths from this side's folder of what differs in the other, which is a checkout.

    None where that is unknown: there are too many, or submodules.
    """
    commit = git.commit_named(other.root, "HEAD") if other.fresh else None
    top = git.repository_of(here.root) if commit else None
    if commit is None or top is None:
        return []
    changed = git.output(top, "diff", "--name-only", "-z", "--no-renames", commit, "--")
    names = [*filter(None, (changed or "").split("\0")), *git.untracked(top, "--exclude-standard")]
    if changed is None or len(names) > MOST_FILES or any((top / name).is_dir() for name in names):
        return []
    return [os.path.relpath(top / name, here.root) for name in names]


def settle(checkout: Path, files: Sequence[str]) -> None:
    """Keeps git from opening these files of a fresh checkout.

    It reads a file again that is of its index's second, as all are there.
    """
    for path in (checkout / name for name in files):
        with suppress(FileNotFoundError):
            os.utime(path, (0, 0), follow_symlinks=False)
    if files:
        git.output(checkout, "update-index", "-q", "--refresh", "--force-write-index")


def there(root: Path, name: str) -> Path:
    """The file, or the nearest folder around its place: what lists that may find it."""
    return next(path for path in (root / name, *(root / name).parents) if path.exists())
