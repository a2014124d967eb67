"""Readings of the host from its operating system: the CPU, its memory, its caches and clocks.

Standard library only: the installed part of the plugin and the gate's processes read here too. A
file that is absent or forbidden is an unknown figure, never an error.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from prooflops_gate.unpatched import io, os

CPUINFO = Path("/proc/cpuinfo")
SYSTEM = Path("/sys/devices/system/cpu")
# Reading one clock takes 10 ms on some kernels.
SAMPLED_CORES = 8


def text(file: Path) -> str:
    """The text of a system file, stripped; empty if unreadable."""
    try:
        with io.open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        # Absent, forbidden, or of a process that has ended meanwhile.
        return ""


def name() -> str:
    """The product name of the CPU."""
    return info("model name") or platform.processor() or platform.machine()


def info(key: str) -> str:
    """The first line of /proc/cpuinfo with this key; empty if there is none."""
    lines = (line.partition(":") for line in text(CPUINFO).splitlines())
    return next((value.strip() for found, _, value in lines if found.strip() == key), "")


def allowed_cores() -> list[int]:
    """The cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def memory_bytes() -> int | None:
    """The memory of the host; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def figures(file: Path) -> dict[str, int]:
    """The numbers by their keys in a file of lines `key number`, or `key number unit`."""
    rows = (line.split() for line in text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def state() -> dict[str, Any]:
    """`affinity`, `governor`, mean `clock_mhz` of the allowed cores, and `totals`."""
    cores = allowed_cores()
    sampled = cores[:: max(1, len(cores) // SAMPLED_CORES)][:SAMPLED_CORES]
    folders = [SYSTEM / f"cpu{core}" / "cpufreq" for core in sampled]
    clocks = [
        int(khz) / 1e3 for folder in folders if (khz := text(folder / "scaling_cur_freq")).isdigit()
    ]
    clocks = clocks or _nominal_clocks_mhz(cores)
    return {
        "affinity": ranges(cores),
        "governor": ", ".join(
            sorted({text(folder / "scaling_governor") for folder in folders} - {""})
        )
        or None,
        "clock_mhz": round(sum(clocks) / len(clocks), 1) if clocks else None,
        "totals": throttle_totals(sampled),
    }


def throttle_totals(cores: Sequence[int]) -> dict[str, float]:
    """Counters that grow while heat slows an Intel CPU."""
    hot = [
        text(SYSTEM / f"cpu{core}" / "thermal_throttle" / "core_throttle_count") for core in cores
    ]
    counts = [int(count) for count in hot if count.isdigit()]
    return {"temperature": sum(counts)} if counts else {}


def _nominal_clocks_mhz(cores: Collection[int]) -> list[float]:
    """The cores' clocks in /proc/cpuinfo; in a virtual machine that is the nominal one."""
    found, core = [], -1
    for line in text(CPUINFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "processor" and value.strip().isdigit():
            core = int(value)
        elif key.strip() == "cpu MHz" and core in cores:
            found.append(float(value))
    return found


def highest_clock_hz() -> float | None:
    """The highest clock that the system allows; None if unknown."""
    kilohertz = text(SYSTEM / "cpu0" / "cpufreq" / "cpuinfo_max_freq")
    return float(kilohertz) * 1e3 if kilohertz.isdigit() else None


def cache_bytes(cores: Collection[int]) -> dict[str, int]:
    """Bytes of data cache under `cores`, by level, such as "L1".

    A cache that several cores share counts once.
    """
    # A key is the level and the group of cores that share the cache.
    found: dict[tuple[str, str], int] = {}
    for core in sorted(cores):
        for folder in sorted((SYSTEM / f"cpu{core}" / "cache").glob("index*")):
            level, kind, sharing, size = (
                text(folder / key) for key in ("level", "type", "shared_cpu_list", "size")
            )
            if kind != "Instruction" and (known := bytes_in(size)):
                found[f"L{level}", sharing] = known
    sums: dict[str, int] = {}
    for (level, _), known in sorted(found.items()):
        sums[level] = sums.get(level, 0) + known
    return sums


def bytes_in(size: str) -> int | None:
    """The bytes of a size as Linux writes it; None for anything else.

    >>> bytes_in("32768K"), bytes_in("16M"), bytes_in("512"), bytes_in("")
    (33554432, 16777216, 512, None)
    """
    digits = size.rstrip("KMG")
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[len(digits) :], 1)
    return int(digits) * unit if digits.isdigit() else None


def ranges(cores: Sequence[int]) -> str:
    """Core numbers as Linux writes them.

    >>> ranges([0, 1, 2, 3, 8, 10, 11])
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
