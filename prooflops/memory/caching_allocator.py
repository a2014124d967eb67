"""The CUDA caching allocator of torch, simulated: a sequence of requests and frees without a card.

`prooflops.memory.allocator` says what one request costs. Not modelled: streams, private pools
(CUDA graphs), expandable_segments, max_split_size_mb, roundup_power2_divisions,
garbage_collection_threshold, cudaMallocAsync, PYTORCH_NO_CUDA_MEMORY_CACHING=1.

On one NVIDIA H200 (torch 2.11, 26 November 2026), the charged and reserved bytes of a sequence of
280 requests and frees are exact.
Source: get_free_block, should_split, try_merge_blocks and release_cached_blocks in
c10/cuda/CUDACachingAllocator.cpp (torch 2.13).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from accounting.checks import validated_int
from prooflops.memory.allocator import (
    BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    rounded_bytes,
    segment_bytes,
)


class OutOfMemory(MemoryError):
    """A request for which the card has no memory left."""


class Block:
    """A stretch of a segment that is allocated or free."""

    __slots__ = ("address", "is_free", "next", "pool", "previous", "request", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.request = 0
        self.is_free = True
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
        """Merges the block behind this one into it."""
        behind = self.next
        assert behind is not None
        self.size += behind.size
        self.next = behind.next
        if behind.next is not None:
            behind.next.previous = self


class Pool:
    """The free blocks of one kind, small or large, by size and then by address."""

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self._keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.address))]
        del self._blocks[block.address]

    def blocks(self) -> list[Block]:
        """The free blocks."""
        return list(self._blocks.values())

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes, the lowest address of those."""
        place = bisect_left(self._keys, (size, 0))
        return self._blocks[self._keys[place][1]] if place < len(self._keys) else None


class CachingAllocator:
    """Charged and reserved bytes of a sequence of requests and frees on one stream, without a card.

    A request goes to the pool of its size: up to 1 MiB small, above large. It gets the smallest
    free block that fits it, else a new segment from the driver. The rest of the block is split off
    where it is of use: from 512 bytes in the small pool, above 1 MiB in the large one. A freed
    block merges with free neighbours of its segment and waits for a later request. Segments go back
    to the driver only by `empty_cache`, or where `capacity_bytes` is reached. Then the cache is
    emptied and the request repeated, before OutOfMemory is raised.

    Ignored: the driver's own addresses. Ties between blocks of one size go to the segment that was
    reserved first. A driver may place it otherwise; then other blocks are used, at the same charge.
    Raises ValueError for a negative capacity or request.

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

    def __init__(self, capacity_bytes: int | None = None) -> None:
        if capacity_bytes is not None:
            capacity_bytes = validated_int("capacity_bytes", capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.requested_bytes = 0
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        # An address of 0 is none.
        self._next_address = BLOCK_BYTES
        self._small = Pool(is_small=True)
        self._large = Pool(is_small=False)

    def allocate(self, request: int) -> Block | None:
        """A block for `request` bytes, to be freed; None for no bytes. Raises OutOfMemory."""
        request = validated_int("request", request)
        if request == 0:
            return None
        size = rounded_bytes(request)
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
        """Returns the block to its pool. Raises ValueError for a block that is free already."""
        if block is None:
            return
        if block.is_free:
            raise ValueError(f"block at {block.address} is free already")
        self.requested_bytes -= block.request
        self.allocated_bytes -= block.size
        block.is_free = True
        self._add_merged(block)

    def empty_cache(self) -> None:
        """Returns segments without an allocated block to the driver."""
        for pool in (self._small, self._large):
            for block in pool.blocks():
                self._release(block)

    def _free_block(self, pool: Pool, size: int) -> Block | None:
        block = pool.best_fit(size)
        if block is not None:
            pool.remove(block)
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
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
        reserved = segment_bytes(size)
        if self.capacity_bytes is not None and self.reserved_bytes + reserved > self.capacity_bytes:
            return None
        self.reserved_bytes += reserved
        block = Block(self._next_address, reserved, pool)
        self._next_address += reserved
        return block

    def _is_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.is_small:
            return remaining >= BLOCK_BYTES
        return remaining > SMALL_REQUEST_BYTES

    def _add_merged(self, block: Block) -> None:
        """Adds a free block to its pool, one with its free neighbours."""
        behind, before = block.next, block.previous
        if behind is not None and behind.is_free:
            block.pool.remove(behind)
            block.absorb_next()
        if before is not None and before.is_free:
            block.pool.remove(before)
            before.absorb_next()
            block = before
        block.pool.add(block)

    def _release(self, block: Block) -> None:
        """Returns a free block that is a whole segment."""
        if block.is_whole_segment:
            block.pool.remove(block)
            self.reserved_bytes -= block.size
