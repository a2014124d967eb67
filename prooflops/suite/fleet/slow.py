"""Names machines that are slower than the others of their kind.

A machine's slowdown is the median over its benchmarks, each against the median machine. A slow
machine is a suspect until a second run confirms it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun, Work, collected

# A benchmark, and the work that it did.
BenchmarkWork = tuple[str, Work]

# Smaller slowdowns are of no practical interest.
LEAST_SLOWDOWN = 0.03
MOST_DEVIATIONS = 5.0
# Any one of three machines can be as far from the two others by chance.
FEWEST_MACHINES = 4
SUSPECT, CONFIRMED, ONE_OFF = "suspect", "bad", "one-off"


@dataclass(frozen=True)
class SlowMachine:
    """A machine that is slower than the others."""

    node: str
    slowdown: float
    state: str


@dataclass(frozen=True)
class Fleet:
    """The machines of one kind, and the least slowdown that is named; None for too few."""

    kind: str
    machines: Sequence[str]
    limit: float | None
    slow: Sequence[SlowMachine] = ()


def fleets(runs: Sequence[NodeRun]) -> list[Fleet]:
    """One fleet per kind of device; `runs` are oldest first."""
    kinds: dict[str, list[NodeRun]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    return [fleet(kind, group) for kind, group in kinds.items()]


def fleet(kind: str, runs: Sequence[NodeRun]) -> Fleet:
    """Names machines at least 3 % slower and beyond 5 median absolute deviations.

    The first run of each machine is compared; its newest one confirms a slowdown, or does not.
    """
    newest = {run.node: run for run in runs}
    first = {run.node: run for run in reversed(runs)}
    times = collected(_times_of_work(run) for run in first.values())
    middle = {key: median(group) for key, group in times.items()}
    found = {node: median_slowdown(run, middle) for node, run in first.items()}
    known = {node: slowdown for node, slowdown in found.items() if slowdown is not None}
    if len(known) < FEWEST_MACHINES:
        return Fleet(kind, list(first), None)
    centre = median(known.values())
    deviation = median(abs(slowdown - centre) for slowdown in known.values())
    limit = max(LEAST_SLOWDOWN, MOST_DEVIATIONS * deviation)
    slow = []
    for node, slowdown in known.items():
        if slowdown - centre >= limit:
            state = SUSPECT
            if newest[node] is not first[node]:
                again = median_slowdown(newest[node], middle) or 0.0
                state = CONFIRMED if again - centre >= LEAST_SLOWDOWN else ONE_OFF
            slow.append(SlowMachine(node, slowdown - centre, state))
    slow.sort(key=lambda machine: machine.slowdown, reverse=True)
    return Fleet(kind, list(first), limit, slow)


def _times_of_work(run: NodeRun) -> dict[BenchmarkWork, float]:
    """The times by benchmark and work, as arrays fit the free memory of their machine."""
    return {(name, each.work): each.time_s for name, each in run.timings.items()}


def median_slowdown(run: NodeRun, middle: Mapping[BenchmarkWork, float]) -> float | None:
    """The slowdown of the machine as a whole; None if it ran less than half of the benchmarks."""
    times = _times_of_work(run)
    both = middle.keys() & times.keys()
    slowdowns = [times[key] / middle[key] - 1 for key in both]
    return (
        median(slowdowns) if both and 2 * len(both) >= len({name for name, _ in middle}) else None
    )
