"""The cores and the memory that this process may use, within its control groups.

On Linux a process obeys its own control group and each ancestor of it, in version 1, version 2, or
both. Containers, systemd and Slurm set their limits there. The functions read the files under
`root`; a file that is absent or forbidden is an unknown figure, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from prooflops_gate.machine import cpu

ROOT = Path("/")
MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
# The kernel drops these pages before it refuses memory. Version 1 counts those of a group's
# children only under a name with "total_".
RECLAIMABLE = ("active_file", "inactive_file")
# Seconds per unit of a group's time without quota, in version 2 and in version 1.
STOPPED_S = {"throttled_usec": 1e-6, "throttled_time": 1e-9}


def memory_bytes(root: Path = ROOT) -> int | None:
    """The memory that this process and the rest of its control group may use; None if unknown."""
    host = cpu.memory_bytes()
    limits = [limit for limit, _ in _memory(root)]
    return min([*limits, *([host] if host else [])], default=None)


def free_bytes(root: Path = ROOT) -> int | None:
    """The memory left for new tensors: Linux's MemAvailable within the limits, else `memory_bytes`.

    Pages of files count as free.
    """
    left = [max(limit - used, 0) for limit, used in _memory(root)]
    available = cpu.figures(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        left.append(available * 1024)
    return min(left, default=memory_bytes(root))


def usable_cores(root: Path = ROOT) -> int:
    """The cores that this process can keep busy: those it may run on, within its CPU quota."""
    allowed = len(cpu.allowed_cores())
    return max(1, min([allowed, *(int(cores) for cores in _quotas(root))]))


def stopped_s(root: Path = ROOT) -> float | None:
    """Seconds that CPU quotas stopped cores of this process's groups so far; None if unknown."""
    found = []
    for folder in _groups("cpu", root):
        stat = cpu.figures(folder / "cpu.stat")
        found += [stat[key] * unit_s for key, unit_s in STOPPED_S.items() if key in stat]
    return sum(found) if found else None


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Each memory limit, and the bytes that its group cannot give back."""
    for folder in _groups("memory", root):
        stat = cpu.figures(folder / "memory.stat")
        used = sum(_number(folder / name) or 0 for name in MEMORY_USED)
        used -= sum(stat.get(f"total_{key}", stat.get(key, 0)) for key in RECLAIMABLE)
        # The last one includes ancestors that a container does not see.
        limits = [_number(folder / name) for name in MEMORY_LIMITS]
        for limit in (*limits, stat.get("hierarchical_memory_limit")):
            if limit is not None:
                yield limit, max(used, 0)


def _quotas(root: Path) -> Iterator[float]:
    """Each CPU quota, in cores."""
    for folder in _groups("cpu", root):
        words = cpu.text(folder / "cpu.max").split()
        words = words or [cpu.text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        # No quota is "max" in version 2 and -1 in version 1.
        if len(words) == 2 and all(word.isdigit() for word in words):
            quota, period = map(int, words)
            yield quota / max(period, 1)


def _groups(controller: str, root: Path) -> list[Path]:
    """The folders of this process's control group and its ancestors, as far as they are mounted."""
    own: dict[str, str] = {}
    for line in cpu.text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    found = []
    for line in cpu.text(root / "proc/self/mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        key = "" if kind == "cgroup2" else controller
        is_of_controller = kind == "cgroup2" or (kind == "cgroup" and key in options.split(","))
        if is_of_controller and key in own:
            top, mounted = map(_unescaped, mount.split()[3:5])
            inside = PurePosixPath(own[key])
            # A container may see its group's path on the host, or one above its own root.
            outside = ".." in inside.parts or not inside.is_relative_to(top)
            inside = PurePosixPath() if outside else inside.relative_to(top)
            place = root / mounted.lstrip("/")
            found += [place / part for part in (inside, *inside.parents)]
    return found


def _number(file: Path) -> int | None:
    """The number that a file consists of; None for any other text, such as "max"."""
    text = cpu.text(file)
    return int(text) if text.isdigit() else None


def _unescaped(path: str) -> str:
    """A path of mountinfo, which writes spaces and backslashes as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), path)
