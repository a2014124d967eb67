"""Whether any process of a pair opened a file in which the two sides differ.

Where none did, the commit changed nothing that the benchmarks read, as one of documents alone. Both
sides then ran the same program on the same data, and no time is needed to call them SAME. The
kernel (Linux's inotify) reports every opening, by C code and started programs, too.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prooflops_gate import git
from prooflops_gate.console.tables import many
from prooflops_gate.task import Pair, Side
from prooflops_gate.unpatched import os

# Of inotify.h: the mask of openings, and the flags of a descriptor that neither blocks nor stays.
OPENED, NONBLOCKING = 0x20, 0o2004000
# An event's fixed part: watch, mask, cookie, and the length of the name that follows.
EVENT = struct.Struct("iIII")
EVENTS_BYTES = 1 << 16
# Few systems allow fewer watches.
MOST_FILES = 1000
# Files of code and of pytest's settings, which benchmarks and pytest do open.
CODE = (".py", ".pyi", ".pyx", ".pxd", ".c", ".cpp", ".h", ".rs", ".so", ".toml", ".cfg", ".ini")


class Openings:
    """The openings of these files and folders from now on, of a folder only as a whole."""

    def __init__(self, paths: set[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(NONBLOCKING)
        watches = [
            libc.inotify_add_watch(self._descriptor, os.fsencode(path), OPENED) for path in paths
        ]
        self.are_seen = self._descriptor >= 0 and min(watches, default=0) >= 0

    def any(self) -> bool:
        """Whether there was one; also where the kernel dropped events."""
        try:
            events = os.read(self._descriptor, EVENTS_BYTES)
        except BlockingIOError:
            return False
        while events:
            length = EVENT.unpack_from(events)[-1]
            if not length:
                return True
            events = events[EVENT.size + length :]
        return self.any()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Unread:
    """The files in which two sides differ, and whether a pair has opened one.

    `files` are unknown, None, where the other side is no checkout of a commit, or not on Linux.
    """

    def __init__(self, files: list[str] | None, openings: Openings | None) -> None:
        self.files, self._openings = files, openings

    @property
    def is_likely(self) -> bool:
        """Whether it is worth a short pair: files differ, and none is code or pytest's settings."""
        return bool(self._openings) and not any(name.endswith(CODE) for name in self.files or ())

    def explains(self, pair: Pair) -> str:
        """Why both sides of a pair ran the same program, in words; empty where that is unknown."""
        if self._openings is None or self.files is None or self._openings.any():
            return ""
        imported = [
            {name: file.removeprefix(f"{done.side.root}/") for name, file in done.modules.items()}
            for done in pair
        ]
        if imported[0] != imported[1] or set(self.files) & set(imported[1].values()):
            return ""
        return f"no process opened a file that differs ({many(len(self.files), 'file')})"


@contextmanager
def watched(here: Side, other: Side) -> Iterator[Unread]:
    """Watches the files in which two sides differ while their first pair runs."""
    files = differing(here, other)
    openings = None
    if files and hasattr(ctypes.CDLL(None), "inotify_init1"):
        openings = Openings({there(side.root, name) for side in (here, other) for name in files})
    try:
        yield Unread(files, openings if openings and openings.are_seen else None)
    finally:
        if openings:
            openings.close()


def differing(here: Side, other: Side) -> list[str] | None:
    """The paths below this side's folder of what differs in the other, which is a checkout.

    None where that is unknown: too many, submodules, or files outside the folder.
    """
    commit = git.commit_named(other.root, "HEAD") if other.fresh else None
    top = git.repository_of(here.root) if commit else None
    if commit is None or top is None:
        return None
    changed = git.output(top, "diff", "--name-only", "-z", "--no-renames", commit, "--")
    if changed is None:
        return None
    # git reads a file again that is as new as its index, as all are in a fresh checkout.
    git.output(other.root, "update-index", "-q", "--refresh", "--force-write-index")
    names = [*filter(None, changed.split("\0")), *git.untracked(top, "--exclude-standard")]
    if len(names) > MOST_FILES or any((top / name).is_dir() for name in names):
        return None
    return [os.path.relpath(top / name, here.root) for name in names]


def there(root: Path, name: str) -> Path:
    """The file, or the nearest folder around its place: what lists that may find it."""
    return next(path for path in (root / name, *(root / name).parents) if path.exists())
