"""Comparisons of times that a busy machine disturbs little: short, and on one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest
import torch


class Interval(Protocol):
    """What `speed` returns: a ratio of times, somewhere between two bounds."""

    low: float
    high: float
    noise_percent: float


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


def assert_at_most(ratio: Interval, most: float, claim: str) -> None:
    """Judges a ratio of times from above, as `speed.assert_slower` does from below."""
    __tracebackhide__ = True
    assert ratio.low <= most, f"{claim}: the ratio of times is {ratio}, but should be at most {most:g}"
    if ratio.high > most:
        pytest.skip(f"this machine's noise ({ratio.noise_percent:.0f} %) exceeds the effect: {claim}: {ratio}")
