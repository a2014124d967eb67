"""Tells if other work competed for the cores of this process while something ran.

Standard library only, and cheap: it is read around every benchmark of every repo. Exact on Linux;
other systems give a part of the figures. A contended measurement is not dropped: the gate repeats
the replicate, or labels it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prooflops_gate.machine import cpu, limits
from prooflops_gate.unpatched import os, resource, time

# A measurement is contended if others take more than this. On an idle machine the system itself
# takes 1 to 3 % of a core; one other busy process takes a whole one, and a benchmark of several
# threads then runs up to 8 times slower. From 8 cores on the limit is a share of them, because a
# host's own work (a kernel thread for each core, monitoring) grows with its cores. A 32nd of them
# costs a benchmark that uses all of them 3 %.
OTHERS_CORES = 0.25
OTHERS_SHARE = 1 / 32
STEAL_SHARE = 0.05
# Cores that a CPU quota may stop, on average over the time.
STOPPED_SHARE = 0.01
SWITCHES_PER_S = 100.0
# The process's own children may have preempted it from here on.
CHILDREN_CORES = 0.01
# The kernel counts in hundredths of a second: a shorter time has no rates.
SHORTEST_S = 0.1
# Columns of /proc/stat: user, nice, system, irq, softirq; not idle, iowait.
BUSY = (0, 1, 2, 5, 6)


class Watch:
    """Watches from `start()` to `stop()`, which returns these figures.

    load: processes that ran or waited for a core, over the last minute · steal: the share of the
    machine's time that a hypervisor gave to others · cores: that this process may use ·
    others_cores: cores that other processes kept busy · involuntary_switches_per_s: how often this
    process was preempted · stopped_cores: cores that the CPU quota of a container stopped ·
    cpu_over_wall: cores used by this process, its children and the other ranks of its job on this
    host · children_cores: the same without this process · contended, and why in words.
    """

    def __init__(self, root: Path = limits.ROOT) -> None:
        self._root, self._stat = root, root / "proc/stat"
        self.start()

    def start(self) -> None:
        """Starts again."""
        self._wall, self._switches = time.perf_counter(), involuntary_switches()
        self._own, self._children = _own_s()
        self._ticks, self._stopped = _ticks(self._stat), limits.stopped_s(self._root)

    def stop(self) -> dict[str, Any]:
        """The figures since the start. May be called again."""
        wall = max(time.perf_counter() - self._wall, 1e-9)
        own, children = (
            (now - then) / wall
            for now, then in zip(_own_s(), (self._own, self._children), strict=True)
        )
        seen: dict[str, Any] = {
            "load": round(os.getloadavg()[0], 2),
            "steal": None,
            "cores": len(cpu.allowed_cores()),
            "others_cores": None,
            "involuntary_switches_per_s": None,
            "stopped_cores": None,
            "cpu_over_wall": round(own, 3),
            "children_cores": round(children, 3),
        }
        # Once in a millisecond is no rate.
        if wall >= SHORTEST_S:
            seen["involuntary_switches_per_s"] = round(
                (involuntary_switches() - self._switches) / wall, 1
            )
        stopped = limits.stopped_s(self._root)
        if stopped is not None and self._stopped is not None:
            seen["stopped_cores"] = round((stopped - self._stopped) / wall, 3)
        ticks = _ticks(self._stat)
        if ticks and self._ticks and wall >= SHORTEST_S:
            spent = [now - then for now, then in zip(ticks, self._ticks, strict=True)]
            busy = sum(spent[column] for column in BUSY) / os.sysconf("SC_CLK_TCK") / wall
            seen["steal"] = round(spent[7] / max(sum(spent), 1), 4)
            seen["others_cores"] = round(max(busy - own, 0.0), 3)
        return seen | label_contention(seen)


def label_contention(seen: dict[str, Any]) -> dict[str, Any]:
    """`contended`, and `why` in words: whether one of the four signs is above its limit.

    >>> label_contention({"others_cores": 1.0, "steal": 0.0, "involuntary_switches_per_s": 3.0})
    {'contended': True, 'why': 'other processes kept 1.00 cores busy'}
    >>> seen = {"others_cores": 1.0, "steal": 0.0, "involuntary_switches_per_s": 3.0, "cores": 128}
    >>> label_contention(seen)
    {'contended': False, 'why': ''}
    >>> label_contention({"others_cores": None, "steal": None, "involuntary_switches_per_s": None})
    {'contended': False, 'why': ''}
    """
    others, steal, switches = (
        seen[key] or 0 for key in ("others_cores", "steal", "involuntary_switches_per_s")
    )
    signs = []
    if others > max(OTHERS_CORES, OTHERS_SHARE * seen.get("cores", 0)):
        signs.append(f"other processes kept {others:.2f} cores busy")
    if steal > STEAL_SHARE:
        signs.append(f"the hypervisor took {steal:.0%} of the machine's time")
    if switches > SWITCHES_PER_S and seen.get("children_cores", 0) < CHILDREN_CORES:
        signs.append(f"was preempted {switches:.0f} times a second")
    stopped = seen.get("stopped_cores") or 0
    if stopped > STOPPED_SHARE:
        signs.append(f"the container's CPU quota stopped {stopped:.2f} cores on average")
    return {"contended": bool(signs), "why": "; ".join(signs)}


def without_own(seen: dict[str, Any], switches_per_s: float) -> dict[str, Any]:
    """The figures of a watch without the preemptions that the watched process caused itself.

    >>> seen = {"others_cores": 0.1, "steal": 0.0, "involuntary_switches_per_s": 150.0}
    >>> without_own(seen, 120.0)["contended"], without_own(seen, 20.0)["why"]
    (False, 'was preempted 130 times a second')
    """
    rate = seen.get("involuntary_switches_per_s")
    if not rate or not switches_per_s:
        return seen
    rest = {**seen, "involuntary_switches_per_s": round(max(rate - switches_per_s, 0.0), 1)}
    return rest | label_contention(rest)


def _own_s() -> tuple[float, float]:
    """CPU time of this process, its children and the other ranks of its job.

    And the same without this process.

    Neither a data loader's workers nor the other ranks are competitors.
    """
    times, process = os.times(), os.getpid()
    others = times.children_user + times.children_system + sum(map(_tree_s, _children(process)))
    if os.environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "0", "1"):
        # torchrun is the parent of all ranks on this host. With it, because a rank that has ended
        # is in its times.
        others += _tree_s(os.getppid(), without=process)
    return times.user + times.system + others, others


def _tree_s(process: int, without: int | None = None) -> float:
    """CPU time of a process, the children it has waited for, living children, and theirs.

    Zero if unknown.
    """
    # Behind the name, which may hold anything, the 12th to 15th words are utime and stime of the
    # process, then of the children it has waited for.
    words = cpu.text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    if len(words) <= 14:
        return 0.0
    living = sum(_tree_s(child, without) for child in _children(process) if child != without)
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK") + living


def _children(process: int) -> list[int]:
    """The children of a process that still live."""
    tasks = Path(f"/proc/{process}/task")
    try:
        names = os.listdir(tasks)
    except OSError:
        # Unknown here, or the process has ended.
        return []
    return [int(child) for name in names for child in cpu.text(tasks / name / "children").split()]


def involuntary_switches() -> int:
    """The number of times that this process has been preempted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _ticks(stat: Path) -> list[int] | None:
    """The first line of /proc/stat.

    Ticks of user, nice, system, idle, iowait, irq, softirq, steal.
    """
    words = cpu.text(stat).partition("\n")[0].split()[1:9]
    return (
        [int(word) for word in words] if words and all(word.isdigit() for word in words) else None
    )
