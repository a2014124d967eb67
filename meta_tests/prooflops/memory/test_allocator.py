"""What the CUDA caching allocator charges and reserves, beside its rules and a card's record."""

import json
from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_tests.conftest import ROOT
from prooflops.memory import allocator
from prooflops.memory.caching_allocator import CachingAllocator, OutOfMemory

MIB = 2**20
# Recorded on one NVIDIA H200 with torch 2.11, 26 November 2026.
RECORD = json.loads((ROOT / "meta_tests/recorded/h200.json").read_text("utf-8"))


@pytest.mark.parametrize("row", RECORD["fresh"], ids=lambda row: str(row[0]))
def test_a_request_from_an_empty_cache_costs_what_the_card_charged(row):
    request, charged, reserved, requested = row
    simulated = CachingAllocator()
    simulated.allocate(request)
    got = simulated.allocated_bytes, simulated.reserved_bytes, simulated.requested_bytes
    assert got == (charged, reserved, requested)
    assert charged == allocator.charged_bytes(request)
    assert reserved == allocator.segment_bytes(request)


def run_sequence(simulated, sequence):
    """Follows the recorded requests and frees; returns the blocks that are left.

    A row has "a" for a request or "f" for a free, the bytes of the request, by how much the charged
    bytes grew, and by how much the reserved bytes did, if they did.
    """
    live = defaultdict(list)
    for number, (kind, request, charged, *reserved) in enumerate(sequence):
        before = simulated.allocated_bytes, simulated.reserved_bytes
        if kind == "a":
            block = simulated.allocate(request)
            assert block is not None
            live[request].append(block)
        else:
            # The card charged the block to be freed as much as it now returns.
            block = next(each for each in live[request] if each.size == -charged)
            live[request].remove(block)
            simulated.free(block)
        got = simulated.allocated_bytes - before[0], simulated.reserved_bytes - before[1]
        should = charged, *(reserved or [0])
        assert got == should, f"event {number} ({kind} {request}) costs {got}, but {should}"
    return [block for blocks in live.values() for block in blocks]


def test_a_sequence_of_requests_and_frees_costs_what_the_card_charged():
    assert len(RECORD["sequence"]) == 280
    run_sequence(CachingAllocator(), RECORD["sequence"])


@pytest.mark.parametrize("capacity", [None, 300 * MIB])
@given(seed=st.integers(0, 10**6))
def test_blocks_never_overlap_and_all_memory_comes_back(capacity, seed):
    draw = Random(seed)
    simulated = CachingAllocator(capacity)
    live = []
    for _ in range(150):
        if live and draw.random() < 0.48:
            simulated.free(live.pop(draw.randrange(len(live))))
            continue
        try:
            live.append(simulated.allocate(int(2 ** draw.uniform(0, 26))))
        except OutOfMemory:
            assert capacity is not None, "a card without a limit was full"
    spans = sorted((block.address, block.address + block.size) for block in live)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(block.size >= block.request for block in live)
    assert simulated.allocated_bytes == sum(block.size for block in live)
    assert simulated.allocated_bytes <= simulated.reserved_bytes <= (capacity or 2**60)
    for block in live:
        simulated.free(block)
    simulated.empty_cache()
    left = simulated.requested_bytes, simulated.allocated_bytes, simulated.reserved_bytes
    assert left == (0, 0, 0)


def test_a_full_card_empties_its_cache_before_it_refuses():
    simulated = CachingAllocator(40 * MIB)
    simulated.free(simulated.allocate(30 * MIB))
    kept = simulated.allocate(36 * MIB)
    assert (kept.size, simulated.reserved_bytes) == (36 * MIB, 36 * MIB)
    with pytest.raises(OutOfMemory, match=r"do not fit: .* of capacity_bytes=41943040 are alloc"):
        simulated.allocate(5 * MIB)


def test_the_free_of_another_allocators_block_is_refused():
    block = CachingAllocator().allocate(1)
    other = CachingAllocator()
    other.free(block)
    with pytest.raises(ValueError, match="is free already"):
        other.free(block)


@given(request_bytes=st.integers(1, 64 * MIB), spare_bytes=st.integers(0, 64 * MIB))
def test_every_charge_lies_between_its_bounds(request_bytes, spare_bytes):
    least, greatest = allocator.charge_bounds(request_bytes)
    simulated = CachingAllocator()
    simulated.free(simulated.allocate(request_bytes + spare_bytes))
    reused = simulated.allocate(request_bytes).size
    for charge in (allocator.charged_bytes(request_bytes), reused):
        assert request_bytes <= least <= charge <= greatest
        assert charge % 512 == 0
