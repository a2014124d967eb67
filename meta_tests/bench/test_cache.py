"""The flush of the caches: its size, what it touches, and that one which does nothing is noticed."""

from __future__ import annotations

import pytest
import torch

from bench import cache
from meta_tests.bench.stand_ins import CPU, measure
from prooflops.machine.caches import Caches, caches_of


@pytest.mark.skipif(not caches_of(CPU).levels, reason="this system names no caches")
def test_a_hot_cache_sold_as_cold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries: a very busy machine can hide that the caches are warm, but not make a right flush look like none."""
    monkeypatch.setattr(cache.Flush, "__call__", lambda self: None)
    for _ in range(3):
        flush = cache.flush_of(CPU, caches_of(CPU))
        try:
            measure(flush=lambda flush=flush: flush).median_s(lambda: None, cache="cold")
        except AssertionError as error:
            if "the caches are still hot" in str(error):
                return
    pytest.fail("a flush that does nothing was accepted three times")


def test_a_flush_changes_every_line_of_its_buffer() -> None:
    flush = cache.Flush(torch.zeros(4096, dtype=torch.int32), False, Caches())
    flush()
    assert bool((flush.buffer == 1).all())
    assert (flush.calls, flush.bytes) == (1, 16384)


def test_a_flush_is_twice_the_last_level_or_says_that_it_is_not() -> None:
    for level, memory, expected in (
        (32 * 2**20, 64 * 2**30, (64 * 2**20, False)),
        (480 * 2**20, 64 * 2**30, (960 * 2**20, False)),  # a container that sees its host's caches
        (480 * 2**20, 4 * 2**30, (256 * 2**20, True)),
        (1152 * 2**20, 512 * 2**30, (2**30, True)),
        (None, 64 * 2**30, (128 * 2**20, False)),
    ):
        known = Caches({"L3": level} if level else {}, memory_bytes=memory)
        assert cache.flush_bytes(CPU, known) == expected, f"of a last level of {level} bytes and {memory} of memory"
    for level, size in ((50 * 2**20, 256 * 2**20), (200 * 2**20, 400 * 2**20)):
        assert cache.flush_bytes(torch.device("cuda"), Caches({"L2": level})) == (size, False)
