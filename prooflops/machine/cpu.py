"""What the operating system tells of the host: its CPU, the cores this process may use, its memory.

Standard library only: the installed part of the plugin asks here too.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def name() -> str:
    """The product name of the CPU."""
    return info("model name") or platform.processor() or platform.machine()


def info(key: str) -> str:
    """The first line of /proc/cpuinfo with this key; empty where there is none."""
    lines = (line.partition(":") for line in text(CPUINFO).splitlines())
    return next((value.strip() for found, _, value in lines if found.strip() == key), "")


def allowed_cores() -> list[int]:
    """The cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def memory_bytes() -> int | None:
    """The memory of the host; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def free_bytes() -> int | None:
    """The memory that new tensors can take: what Linux calls available, within this container's limit; else None."""
    available = next((line.split()[1] for line in text(MEMINFO).splitlines() if line.startswith("MemAvailable:")), "")
    limit = text(CGROUP / "memory.max")
    held = next(
        (line.split()[1] for line in text(CGROUP / "memory.stat").splitlines() if line.startswith("anon ")), "0"
    )
    left = [int(available) * 1024] if available else []
    left += [max(int(limit) - int(held), 0)] if limit.isdigit() else []
    return min(left, default=memory_bytes())


def text(file: Path) -> str:
    """What is in a file of the system, without the blanks around it; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # absent, forbidden, or of a process that has ended meanwhile
        return ""
