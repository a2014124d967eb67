"""Names machines that are slower than the others of their kind.

A machine's slowdown is the median over its benchmarks, each against the median machine. A slow
machine is a suspect until a second run confirms it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun, Timing

# A benchmark, and the unit of its figure.
Figure = tuple[str, str]

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
    """Names machines that are slower by at least 3 % and 5 median absolute deviations.

    The first run of each machine is compared; its newest one confirms a slowdown, or does not.
    """
    newest = {run.node: run for run in runs}
    first = {run.node: run for run in reversed(runs)}
    figures: defaultdict[Figure, list[float]] = defaultdict(list)
    for run in first.values():
        for name, each in run.timings.items():
            figures[name, each.unit].append(each.value)
    middle = {key: median(group) for key, group in figures.items()}
    found = {node: median_slowdown(run, middle) for node, run in first.items()}
    known = {node: slowdown for node, slowdown in found.items() if slowdown is not None}
    if len(known) < FEWEST_MACHINES:
        return Fleet(kind, list(first), None)
    deviation = median(map(abs, known.values()))
    limit = max(LEAST_SLOWDOWN, MOST_DEVIATIONS * deviation)
    slow = []
    for node, slowdown in known.items():
        if slowdown >= limit:
            state = SUSPECT
            if newest[node] is not first[node]:
                again = median_slowdown(newest[node], middle) or 0.0
                state = CONFIRMED if again >= LEAST_SLOWDOWN else ONE_OFF
            slow.append(SlowMachine(node, slowdown, state))
    slow.sort(key=lambda machine: machine.slowdown, reverse=True)
    return Fleet(kind, list(first), limit, slow)


def median_slowdown(run: NodeRun, middle: Mapping[Figure, float]) -> float | None:
    """The slowdown of the machine as a whole; None if it ran less than half of the benchmarks."""
    slowdowns = [
        timing.slowdown(Timing(middle[name, timing.unit], timing.unit))
        for name, timing in run.timings.items()
        if (name, timing.unit) in middle
    ]
    known = [slowdown - 1 for slowdown in slowdowns if slowdown is not None]
    return median(known) if known and 2 * len(known) >= len({name for name, _ in middle}) else None
