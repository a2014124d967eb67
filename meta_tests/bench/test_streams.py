"""How long the arrays of a stream are, and the machine's own bandwidths."""

from __future__ import annotations

import pytest

from bench.pace import PACES
from bench.streams import MEMORY, Bandwidths, Size, cache_size, memory_size
from meta_tests.bench.stand_ins import CPU
from prooflops.machine.caches import Caches

GIB = 2**30


@pytest.mark.parametrize(
    ("last_level", "memory", "pace", "multiple", "label"),
    [
        (32 * 2**20, 24 * GIB, "quick", 4, ""),
        (480 * 2**20, 512 * GIB, "quick", 128 / 480, "fits the cache: 0.27 of it"),  # a host's, seen in a container
        (480 * 2**20, 512 * GIB, "thorough", 4, ""),
        (32 * 2**20, GIB, "default", 1, "fits the cache: 1 of it"),
        (48 * 2**20, 512 * GIB, "quick", 128 / 48, "arrays of 2.7 caches"),
    ],
)
def test_arrays_are_four_caches_long_or_say_that_they_are_not(
    last_level: int, memory: int, pace: str, multiple: float, label: str
) -> None:
    size = memory_size(CPU, pace, Caches({"L3": last_level}, memory_bytes=memory))
    assert (size.multiple, size.label) == (pytest.approx(multiple), label)
    assert size.exceeds_caches is (multiple > 1)


def test_rows_of_a_cache_fit_it_and_not_the_one_within() -> None:
    known = {"L1": 48 * 2**10, "L2": 2**20, "L3": 32 * 2**20}
    within = 0
    for level, size in known.items():
        for count in (2, 3):
            row = cache_size(level, count, known)
            assert row is not None
            assert within < 4 * count * row.elements <= size / 2
        within = size
    assert cache_size("L3", 2, {"L1": 2**15, "L2": 2**20}) is None
    assert cache_size("L3", 2, {"L2": 2**20, "L3": 2**20}) is None, "no larger than the level within it"


def test_the_machines_own_bandwidths_are_the_best_of_each_mix() -> None:
    own = Bandwidths(CPU, PACES["quick"], Size(2**12, MEMORY, None))
    assert sorted(own.measured) == [0.5, 2 / 3, 1.0]
    before = own.bytes_per_s(0.5)
    assert own.raised(0.5, lambda: None, moved=2**40) > before
