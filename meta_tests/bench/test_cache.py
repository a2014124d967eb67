"""A flush is as large as the caches need and the memory allows, and a read shows that it works."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench import cache
from meta_tests.bench.stand_ins import CPU
from prooflops.machine.caches import Caches

MIB, GIB = 2**20, 2**30
# An accelerator whose tensors need no memory.
OTHER = torch.device("meta")


@pytest.mark.parametrize(
    ("device", "cache_mib", "memory_gib", "room_gib", "flush_mib"),
    [
        (CPU, 0, 24, math.inf, 128),
        (CPU, 32, 0.5, math.inf, 32),
        # A host's cache, as a container may have it named.
        (CPU, 600, 64, math.inf, 1024),
        (OTHER, 50, 0.5, math.inf, 256),
        (OTHER, 200, 24, 2, 400),
        (OTHER, 200, 24, 1, 256),
    ],
)
def test_a_flush_has_twice_the_last_level_as_far_as_the_memory_allows(
    device, cache_mib, memory_gib, room_gib, flush_mib
):
    levels = {"L3": cache_mib * MIB} if cache_mib else {}
    caches = Caches(levels, memory_bytes=int(memory_gib * GIB))
    flush = cache.flush_of(device, caches, room_gib * GIB)
    assert flush.buffer.nbytes == flush_mib * MIB


@pytest.mark.parametrize("levels", [{}, {"L1": 2**15, "L2": 2**19}])
def test_a_flush_is_tried_on_half_of_a_cores_second_level_where_it_is_known(levels):
    found = cache.flush_of(CPU, Caches(levels, cores=2, memory_bytes=2**26)).check
    assert (found and found.read_bytes) == (levels.get("L2", 0) // 4 or None)


class Reads(TorchDispatchMode):
    """A device on which the first read after a flush takes another time than 1 s."""

    def __init__(self, first_s):
        super().__init__()
        self.first_s, self.now, self.next_s = first_s, 0.0, first_s

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor:
            self.next_s = self.first_s
        elif func is torch.ops.aten.sum.default:
            self.now, self.next_s = self.now + self.next_s, 1.0
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("first_s", "is_refused"),
    [(1.5, nullcontext()), (1.49, pytest.raises(AssertionError, match=r"1\.49 times"))],
)
def test_a_flush_after_which_a_read_takes_no_longer_is_refused(monkeypatch, first_s, is_refused):
    reads = Reads(first_s)
    monkeypatch.setattr(cache.timing, "clock", lambda device: lambda: reads.now)
    with reads, is_refused:
        cache.flush_of(CPU, Caches({"L2": 2**19}, memory_bytes=2**26)).assert_works()
