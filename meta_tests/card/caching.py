"""The card's memory: the allocator of the formulas, which is held against an H200's record.

It has torch's counters besides, and torch's error.
"""

from collections import Counter

import torch

from prooflops.memory.caching_allocator import CachingAllocator, OutOfMemory

MIB = 2**20
FIGURES = ("requested_bytes", "allocated_bytes", "reserved_bytes")


class CardMemory(CachingAllocator):
    """Hands out addresses and keeps the counters of `torch.cuda.memory_stats`; holds no memory."""

    def __init__(self, limit_bytes):
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes
        self.peaks = dict.fromkeys(FIGURES, 0)
        # Each figure grows, as torch counts all that was ever allocated.
        self.added = Counter()

    def allocate(self, request):
        """A block for `request` bytes; None for none. Raises torch.OutOfMemoryError."""
        before = self.current()
        try:
            block = super().allocate(request)
        except OutOfMemory:
            self._refuse(request)
        for name, value in self.current().items():
            self.peaks[name] = max(self.peaks[name], value)
            self.added[name] += max(0, value - before[name])
        return block

    def refuse_beyond_limit(self, request):
        """Raises torch.OutOfMemoryError for what could not be had even from an empty cache."""
        if self.allocated_bytes + request > self.limit_bytes:
            self._refuse(request)

    def current(self):
        return {name: getattr(self, name) for name in FIGURES}

    def reset_peak(self):
        self.peaks = self.current()

    def stats(self):
        found = {}
        for name, value in self.current().items():
            found[f"{name}.all.current"] = value
            found[f"{name}.all.peak"] = self.peaks[name]
            found[f"{name}.all.allocated"] = self.added[name]
            found[f"{name}.all.freed"] = self.added[name] - value
        blocks = self._small.blocks() + self._large.blocks()
        # The free parts of a segment in use, which empty_cache cannot give back.
        parts = [block.size for block in blocks if not block.is_whole_segment]
        return found | {"inactive_split_bytes.all.current": sum(parts)}

    def _refuse(self, request):
        free = self.limit_bytes - self.reserved_bytes
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {request / MIB:.2f} MiB. "
            f"GPU 0 has a total capacity of {self.limit_bytes / MIB:.2f} MiB "
            f"of which {free / MIB:.2f} MiB is free."
        )
