"""Fleets of machines with known bad ones. `python -m meta_tests.prooflops.suite.fleet.simulated` writes the table.

A machine's times differ from the fleet's by a part of its own (standard deviation 0.4 or 0.8 %) and by one in each of
60 benchmarks (0.25 to 2.5 %, by benchmark): normal, by Student's t with 5 or 3 degrees of freedom, by Laplace's
distribution, or skewed towards slow by a log-normal. Bad machines are slower in all. A second run has new noise in the
benchmarks and the same part of the machine's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta_tests import page_tables
from prooflops.history.records import as_text
from prooflops.suite.fleet.bad_nodes import Fleet, compare, far_nodes, fleet
from prooflops.suite.fleet.command import collector_off
from prooflops.suite.fleet.nodes import NodeRun

BENCHMARKS = 60
FIRST_SEED = 1000  # the rule was chosen by looking at fleets of smaller ones
FLEETS = {8: (400, 100), 64: (200, 20), 1024: (200, 6)}  # of each number of machines: healthy ones, ones with bad
PAGE, COMMAND = "docs/many-machines.md", "python -m meta_tests.prooflops.suite.fleet.simulated"


@dataclass(frozen=True)
class Spread:
    """How healthy machines differ: the noise of standard deviation 1, and that of a machine's own part."""

    name: str
    node_sd: float
    noise: Callable[[Any, Any], Any]


def normal(random: Any, shape: Any) -> Any:
    return random.standard_normal(shape)


def student(freedom: float) -> Callable[[Any, Any], Any]:
    return lambda random, shape: random.standard_t(freedom, shape) * np.sqrt((freedom - 2) / freedom)


def skewed(random: Any, shape: Any) -> Any:
    variance = np.exp(0.25)  # of the logarithm 0.5²
    return (random.lognormal(0, 0.5, shape) - np.sqrt(variance)) / np.sqrt((variance - 1) * variance)


def laplace(random: Any, shape: Any) -> Any:
    return random.laplace(0, np.sqrt(0.5), shape)


SPREADS = (
    Spread("normal, 0.4 %", 0.004, normal),
    Spread("t(5), 0.4 %", 0.004, student(5.0)),
    Spread("t(3), 0.4 %", 0.004, student(3.0)),
    Spread("skewed, 0.4 %", 0.004, skewed),
    Spread("normal, 0.8 %", 0.008, normal),
    Spread("Laplace, 0.8 %", 0.008, laplace),
)


def runs(nodes: int, bad: int, by: float, seed: int, spread: Spread, *, again: bool = True) -> list[NodeRun]:
    """The first runs of all, of which the first `bad` are slower by `by`, and the second runs of all."""
    times = all_times(nodes, bad, by, seed, spread, turns=2 if again else 1)
    found = []
    for turn, rows in enumerate(times):
        for node, row in enumerate(rows.tolist()):
            times_s = {f"b{i}": time_s for i, time_s in enumerate(row)}
            spreads = dict.fromkeys(times_s, 0.0)
            found.append(NodeRun(f"node-{node}", "card", f"2026-01-0{turn + 1}", {}, times_s, spreads, {}, {}, {}))
    return found


def all_times(nodes: int, bad: int, by: float, seed: int, spread: Spread, turns: int) -> list[Any]:
    """Of each turn an array of machines and benchmarks."""
    random = np.random.default_rng(seed)
    base = random.lognormal(-7, 1, BENCHMARKS)
    own = spread.noise(random, nodes) * spread.node_sd + np.where(np.arange(nodes) < bad, np.log1p(by), 0.0)
    sd = np.geomspace(0.0025, 0.025, BENCHMARKS)
    shape = (nodes, BENCHMARKS)
    return [base * np.exp(own[:, None] + sd * spread.noise(random, shape)) for _ in range(turns)]


def has_suspects(nodes: int, seed: int, spread: Spread) -> bool:
    """Whether a machine of a healthy fleet is named after its first run; faster than `fleet`, which says who."""
    (times,) = all_times(nodes, 0, 0.0, seed, spread, turns=1)
    names = [f"node-{node}" for node in range(nodes)]
    return bool(far_nodes(compare({f"b{i}": dict(zip(names, row, strict=True)) for i, row in enumerate(times.T)}))[0])


def seeds(fleets: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + fleets)


def found(nodes: int, share: float, by: float, spread: Spread, fleets: int) -> tuple[Fleet, ...]:
    bad = max(round(nodes * share), 1) if share else 0
    return tuple(fleet("card", runs(nodes, bad, by, seed, spread)) for seed in seeds(fleets))


HEAD = [
    "| machines | they differ by | healthy fleets: suspects | by two runs | found: 3 % | 5 % | 10 % | wrongly named |",
    "|---|---|---|---|---|---|---|---|",
]


@collector_off()
def row(nodes: int, spread: Spread, healthy: int, with_bad: int) -> str:
    """Markdown: how many of so many healthy fleets have a machine named, and which share of bad ones is found."""
    suspects = [seed for seed in seeds(healthy) if has_suspects(nodes, seed, spread)]
    confirmed = sum(bool(fleet("card", runs(nodes, 0, 0.0, seed, spread)).bad) for seed in suspects)
    hits, wrong = [], 0
    for by in (0.03, 0.05, 0.10):
        shares = []
        for bad in dict.fromkeys(max(round(nodes * share), 1) for share in (0.01, 0.05)):
            expected = {f"node-{node}" for node in range(bad)}
            planted = found(nodes, bad / nodes, by, spread, with_bad)
            bad_ones = [{named.node for named in each.bad} for each in planted]
            shares.append(sum(len(each & expected) for each in bad_ones) / (bad * len(planted)))
            wrong += sum(len(each - expected) for each in bad_ones)
        hits.append(", ".join(f"{each:.0%}" for each in shares))
    named = [f"{count} of {healthy}" for count in (len(suspects), confirmed)]
    cells = [str(nodes), spread.name, *named, *hits, str(wrong)]
    return f"| {' | '.join(cells)} |"


def write_records(folder: Path, record: dict[str, Any], nodes: int, bad: int, by: float, seed: int = 0) -> None:
    """Records as `nodes` machines of this kind would write them, of which the first `bad` are slower."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for node in range(nodes):
        each = copy.deepcopy(record)
        each["machine_info"] = {"node": f"node-{node}"}
        each["prooflops"]["fingerprint"]["driver"] = "550.1" if node < bad else "570.2"
        own = 0.004 * random.standard_normal() + (np.log1p(by) if node < bad else 0.0)
        for bench in each["benchmarks"]:
            bench["stats"]["median"] *= float(np.exp(own + 0.005 * random.standard_normal()))
            bench["extra_info"].pop("contention", None)
        (folder / f"{node:04d}.json").write_text(as_text(each), encoding="utf-8")


if __name__ == "__main__":
    made = list(HEAD)
    for machines, counts in FLEETS.items():
        for each in SPREADS:
            made.append(row(machines, each, *counts))
            print(made[-1], flush=True)
    page_tables.write(PAGE, "fleets", COMMAND, "\n".join(made))
