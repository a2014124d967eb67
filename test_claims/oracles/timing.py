"""Comparisons of times that a busy machine disturbs little: short, and on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Options of `speed`: many short blocks. On a busy machine most of them pass between two interruptions, a long one none.
SHORT = {"pairs": 61, "block_s": 3e-4}


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for one another are most of a busy machine's noise; `@one_thread()` decorates a test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
