"""The CUDA caching allocator of torch: what it charges and reserves, and the workspaces of cuBLAS.

`torch.cuda.memory_allocated` sums blocks, not tensors: each request is rounded up to 512 bytes,
and a large one may get a whole block that it does not fill. `torch.cuda.memory_reserved` sums the
segments that these blocks are cut from: what a card must have free for a run not to die.
`memory_stats()["requested_bytes.all.current"]` is the exact sum of the tensors. The CPU allocator
charges exactly the request.

The functions say what one request costs; `CachingAllocator` takes a sequence of requests and frees.
Not modelled: several streams, private pools (CUDA graphs), garbage_collection_threshold,
roundup_power2_divisions by size, cudaMallocAsync, PYTORCH_NO_CUDA_MEMORY_CACHING=1.
A negative request raises ValueError.

Held against one NVIDIA H200 (torch 2.11, 26 November 2026): the charge and the reserved bytes of 21
fresh requests and of a sequence of 280 requests and frees come out to the byte. That record is of
the default configuration; the options have not been compared with a card.
Source: kMinBlockSize and its neighbours in c10/core/AllocatorConfig.h; round_size, get_pool,
get_allocation_size, get_free_block, should_split, try_merge_blocks, map_block and
release_cached_blocks in c10/cuda/CUDACachingAllocator.cpp (torch 2.13).
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort

from accounting.checks import (
    at_least_one,
    checked,
    validated_bool,
    validated_instance,
    validated_int,
    validated_ints,
)

# Every block is a multiple of this (kMinBlockSize).
BLOCK_BYTES = 512
# Up to here a request is served by the small pool (kSmallSize).
SMALL_REQUEST_BYTES = 2**20
# Taken from the driver by the small pool (kSmallBuffer).
SMALL_SEGMENT_BYTES = 2 * 2**20
# Taken by the large pool for a request below LARGE_REQUEST_BYTES (kLargeBuffer).
LARGE_SEGMENT_BYTES = 20 * 2**20
# From here on a request gets a segment of its own (kMinLargeAlloc).
LARGE_REQUEST_BYTES = 10 * 2**20
# Such a segment is a multiple of this (kRoundLarge).
SEGMENT_ROUNDING_BYTES = 2 * 2**20
# With max_split_size_mb: how much larger than a request an unsplit block may be.
NON_SPLIT_ROUNDING_BYTES = 20 * 2**20

# torch's defaults for cuBLAS, in the KiB · count of CUBLAS_WORKSPACE_CONFIG: 4096 · 2 + 16 · 8, and
# 4096 · 8.
CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
CUBLAS_WORKSPACE_BYTES_HOPPER_ON = 4096 * 1024 * 8
# Of cuBLASLt, which adds the bias of a linear layer: the 1024 KiB of CUBLASLT_WORKSPACE_SIZE.
CUBLASLT_WORKSPACE_BYTES = 1024 * 1024


@checked("request")
def rounded_bytes(request: int) -> int:
    """Bytes of the smallest block for a request: ⌈request / 512⌉ · 512; 0 for a tensor without
    bytes.

    The least charge, and the exact one up to 1 MiB. A 4-byte step count on the device costs 512.

    >>> rounded_bytes(4), rounded_bytes(512), rounded_bytes(513), rounded_bytes(0)
    (512, 512, 1024, 0)
    """
    return -(-request // BLOCK_BYTES) * BLOCK_BYTES


def segment_bytes(request: int) -> int:
    """Bytes taken from the driver if no free block fits: 2 MiB, 20 MiB, or the request rounded up
    to 2 MiB.

    `memory_reserved` grows by this. Requests up to 1 MiB share segments of 2 MiB, those below 10
    MiB segments of 20 MiB; a larger one gets its own. Expandable segments map pages of 2 or 20 MiB
    instead (not modelled).

    >>> [segment_bytes(mib * 2**20) // 2**20 for mib in (0, 1, 2, 10, 11)]
    [0, 2, 20, 10, 12]
    """
    rounded = rounded_bytes(request)
    if rounded == 0:
        return 0
    if rounded <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


@checked("block", expandable_segments=validated_bool)
def charged_bytes(request: int, block: int | None = None, expandable_segments: bool = False) -> int:
    """Growth of `memory_allocated` for a request served from a free `block`, by default from a
    fresh segment.

    The block is split, and the rounded request charged, if enough remains: 512 bytes in the small
    pool, more than 1 MiB in the large one. Otherwise the whole block is charged: 11 MiB from a
    fresh segment of 12 costs 12. With expandable segments every block is split. Raises ValueError
    if the block is too small or not a multiple of 512.

    >>> charged_bytes(11 * 2**20) // 2**20
    12
    >>> charged_bytes(11 * 2**20, expandable_segments=True) // 2**20
    11
    """
    rounded = rounded_bytes(request)
    free = segment_bytes(request) if block is None else block
    if free < rounded or free % BLOCK_BYTES:
        raise ValueError(
            f"block must be a multiple of {BLOCK_BYTES} bytes that holds request={rounded}, "
            f"got {free}"
        )
    remainder = free - rounded
    large = not expandable_segments and rounded > SMALL_REQUEST_BYTES
    is_split = remainder > SMALL_REQUEST_BYTES if large else remainder >= BLOCK_BYTES
    return rounded if is_split or rounded == 0 else free


@checked(expandable_segments=validated_bool)
def charge_bounds(request: int, expandable_segments: bool = False) -> tuple[int, int]:
    """Least and greatest charge for a request, whatever was allocated and freed before.

    Both are the rounded request up to 1 MiB, and always with expandable segments. Above, a reused
    block that exceeds the request by up to 1 MiB is handed out whole. Bounds of several tensors add
    up; a difference of two `memory_allocated` readings lies between the sums.

    >>> charge_bounds(1000)
    (1024, 1024)
    """
    rounded = rounded_bytes(request)
    whole_blocks = not expandable_segments and rounded > SMALL_REQUEST_BYTES
    return rounded, rounded + SMALL_REQUEST_BYTES * whole_blocks


def cublas_workspace_bytes(compute_capability: tuple[int, int], config: str | None = None) -> int:
    """Bytes of the workspace that torch allocates for cuBLAS: 32 MiB on Hopper and Blackwell,
    8,519,680 before.

    It is allocated at the first matmul of each handle and stream, kept (per call from torch 2.15),
    and counts in `memory_allocated`: warm up before taking a difference. A training step has two
    handles, the forward pass's and that of autograd's thread, so it takes this twice (one H200:
    33,554,432 each). The first linear layer with a bias adds CUBLASLT_WORKSPACE_BYTES. `config` is
    the value of CUBLAS_WORKSPACE_CONFIG, pairs of :KiB:count that replace the default. Not
    modelled: ROCm (32 MiB, 128 on MI300 and MI350), and older torch, which gives 32 MiB only to
    compute capability 9.0. Raises ValueError for a config of another form, and for a capability
    that is not a pair of integers. Source: aten/src/ATen/cuda/CublasHandlePool.cpp of torch 2.13.

    >>> cublas_workspace_bytes((9, 0)), cublas_workspace_bytes((8, 0))
    (33554432, 8519680)
    >>> cublas_workspace_bytes((8, 0), ":4096:8")
    33554432
    """
    capability = validated_ints("compute_capability", compute_capability)
    if len(capability) != 2:
        raise ValueError(
            f"compute_capability must be a pair of integers such as (9, 0), got {capability}"
        )
    if config is None:
        return (
            CUBLAS_WORKSPACE_BYTES_HOPPER_ON
            if capability[0] in (9, 10, 12)
            else CUBLAS_WORKSPACE_BYTES
        )
    if not re.fullmatch(r"(:\d+:\d+)+", validated_instance("config", config, str)):
        raise ValueError(
            f"config must be pairs of :KiB:count such as ':4096:2:16:8', got {config!r}"
        )
    return sum(1024 * int(kib) * int(blocks) for kib, blocks in re.findall(r":(\d+):(\d+)", config))


def power2_rounded_bytes(request: int, divisions: int) -> int:
    """Bytes of a request under roundup_power2_divisions: the next of `divisions` steps of an
    octave.

    Between 2ⁿ and 2ⁿ⁺¹ a size is rounded up to a multiple of 2ⁿ / divisions, so that slightly
    different sizes share blocks. Requests up to 512 · divisions are rounded to 512 as always.

    >>> power2_rounded_bytes(1200 * 1024, 4) // 1024, power2_rounded_bytes(1200 * 1024, 1) // 1024
    (1280, 1200)
    """
    divisions = at_least_one("divisions", divisions)
    if divisions == 1 or request <= BLOCK_BYTES * divisions:
        return rounded_bytes(request)
    octave = 1 << (request.bit_length() - 1)
    if octave == request:
        return request
    step = octave >> (divisions.bit_length() - 1)
    return -(-request // step) * step if step else 2 * octave


class OutOfMemory(MemoryError):
    """A request for which the card has no memory left."""


class Block:
    """A stretch of a segment that is allocated, free, or an address without memory (not mapped)."""

    __slots__ = ("address", "is_free", "is_mapped", "next", "pool", "previous", "request", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.request = 0
        self.is_free = True
        self.is_mapped = True
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def is_whole_segment(self) -> bool:
        return self.previous is None and self.next is None

    def split_at(self, size: int) -> Block:
        """Keeps the first `size` bytes; returns a new block with the others."""
        rest, self.size = self.size - size, size
        behind = Block(self.address + size, rest, self.pool)
        behind.previous, behind.next = self, self.next
        if self.next is not None:
            self.next.previous = behind
        self.next = behind
        return behind

    def absorb_next(self) -> None:
        """Takes in the block behind this one."""
        behind = self.next
        assert behind is not None
        self.size += behind.size
        self.next = behind.next
        if behind.next is not None:
            behind.next.previous = self


class Pool:
    """The small or the large blocks: those that are free, by size and then by address."""

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self._keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.address))]
        del self._blocks[block.address]

    def blocks(self, least_bytes: int = 0) -> list[Block]:
        """The free blocks of at least so many bytes, the smallest first."""
        keys = self._keys[bisect_left(self._keys, (least_bytes, 0)) :]
        return [self._blocks[address] for _, address in keys]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block that holds `size` bytes, the lowest address of those."""
        place = bisect_left(self._keys, (size, 0))
        return self._blocks[self._keys[place][1]] if place < len(self._keys) else None


class CachingAllocator:
    """Charged and reserved bytes of a sequence of requests and frees on one stream, without a card.

    A request goes to the pool of its size: up to 1 MiB small, above large. It takes the smallest
    free block that holds it, else a new segment from the driver. What the block has left over is
    split off where it is of use: 512 bytes in the small pool, more than 1 MiB in the large one. A
    freed block merges with free neighbours of its segment and waits for a later request; segments
    go back to the driver only by `empty_cache`, and where `capacity_bytes` is reached: then the
    cache is emptied and the driver asked once more, before OutOfMemory is raised.

    `expandable_segments` keeps one segment a pool and maps pages of 2 or 20 MiB to its end.
    `max_split_size_bytes` (max_split_size_mb · 2²⁰) leaves blocks from that size on unsplit, and
    hands them only to requests that nearly fill them. `roundup_power2_divisions` rounds sizes up.

    Ignored: the driver's own addresses. Ties between blocks of one size go to the segment that was
    taken first, which a driver may place otherwise; charges are then equal, the blocks others.
    Raises ValueError for max_split_size_bytes of at most 20 MiB, and as the formulas.

    >>> allocator = CachingAllocator()
    >>> first, second = allocator.allocate(11 * 2**20), allocator.allocate(3 * 2**20)
    >>> allocator.allocated_bytes // 2**20, allocator.reserved_bytes // 2**20
    (15, 32)
    >>> allocator.free(first)
    >>> allocator.allocated_bytes // 2**20, allocator.reserved_bytes // 2**20
    (3, 32)
    >>> allocator.empty_cache()
    >>> allocator.reserved_bytes // 2**20
    20
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        expandable_segments: bool = False,
        max_split_size_bytes: int | None = None,
        roundup_power2_divisions: int = 1,
    ) -> None:
        if capacity_bytes is not None:
            capacity_bytes = validated_int("capacity_bytes", capacity_bytes)
        if max_split_size_bytes is not None:
            least = LARGE_SEGMENT_BYTES + 1
            max_split_size_bytes = validated_int(
                "max_split_size_bytes", max_split_size_bytes, least
            )
        self.capacity_bytes = capacity_bytes
        self.expandable_segments = validated_bool("expandable_segments", expandable_segments)
        self.max_split_size_bytes = max_split_size_bytes
        self.divisions = at_least_one("roundup_power2_divisions", roundup_power2_divisions)
        self.requested_bytes = 0
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        # Addresses begin at a multiple of every page.
        self._next_address = LARGE_SEGMENT_BYTES
        self._small = Pool(is_small=True)
        self._large = Pool(is_small=False)
        self._expandable: dict[Pool, Block] = {}

    def allocate(self, request: int) -> Block | None:
        """A block for `request` bytes, to be freed; None for no bytes. Raises OutOfMemory."""
        request = validated_int("request", request)
        if request == 0:
            return None
        size = power2_rounded_bytes(request, self.divisions)
        pool = self._small if size <= SMALL_REQUEST_BYTES else self._large
        block = self._free_block(pool, size) or self._new_block(pool, size)
        if self._is_split(block, size):
            pool.add(block.split_at(size))
        block.is_free = False
        block.request = request
        self.requested_bytes += request
        self.allocated_bytes += block.size
        return block

    def free(self, block: Block | None) -> None:
        """Gives the block back to its pool. Raises ValueError for a block that is free already."""
        if block is None:
            return
        if block.is_free:
            raise ValueError(f"block at {block.address} is free already")
        self.requested_bytes -= block.request
        self.allocated_bytes -= block.size
        block.is_free = True
        self._add_merged(block)

    def empty_cache(self) -> None:
        """Gives segments without an allocated block, and free pages, back to the driver."""
        for pool in (self._small, self._large):
            for block in pool.blocks():
                self._release(block)

    def _free_block(self, pool: Pool, size: int) -> Block | None:
        block = self._best_expandable(pool, size) or pool.best_fit(size)
        limit = self.max_split_size_bytes
        if block is None:
            return None
        if limit is not None and size < limit <= block.size:
            return None
        if limit is not None and limit <= size and block.size >= size + NON_SPLIT_ROUNDING_BYTES:
            return None
        pool.remove(block)
        return block

    def _best_expandable(self, pool: Pool, size: int) -> Block | None:
        """The fitting block that can grow least.

        A last block counts with the addresses behind it.
        """
        if not self.expandable_segments:
            return None
        best: Block | None = None
        for block in pool.blocks(size):
            if best is not None and _room(block) >= _room(best):
                break
            best = block
        return best

    def _new_block(self, pool: Pool, size: int) -> Block:
        block = self._from_driver(pool, size)
        if block is None and self._release_large_blocks(pool, size):
            block = self._from_driver(pool, size)
        if block is None:
            self.empty_cache()
            block = self._from_driver(pool, size)
        if block is None:
            raise OutOfMemory(
                f"{size} bytes do not fit: {self.allocated_bytes} of capacity_bytes="
                f"{self.capacity_bytes} are allocated and {self.reserved_bytes} reserved"
            )
        return block

    def _from_driver(self, pool: Pool, size: int) -> Block | None:
        if self.expandable_segments:
            return self._expanded(pool, size)
        taken = segment_bytes(size)
        if not self._reserve(taken):
            return None
        block = Block(self._next_address, taken, pool)
        self._next_address += taken
        return block

    def _reserve(self, size: int) -> bool:
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        return True

    def _is_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.is_small or self.expandable_segments:
            return remaining >= BLOCK_BYTES
        limit = self.max_split_size_bytes
        return (limit is None or size < limit) and remaining > SMALL_REQUEST_BYTES

    def _add_merged(self, block: Block) -> None:
        """Adds a free block to its pool, one with its free neighbours."""
        behind, before = block.next, block.previous
        if behind is not None and behind.is_free and behind.is_mapped:
            block.pool.remove(behind)
            block.absorb_next()
        if before is not None and before.is_free and before.is_mapped:
            block.pool.remove(before)
            before.absorb_next()
            block = before
        block.pool.add(block)

    # --- giving memory back to the driver ---

    def _release(self, block: Block) -> None:
        """Gives back a free block that is a segment, or the whole pages within it."""
        if self.expandable_segments:
            self._unmap(block)
        elif block.is_whole_segment:
            block.pool.remove(block)
            self.reserved_bytes -= block.size

    def _release_large_blocks(self, pool: Pool, size: int) -> bool:
        """Gives back one unsplit block that would do, else the largest ones.

        Only with max_split_size.
        """
        limit = self.max_split_size_bytes
        if limit is None or self.expandable_segments:
            return False
        wanted = max(size, limit)
        enough = pool.blocks(wanted)
        if enough:
            self._release(enough[0])
            return True
        released = 0
        for block in reversed(pool.blocks(limit)):
            if released >= wanted:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    # --- expandable segments ---

    def _expanded(self, pool: Pool, size: int) -> Block | None:
        """A block of at least `size` bytes, with pages mapped where it has none."""
        block = self._room_for(pool, size)
        if not block.is_mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            behind = block.next
            assert behind is not None
            mapped = self._map(behind, min(behind.size, size - block.size))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def _room_for(self, pool: Pool, size: int) -> Block:
        """The lowest free or unmapped block from which on `size` bytes are free or unmapped."""
        block: Block | None = self._expandable.get(pool)
        if block is None:
            block = Block(self._next_address, 2**60, pool)
            block.is_mapped = False
            self._next_address += 2**61 // LARGE_SEGMENT_BYTES * LARGE_SEGMENT_BYTES
            self._expandable[pool] = block
        while block is not None:
            begins_unmapped = not block.is_mapped
            leads_to_unmapped = block.next is not None and not block.next.is_mapped
            if block.is_free and (begins_unmapped or leads_to_unmapped) and _room(block) >= size:
                return block
            block = block.next
        raise AssertionError("an expandable segment has no end")

    def _map(self, block: Block, size: int) -> Block | None:
        """Maps the pages of the first `size` bytes of an unmapped block; None where memory ends."""
        page = block.pool.page_bytes
        mapped = min(-(-(block.address + size) // page) * page - block.address, block.size)
        if not self._reserve(mapped):
            return None
        if mapped < block.size:
            block.split_at(mapped).is_mapped = False
        block.is_mapped = True
        before = block.previous
        self._add_merged(block)
        return before if before is not None and before.is_free else block

    def _unmap(self, block: Block) -> None:
        """Gives back the pages that lie wholly within a free block."""
        page = block.pool.page_bytes
        begin = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if begin >= end:
            return
        block.pool.remove(block)
        if block.address < begin:
            pages = block.split_at(begin - block.address)
            block.pool.add(block)
            block = pages
        if end < block.address + block.size:
            block.pool.add(block.split_at(end - block.address))
        block.is_mapped = False
        self.reserved_bytes -= block.size
        self._merge_unmapped(block)

    def _merge_unmapped(self, block: Block) -> None:
        if block.next is not None and not block.next.is_mapped:
            block.absorb_next()
        if block.previous is not None and not block.previous.is_mapped:
            block.previous.absorb_next()


def _room(block: Block) -> int:
    """Bytes from the block's begin on that are free or unmapped, without a gap."""
    room, behind = block.size, block.next
    while behind is not None and behind.is_free:
        room += behind.size
        behind = behind.next
    return room
