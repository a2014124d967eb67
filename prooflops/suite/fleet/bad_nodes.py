"""Names slow machines of one kind, and states the smallest slowdown it would name.

In a healthy fleet, the chance that any machine is named is 5 %. Half of it is spent on the median
deviation over all benchmarks, half on single benchmarks; see `prooflops_gate.statistics.outliers`.
A named machine is a suspect until a second run confirms it, ideally beside a good machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from prooflops.suite.fleet.nodes import NodeRun
from prooflops_gate.statistics.outliers import (
    FEWEST,
    LARGEST_SIMULATED,
    LEAST_SHARE,
    LEVEL,
    TAIL,
    UNKNOWN_FREEDOM,
    Deviation,
    deviations_at,
    distance_scale,
    distances_and_scale,
    scores,
    tail_freedom,
)

OVERALL = ""  # stands for all benchmarks together
# Low for a t distribution, as one figure per machine shows little of the tail.
FREEDOM_OF_MANY = 3.0
TOO_FAR = 0.10  # above this smallest detectable slowdown, the answer is "cannot tell"
SUSPECT, CONFIRMED, ONE_OFF = "suspect", "bad", "one-off"

# Keys are the benchmark, then the node.
Times = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Named:
    """A machine that is slower than the others."""

    node: str
    # Keys are benchmarks; OVERALL stands for the machine as a whole.
    slower: Mapping[str, Deviation]
    compared: int  # benchmarks
    state: str
    beside: str  # good machines for the second run, or those it used


@dataclass(frozen=True)
class Fleet:
    """The machines of one kind."""

    kind: str
    nodes: Sequence[str]
    named: Sequence[Named]
    # The smallest share at which one would be named; OVERALL for machines as a whole.
    least: Mapping[str, float]

    @property
    def limits(self) -> str:
        """The smallest slowdown this comparison can detect."""
        if len(self.nodes) < FEWEST:
            return (f"cannot tell: {len(self.nodes)} of this kind, and with fewer than {FEWEST} "
                    "nobody can say which is the odd one")  # fmt: skip
        if OVERALL not in self.least:
            return "cannot tell: too few benchmarks were run on enough of them"
        overall = self.least[OVERALL]
        single = [share for name, share in self.least.items() if name != OVERALL]
        seen = sum(share <= TOO_FAR for share in single)
        whole = f"one that is {overall:.1%} slower overall would be named"
        if overall > TOO_FAR:
            whole = f"cannot tell about a machine less than {overall:.0%} slower overall"
        return f"{whole}; in {seen} of {len(single)} single benchmarks one {TOO_FAR:.0%} slower"


def fleets(runs: Sequence[NodeRun]) -> list[Fleet]:
    """One fleet per kind of device; `runs` are oldest first."""
    kinds: dict[str, list[NodeRun]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    return [fleet(kind, group) for kind, group in kinds.items()]


def fleet(kind: str, runs: Sequence[NodeRun]) -> Fleet:
    first: dict[str, NodeRun] = {}
    again: dict[str, NodeRun] = {}
    for run in runs:
        if run.node in first:
            again[run.node] = run
        else:
            first[run.node] = run
    times = by_benchmark(first)
    found = deviations_of(times)
    slower: dict[str, dict[str, Deviation]] = {}
    for name, row in found.items():
        for node, each in row.items():
            if each.outlier and each.share > 0:
                slower.setdefault(node, {})[name] = each
    healthy = [node for node in first if node not in slower]
    overall = found.get(OVERALL, {})
    best = min(
        healthy,
        key=lambda node: abs(overall[node].share) if node in overall else math.inf,
        default="",
    )
    named = []
    for node, deviations in slower.items():
        compared = sum(node in row for name, row in found.items() if name != OVERALL)
        state, beside = second_try(node, slower, times, again) or (SUSPECT, best)
        named.append(Named(node, deviations, compared, state, beside))
    named.sort(key=worst_share, reverse=True)
    least = {
        name: next(each.least for each in row.values() if each.share >= 0)
        for name, row in found.items()
    }
    return Fleet(kind, list(first), named, least)


def worst_share(named: Named) -> float:
    """The largest of a machine's slowdowns."""
    return max(each.share for each in named.slower.values())


def by_benchmark(runs: Mapping[str, NodeRun]) -> Times:
    rows: dict[str, dict[str, float]] = {}
    for node, run in runs.items():
        for name, time_s in run.times_s.items():
            rows.setdefault(name, {})[node] = time_s
    return rows


def deviations_of(times: Times) -> dict[str, dict[str, Deviation]]:
    """Each machine's deviation per benchmark that enough ran, and over all under OVERALL."""
    nodes = {name: list(row) for name, row in times.items() if len(row) >= FEWEST}
    if not nodes:
        return {}
    measured = {name: distances_and_scale(list(times[name].values())) for name in nodes}
    overall = overall_distances(
        nodes, {name: distances for name, (distances, _) in measured.items()}
    )
    level = LEVEL / (2 * len(nodes))
    freedom = freedom_of_benchmarks(nodes, measured, overall)
    found = {
        name: dict(zip(nodes[name], deviations_at(distances, scale, level, freedom), strict=True))
        for name, (distances, scale) in measured.items()
    }
    if len(overall) >= FEWEST:
        distances, scale = list(overall.values()), distance_scale(list(overall.values()))
        freedom = UNKNOWN_FREEDOM if len(distances) <= LARGEST_SIMULATED else FREEDOM_OF_MANY
        found[OVERALL] = dict(
            zip(overall, deviations_at(distances, scale, LEVEL / 2, freedom), strict=True)
        )
    return found


def freedom_of_benchmarks(
    nodes: Mapping[str, Sequence[str]],
    measured: Mapping[str, tuple[Sequence[float], float]],
    overall: Mapping[str, float],
) -> float:
    """Degrees of freedom that fit the tails of all benchmarks together; the heavier tail decides.

    The slow tail excludes the slowest tenth of the machines, which may be faulty.
    """
    slowest = (
        set(sorted(overall, key=lambda node: overall[node])[-(len(overall) // 10) :])
        if len(overall) > 9
        else ()
    )
    fast, slow = [], []
    for name, (distances, scale) in measured.items():
        z = scores(distances, scale)
        fast += z
        slow += [-each for node, each in zip(nodes[name], z, strict=True) if node not in slowest]
    reserve = 1 + 0.8 / math.sqrt(
        max(TAIL * len(fast), 1)
    )  # two standard errors of how far so few values reach
    return min(tail_freedom([reserve * each for each in side]) for side in (fast, slow))


def overall_distances(
    nodes: Mapping[str, Sequence[str]], distances: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Median log distance, centred, of each machine that ran at least half of the benchmarks."""
    groups: dict[str, list[float]] = {}
    for name, row in distances.items():
        for node, distance in zip(nodes[name], row, strict=True):
            groups.setdefault(node, []).append(distance)
    medians = {
        node: median(group) for node, group in groups.items() if 2 * len(group) >= len(distances)
    }
    middle = median(medians.values()) if medians else 0.0
    return {node: each - middle for node, each in medians.items()}


def second_try(
    node: str,
    slower: Mapping[str, Mapping[str, Deviation]],
    first: Times,
    again: Mapping[str, NodeRun],
) -> tuple[str, str] | None:
    """Whether the newest run confirms the slowdown, and the good machines it is compared with.

    Without a good machine's second run, the fleet's first runs serve; a later change of clocks or
    drivers shifts these.
    """
    if node not in again:
        return None
    good = {each: run for each, run in again.items() if each not in slower}
    beside, newest = by_benchmark(good), again[node].times_s
    distances = {
        name: math.log(time_s / median((beside.get(name) or first[name]).values()))
        for name, time_s in newest.items()
        if name in first
    }
    if distances:
        distances[OVERALL] = median(distances.values())
    far = math.log1p(LEAST_SHARE)
    confirmed = any(distances.get(name, 0.0) >= far for name in slower[node])
    return CONFIRMED if confirmed else ONE_OFF, ", ".join(sorted(good)[:3])
