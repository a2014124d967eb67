"""The sizes of arrays whose bandwidth is that of the memory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.streams import (
    DRAWN,
    MEMORY,
    STREAMS,
    Arrays,
    Bandwidths,
    Size,
    assert_bytes,
    bandwidth_of_mix,
    cache_size,
    memory_size,
    operand_elements,
)
from meta_tests.bench.stand_ins import SHORT
from prooflops.machine.caches import Caches

MIB, GIB = 2**20, 2**30
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
# Pace, last-level cache and room; then an array of a stream, its label, and a kernel's operand.
SIZES = {
    "a cache of one's own": (CPU, "quick", 32, 16 * GIB, 128, "", 128),
    "a host's cache": (CPU, "quick", 300, 16 * GIB, 600, "arrays are 2x the cache", 128),
    "a host's cache, thoroughly": (CPU, "thorough", 300, 16 * GIB, 1200, "", 1200),
    "a host's cache and little memory": (
        CPU, "quick", 300, 2.25 * GIB, 384, "arrays are 1.3x the cache", 128
    ),
    "room that nobody knows": (CPU, "quick", 300, math.inf, 600, "arrays are 2x the cache", 128),
    "a cache that nobody names": (CPU, "quick", 0, 16 * GIB, 128, "cache unknown", 128),
    "a GPU": (GPU, "quick", 50, 100 * GIB, 800, "", 800),
}  # fmt: skip


@pytest.mark.parametrize("case", SIZES)
def test_arrays_exceed_the_last_level_cache_and_fit_the_memory(case):
    device, pace, cache_mib, room, array_mib, label, operand_mib = SIZES[case]
    size = memory_size(device, pace, caches(cache_mib), room)
    assert (4 * size.elements / MIB, size.label) == (array_mib, label)
    assert 4 * operand_elements(device, pace, size) / MIB == operand_mib


def test_a_cache_is_measured_where_half_of_it_exceeds_all_levels_within():
    known = {"L1": 32 * 2**10, "L2": 2 * MIB, "L3": 3 * MIB}
    measured = [level for level in known if cache_size(level, 2, known)]
    assert measured == ["L1", "L2"]


@pytest.mark.parametrize("device", [CPU, GPU])
def test_arrays_that_fit_the_cache_are_not_measured(device):
    with pytest.raises(pytest.skip.Exception, match=r"arrays of 256 MiB, .* cache of 256 MiB"):
        memory_size(device, "quick", caches(256), 1.5 * GIB)


def test_a_kernel_that_has_a_row_is_not_timed_again():
    timed = []
    size = Size(1000, MEMORY, None)
    bandwidths = Bandwidths(CPU, SHORT, size, lambda text, ahead_s: timed.append(text))
    arrays = Arrays(size.elements, CPU)
    for kernel in STREAMS.keys() - {"triad"}:
        bandwidths.note(arrays.stream(kernel), 1e-9)
    assert bandwidths.bytes_per_s(0.5) == pytest.approx(8e12)
    assert timed == ["triad through 1000 elements an array"]
    assert bandwidths.bytes_per_s(2 / 3) == pytest.approx(12e12), "the best of add and triad"
    for moved in (0, 10**9):
        before = bandwidths.bytes_per_s(0.5)
        raised = bandwidths.raised(0.5, lambda: None, moved)
        assert raised == bandwidths.bytes_per_s(0.5)
        assert (raised > before, raised < before) == (bool(moved), False), "a roof only rises"


@given(read_share=st.floats(0, 1), rates=st.tuples(*[st.floats(1e9, 1e13)] * 3))
def test_a_mix_is_as_fast_as_the_nearest_ones_and_no_other_matters(read_share, rates):
    copy, triad, read = zip((1 / 2, 2 / 3, 1), rates, strict=True)
    nearest = dict([copy, triad] if read_share <= triad[0] else [triad, read])
    found = bandwidth_of_mix(read_share, dict([copy, triad, read]))
    assert found == bandwidth_of_mix(read_share, nearest)
    assert min(nearest.values()) * 0.999 <= found <= max(nearest.values()) * 1.001


def test_a_copy_of_another_part_of_a_long_array_is_noticed():
    stream = Arrays(3 * DRAWN, CPU).stream("copy")
    stream.check(stream.run())
    for away in (1024, 2**20, 2**22, 2**23):
        with pytest.raises(AssertionError, match="copy differs from fp64"):
            stream.check(stream.a.roll(away))
    nearly = stream.a.clone()
    nearly[-1] *= 1 + 2**-23
    with pytest.raises(AssertionError, match="copy differs from fp64"):
        stream.check(nearly)


@pytest.mark.parametrize("kernel", STREAMS)
def test_the_bytes_of_a_stream_are_those_that_its_operator_moves(kernel):
    stream = Arrays(1000, CPU).stream(kernel)
    result_bytes = 4 if stream.run().dim() == 0 else 0
    assert_bytes(stream.work, stream.run, result_bytes)
    with pytest.raises(AssertionError, match="-1 more are uncounted"):
        assert_bytes(stream.work, stream.run, -1)


def caches(last_level_mib):
    return Caches({"L3": last_level_mib * MIB} if last_level_mib else {}, memory_bytes=24 * GIB)
