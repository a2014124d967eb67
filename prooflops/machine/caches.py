"""The data caches of a device, and the memory behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from prooflops_gate.machine import cpu, limits


@dataclass(frozen=True)
class Caches:
    """Bytes of data cache by level, `{"L1": ..., "L2": ..., "L3": ...}`; empty if unknown.

    `levels` serve the whole device, `core_levels` a single CPU core. In a virtual machine or a
    container both may be those of the host.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    core_levels: Mapping[str, int] = field(default_factory=dict)
    # A CPU's, that this process may use.
    cores: int = 1
    # The host's, within the limits of this process.
    memory_bytes: int | None = None

    @property
    def last_level_bytes(self) -> int | None:
        """Bytes of the largest cache between the device's cores and its memory; None if unknown."""
        return max(self.levels.values(), default=0) or None


def caches_of(device: torch.device) -> Caches:
    """The caches of `device`; of a CPU those under the cores that this process may use."""
    cores = cpu.allowed_cores()
    levels: Mapping[str, int] = {}
    if device.type == "cuda":
        size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        levels = {"L2": size} if size else {}
    elif device.type == "cpu":
        return Caches(
            cpu.cache_bytes(cores), cpu.cache_bytes(cores[:1]), len(cores), limits.memory_bytes()
        )
    return Caches(levels, levels, len(cores), limits.memory_bytes())
