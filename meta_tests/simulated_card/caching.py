"""The bookkeeping of a caching allocator: blocks of 512 bytes, segments of 2 and 20 MiB, reuse,
splits, a limit.

Written after c10/cuda/CUDACachingAllocator.cpp, not after `accounting.allocator`, which is held
against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

KIB = 2**10
MIB = 2**20
_COUNTED = ("requested_bytes", "allocated_bytes", "reserved_bytes", "allocation", "segment")


@dataclass(eq=False)
class Block:
    """A part of a segment; `size` is what it charges, `requested` what its tensor asked for, None
    where it is free.
    """

    address: int
    size: int
    segment: list[Block] = field(repr=False)
    requested: int | None = None

    @property
    def small(self) -> bool:
        return sum(block.size for block in self.segment) == 2 * MIB


class CachingAllocator:
    """Hands out addresses and keeps the counters of `torch.cuda.memory_stats`; holds no memory
    itself.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._segments: list[list[Block]] = []
        self._next_address = 0x7F00_0000_0000
        self._stats = {
            (name, what): 0
            for name in _COUNTED
            for what in ("current", "peak", "allocated", "freed")
        }

    def allocate(self, requested: int) -> Block | None:
        """A block for `requested` bytes; None for none.

        Raises OutOfMemoryError beyond the limit.
        """
        if requested <= 0:
            return None
        size = -(-requested // 512) * 512
        small = size <= MIB
        free = [block for segment in self._segments for block in segment if block.requested is None]
        fitting = [block for block in free if block.size >= size and block.small == small]
        # The smallest that fits, the lowest address of those; a tensor below 20 MiB takes no part
        # of a large segment.
        block = min(
            fitting, key=lambda block: (block.size, block.address), default=None
        ) or self._grow(size, small)
        self._split(block, size, small)
        block.requested = requested
        self._count("requested_bytes", requested)
        self._count("allocated_bytes", block.size)
        self._count("allocation", 1)
        return block

    def refuse_beyond_limit(self, requested: int) -> None:
        """Raises OutOfMemoryError for what could not be had even from an empty cache."""
        if self.current("allocated_bytes") + requested > self.limit_bytes:
            self._refuse(requested)

    def free(self, block: Block) -> None:
        assert block.requested is not None, "a block was freed twice"
        self._count("requested_bytes", -block.requested)
        self._count("allocated_bytes", -block.size)
        self._count("allocation", -1)
        block.requested = None
        segment = block.segment
        # From the end, so that a merged block meets its left neighbour next.
        for left, right in zip(segment[-2::-1], segment[:0:-1], strict=True):
            if left.requested is None and right.requested is None:
                left.size += right.size
                segment.remove(right)

    def empty_cache(self) -> None:
        """Gives segments without a live block back to the driver."""
        for segment in [s for s in self._segments if len(s) == 1 and s[0].requested is None]:
            self._segments.remove(segment)
            self._count("reserved_bytes", -segment[0].size)
            self._count("segment", -1)

    def current(self, name: str, what: str = "current") -> int:
        return self._stats[name, what]

    def reset_peak(self) -> None:
        for name in _COUNTED:
            self._stats[name, "peak"] = self._stats[name, "current"]

    def stats(self) -> dict[str, int]:
        found = {f"{name}.all.{what}": value for (name, what), value in self._stats.items()}
        found["inactive_split_bytes.all.current"] = sum(map(_split_bytes, self._segments))
        return found

    def _grow(self, size: int, small: bool) -> Block:
        if small:
            taken = 2 * MIB
        elif size < 10 * MIB:
            taken = 20 * MIB
        else:
            taken = -(-size // (2 * MIB)) * 2 * MIB
        if self.current("reserved_bytes") + taken > self.limit_bytes:
            self.empty_cache()
        if self.current("reserved_bytes") + taken > self.limit_bytes:
            self._refuse(taken)
        segment: list[Block] = []
        segment.append(Block(self._next_address, taken, segment))
        self._next_address += taken
        self._segments.append(segment)
        self._count("reserved_bytes", taken)
        self._count("segment", 1)
        return segment[0]

    def _refuse(self, requested: int) -> None:
        free = self.limit_bytes - self.current("reserved_bytes")
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {requested / MIB:.2f} MiB. "
            f"GPU 0 has a total capacity of {self.limit_bytes / MIB:.2f} MiB "
            f"of which {free / MIB:.2f} MiB is free."
        )

    def _split(self, block: Block, size: int, small: bool) -> None:
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            block.size = size
            behind = Block(block.address + size, rest, block.segment)
            block.segment.insert(block.segment.index(block) + 1, behind)

    def _count(self, name: str, change: int) -> None:
        stats = self._stats
        stats[name, "current"] += change
        stats[name, "allocated" if change > 0 else "freed"] += abs(change)
        stats[name, "peak"] = max(stats[name, "peak"], stats[name, "current"])


def _split_bytes(segment: list[Block]) -> int:
    """The free parts of a segment in use, which empty_cache cannot give back."""
    free = [block.size for block in segment if block.requested is None]
    return sum(free) if len(free) < len(segment) else 0
