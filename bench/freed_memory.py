"""Keeps the memory that a call frees for the next call, as an accelerator's allocator does.

glibc returns freed blocks of 32 MiB or more, and the top of its heap, to the operating system at
once. The next call pays for new pages, each zeroed at its first touch. That costs 15 % of a small
transformer's step and more than half of a softmax that allocates its result. It causes most of the
noise of both. It measures the allocator, not the operator, so benchmarks leave it out. On an
accelerator torch keeps freed memory anyway.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# mallopt(3): how many blocks may be mapped each for itself, and how much free memory the top of the
# heap may keep.
MMAP_MAX, TRIM_THRESHOLD = -4, -1
BY_DEFAULT = {MMAP_MAX: 65536, TRIM_THRESHOLD: 128 * 2**10}
# All memory comes from the heap, which gives nothing back.
KEEPING = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Makes this process keep the memory it frees inside the block, if its C library is glibc.

    At the end the memory goes back, and glibc has its default limits again.
    """
    libc: Any = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        yield
        return
    for limit in KEEPING.items():
        libc.mallopt(*limit)
    try:
        yield
    finally:
        for limit in BY_DEFAULT.items():
            libc.mallopt(*limit)
        libc.malloc_trim(0)


def new_pages() -> int:
    """The pages this process has been given so far.

    Each has 2 MiB where the system makes them so.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
