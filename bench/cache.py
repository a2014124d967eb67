"""Empties the caches between the rounds of a cold benchmark, and checks that this worked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Protocol

import torch

from prooflops import timing
from prooflops.timing import alternating, median_interval

LEAST_DEVICE_FLUSH_BYTES = 256 * 2**20
# AMD's largest have a last level of 256 MiB that torch does not report.
LEAST_HIP_FLUSH_BYTES = 512 * 2**20
# Assumed of a CPU whose caches nobody names.
UNKNOWN_CACHE_BYTES = 64 * 2**20
# In a container the system may name the cache size of the whole host: a flush may cost no more
# than this.
LARGEST_CPU_FLUSH_BYTES = 2**30
LARGEST_SHARE_OF_MEMORY = 1 / 16


class Caches(Protocol):
    """The device's caches as the fixture `caches` has them, see `prooflops.machine.caches`."""

    # Bytes by level: shared by all cores, and of one core.
    levels: Mapping[str, int]
    core_levels: Mapping[str, int]
    cores: int
    # The host's.
    memory_bytes: int | None
    last_level_bytes: int | None


def flush_of(device: torch.device, caches: Caches, room_bytes: float = math.inf) -> Flush:
    """The flush of a device's caches: a buffer of twice the last level, or of its limit.

    At least 256 MiB on an accelerator, but at most a quarter of `room_bytes`. On a CPU at most 1
    GiB and a sixteenth of the memory.
    """
    wanted, limit = 2 * (caches.last_level_bytes or UNKNOWN_CACHE_BYTES), room_bytes / 4
    if device.type != "cpu":
        wanted = max(
            wanted, LEAST_HIP_FLUSH_BYTES if torch.version.hip else LEAST_DEVICE_FLUSH_BYTES
        )
    else:
        limit = min(
            LARGEST_CPU_FLUSH_BYTES, (caches.memory_bytes or math.inf) * LARGEST_SHARE_OF_MEMORY
        )
    size = int(min(wanted, limit))
    return Flush(torch.zeros(size // 4, dtype=torch.int32, device=device), caches)


@dataclass(eq=False)
class Flush:
    """Empties the caches of the device when called, in the current stream, and waits for nothing.

    Every line of the buffer is read, changed and written. A plain fill of a large buffer may bypass
    a CPU's caches by the streaming stores of glibc and compilers, and would not empty them.
    """

    buffer: torch.Tensor
    caches: Caches
    calls: int = 0

    def __call__(self) -> None:
        self.buffer.add_(1)
        self.calls += 1

    def assert_works(self) -> None:
        """Raises AssertionError if a read takes no longer after a flush."""
        __tracebackhide__ = True
        seen = self.check
        assert seen is None or not seen.still_hot, (
            f"a flush of {self.buffer.nbytes} bytes left the caches hot: a read after it takes "
            f"{seen} as long as from a warm cache"
        )

    @cached_property
    def check(self) -> FlushCheck | None:
        """The measured effect of the flush on a read; None where the device names no cache."""
        return check_flush_worked(self, self.buffer.device, self.caches)


# Read on a CPU whose second level nobody names.
CHECKED_BYTES = 256 * 2**10
CHECKED_PAIRS = 15
# A read from memory takes at least this many times longer. A CPU's second level is several times
# as fast as that, and noise reaches 1.4; a GPU's last level about twice as fast, less the launch.
LEAST_RATIO = {"cpu": 1.5}
LEAST_RATIO_OF_OTHERS = 1.05


@dataclass(frozen=True)
class FlushCheck:
    """The time of a read after the flush, as a multiple of that from a warm cache.

    The ratio is the median, `low` and `high` its 99 % interval.
    """

    ratio: float
    low: float
    high: float
    read_bytes: int
    # The smallest ratio that a flush should reach.
    least: float

    @property
    def still_hot(self) -> bool:
        """The flush makes no difference, and the noise of the machine doesn't hide one."""
        return self.high < self.least

    def __str__(self) -> str:
        return f"{self.ratio:.2f} times ({self.low:.2f} to {self.high:.2f})"


def check_flush_worked(flush: Flush, device: torch.device, caches: Caches) -> FlushCheck | None:
    """Reads half a cache, warm and after the flush, in pairs; None where the device names no cache.

    A CPU: half of one core's second level, on one thread. A GPU: half of its last level; of AMD's,
    torch names another.
    """
    if not caches.levels or (device.type == "cuda" and torch.version.hip):
        return None
    size = caches.levels["L2"] // 2 if "L2" in caches.levels else CHECKED_BYTES
    if device.type == "cpu":
        size //= caches.cores
    data = torch.randn(max(size, 2**14) // 4, device=device)
    timer = timing.clock(device)

    def read_s(reads_before: int) -> float:
        """Both reads follow a flush, so an accelerator is busy while each is launched."""
        # All threads take part: a core's own caches are emptied by its own part.
        flush()
        # Two that wait for one another drown the difference on a busy machine.
        with timing.one_thread():
            for _ in range(reads_before):
                data.sum()
            start = timer()
            data.sum()
            return float(timer() - start)

    # Untimed: imports and allocates.
    read_s(reads_before=2)
    pairs = islice(
        alternating(lambda: read_s(reads_before=2), lambda: read_s(reads_before=0)), CHECKED_PAIRS
    )
    ratios = [cold / max(hot, 1e-9) for hot, cold in pairs]
    interval = median_interval(ratios, 0.99)
    assert interval is not None, "15 pairs have an interval of 99 %"
    least = LEAST_RATIO.get(device.type, LEAST_RATIO_OF_OTHERS)
    return FlushCheck(median(ratios), *interval, read_bytes=data.nbytes, least=least)
