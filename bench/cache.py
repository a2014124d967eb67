"""The caches of the device, and how they are emptied between the rounds of a cold benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from accounting import measured
from accounting.measured import alternating, median_interval

LEAST_FLUSH_BYTES = 256 * 2**20  # of an accelerator
LEAST_HIP_FLUSH_BYTES = 512 * 2**20  # AMD's largest have a last level of 256 MiB that torch does not tell of
UNKNOWN_CACHE_BYTES = 64 * 2**20  # assumed of a CPU whose caches nobody names
# In a container the size the system names may be that of the whole host: a flush may cost no more than this.
LARGEST_CPU_FLUSH_BYTES = 2**30
LARGEST_SHARE_OF_MEMORY = 1 / 16
SYSTEM = Path("/sys/devices/system/cpu")


def levels(device: torch.device) -> dict[str, int]:
    """Bytes of the data caches that the device's work can use, by level: `{"L1": ..., "L2": ..., "L3": ...}`.

    A CPU: the sum over the distinct caches of the cores this process may run on, as the system names them. In a virtual
    machine or a container that may be the host's. Empty where nothing is known.
    """
    if device.type == "cuda":
        size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        return {"L2": size} if size else {}
    if device.type != "cpu":
        return {}
    return dict(_apple_caches() if sys.platform == "darwin" else linux_caches(SYSTEM, allowed_cpus()))


def last_level_bytes(device: torch.device) -> int | None:
    """Bytes of the largest cache between the device's cores and its memory; None where nobody names it."""
    return max(levels(device).values(), default=0) or None


def allowed_cpus() -> set[int]:
    """The cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return set(affinity(0)) if affinity else set(range(os.cpu_count() or 1))


def linux_caches(system: Path, cpus: set[int]) -> dict[str, int]:
    """Bytes of each level of data cache under `cpus`, from the files Linux keeps of each core's caches."""
    found: dict[tuple[str, str], int] = {}  # of one level and one group of cores that share it
    for cpu in sorted(cpus):
        for folder in sorted((system / f"cpu{cpu}" / "cache").glob("index*")):
            try:
                level, kind, sharing, size = (
                    (folder / name).read_text().strip() for name in ("level", "type", "shared_cpu_list", "size")
                )
                if kind != "Instruction":
                    found[f"L{level}", sharing] = _bytes_of(size)
            except (OSError, ValueError):  # a file that is not there, or a size nobody can read: not known
                continue
    sums: dict[str, int] = {}
    for (level, _), size in sorted(found.items()):
        sums[level] = sums.get(level, 0) + size
    return sums


def _bytes_of(size: str) -> int:
    """
    >>> _bytes_of("32768K"), _bytes_of("16M"), _bytes_of("512")
    (33554432, 16777216, 512)
    """
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:])
    return int(size[:-1]) * unit if unit else int(size)


@cache
def _apple_caches() -> Mapping[str, int]:
    """Unrun: the caches of the fast cores, by sysctl."""
    sizes = {}
    for level, key in (("L1", "hw.perflevel0.l1dcachesize"), ("L2", "hw.perflevel0.l2cachesize")):
        asked = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip().isdigit():
            sizes[level] = int(asked.stdout)
    return sizes


def flush_bytes(device: torch.device, memory_bytes: int | None = None) -> tuple[int, bool]:
    """How large a buffer empties the caches of `device`: twice the last level; and whether it had to be cut short.

    At least 256 MiB on an accelerator. On a CPU at most 1 GiB and a sixteenth of the memory.
    """
    wanted = 2 * (last_level_bytes(device) or UNKNOWN_CACHE_BYTES)
    if device.type != "cpu":
        return max(wanted, LEAST_HIP_FLUSH_BYTES if torch.version.hip else LEAST_FLUSH_BYTES), False
    limit = LARGEST_CPU_FLUSH_BYTES
    if memory_bytes or (memory_bytes := host_memory_bytes()):
        limit = min(limit, int(memory_bytes * LARGEST_SHARE_OF_MEMORY))
    return min(wanted, limit), wanted > limit


def host_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


@dataclass(eq=False)
class Flush:
    """Empties the caches of the device when called, in the current stream, and waits for nothing.

    Every line of the buffer is read, changed and written: a plain fill of a large buffer may go around a CPU's caches
    (glibc's and the compilers' streaming stores) and would leave them as they are.
    """

    buffer: torch.Tensor
    capped: bool
    level: int | None = None
    calls: int = 0

    def __call__(self) -> None:
        self.buffer.add_(1)
        self.calls += 1

    @property
    def bytes(self) -> int:
        return self.buffer.nbytes


@cache
def flush_of(device: torch.device) -> Flush:
    """The flush of this device: one buffer serves the whole run."""
    size, capped = flush_bytes(device)
    return Flush(torch.zeros(size // 4, dtype=torch.int32, device=device), capped, last_level_bytes(device))


# ---- is it cold? -------------------------------------------------------------------------------------------------

CHECKED_BYTES = 256 * 2**10  # read on a CPU whose second level nobody names
CHECKED_PAIRS = 15
# How many times longer the read takes from memory at least. A CPU's second level is several times as fast as that,
# and noise reaches 1.4; a GPU's last level about twice as fast, less the launch.
LEAST_RATIO = {"cpu": 1.5}
LEAST_RATIO_OF_OTHERS = 1.05


@dataclass(frozen=True)
class FlushCheck:
    """Time of a read after the flush over that of the same read from a warm cache: median, and its 99 % interval."""

    ratio: float
    low: float
    high: float
    read_bytes: int
    least: float  # what a flush should make of it at least

    @property
    def still_hot(self) -> bool:
        """The flush makes no difference, and the noise of the machine doesn't hide one."""
        return self.high < self.least

    def __str__(self) -> str:
        return f"{self.ratio:.2f} times ({self.low:.2f} to {self.high:.2f})"


@cache
def check_flush_worked(flush: Callable[[], None], device: torch.device) -> FlushCheck | None:
    """Reads what half fills a cache, warm and after the flush, in pairs; None where the device names no cache.

    A CPU: half of one core's second level, on one thread. A GPU: half of its last level.
    """
    known = levels(device)
    if not known:
        return None
    size = known["L2"] // 2 if "L2" in known else CHECKED_BYTES
    if device.type == "cpu":
        size //= len(allowed_cpus())
    data = torch.randn(max(size, 2**14) // 4, device=device)
    timer = measured.clock(device)

    def read_s(reads_before: int) -> float:
        """Both reads follow a flush, so that an accelerator is busy while either is launched."""
        flush()  # by all threads: a core's own caches are emptied by its own part of it
        with measured.one_thread():  # two that wait for one another drown the difference on a busy machine
            for _ in range(reads_before):
                data.sum()
            start = timer()
            data.sum()
            return float(timer() - start)

    read_s(reads_before=2)  # what is lazy happens here
    pairs = islice(alternating(lambda: read_s(reads_before=2), lambda: read_s(reads_before=0)), CHECKED_PAIRS)
    ratios = [cold / max(hot, 1e-9) for hot, cold in pairs]
    interval = median_interval(ratios, 0.99)
    assert interval is not None, "15 pairs have an interval of 99 %"
    least = LEAST_RATIO.get(device.type, LEAST_RATIO_OF_OTHERS)
    return FlushCheck(median(ratios), *interval, read_bytes=data.nbytes, least=least)
