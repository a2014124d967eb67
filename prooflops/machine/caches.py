"""The data caches of a device, and the memory behind them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from prooflops.machine import cpu

SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Caches:
    """Bytes of data cache by level, `{"L1": ..., "L2": ..., "L3": ...}`; empty where nothing is known.

    `levels` is what all of the device's work can use; `core_levels` what one core of a CPU can. In a virtual machine or
    a container both may be the host's.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    core_levels: Mapping[str, int] = field(default_factory=dict)
    cores: int = 1  # of a CPU, that this process may use
    memory_bytes: int | None = None  # of the host

    @property
    def last_level_bytes(self) -> int | None:
        """Bytes of the largest cache between the device's cores and its memory; None where nobody names it."""
        return max(self.levels.values(), default=0) or None


def caches_of(device: torch.device) -> Caches:
    """The caches of `device`. A CPU: the distinct caches of the cores this process may run on, as the system says."""
    levels: Mapping[str, int] = {}
    if device.type == "cuda":
        size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        levels = {"L2": size} if size else {}
    elif device.type == "cpu" and sys.platform == "darwin":
        levels = _apple_caches()
    elif device.type == "cpu":
        cores = cpu.allowed_cores()
        return Caches(linux_caches(SYSTEM, cores), linux_caches(SYSTEM, cores[:1]), len(cores), cpu.memory_bytes())
    return Caches(levels, levels, len(cpu.allowed_cores()), cpu.memory_bytes())


def linux_caches(system: Path, cores: Collection[int]) -> dict[str, int]:
    """Bytes of each level of data cache under `cores`, from the files Linux keeps of each core's caches."""
    found: dict[tuple[str, str], int] = {}  # of one level and one group of cores that share it
    for core in sorted(cores):
        for folder in sorted((system / f"cpu{core}" / "cache").glob("index*")):
            level, kind, sharing, size = (
                cpu.text(folder / name) for name in ("level", "type", "shared_cpu_list", "size")
            )
            if kind != "Instruction" and (known := bytes_in(size)):
                found[f"L{level}", sharing] = known
    sums: dict[str, int] = {}
    for (level, _), known in sorted(found.items()):
        sums[level] = sums.get(level, 0) + known
    return sums


def bytes_in(size: str) -> int | None:
    """The bytes of a size as Linux writes it; None where it is none.

    >>> bytes_in("32768K"), bytes_in("16M"), bytes_in("512"), bytes_in("")
    (33554432, 16777216, 512, None)
    """
    digits = size.rstrip("KMG")
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[len(digits) :], 1)
    return int(digits) * unit if digits.isdigit() else None


def _apple_caches() -> Mapping[str, int]:
    """Unrun: the caches of the fast cores, by sysctl."""
    sizes = {}
    for level, key in (("L1", "hw.perflevel0.l1dcachesize"), ("L2", "hw.perflevel0.l2cachesize")):
        asked = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip().isdigit():
            sizes[level] = int(asked.stdout)
    return sizes
