"""Fleets of machines with known bad ones. `python -m meta_tests.prooflops.suite.fleet.simulated` writes the table.

A machine's times differ from the fleet's by a part of its own (standard deviation 0.4 or 0.8 %) and by one in each of
60 benchmarks (0.25 to 2.5 %, by benchmark), normal or by Student's t with 5 degrees of freedom; both sides alike. Bad
machines are slower in all. A second run has new noise in the benchmarks and the same part of the machine's own.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta_tests import page_tables
from prooflops.suite.fleet.bad_nodes import Fleet, fleet
from prooflops.suite.fleet.command import collector_off
from prooflops.suite.fleet.nodes import NodeRun
from prooflops.suite.report.measurement import Measurement

BENCHMARKS = 60
FLEETS = {8: 400, 64: 100, 1024: 20}  # simulated for each number of machines
PAGE, COMMAND = "docs/many-machines.md", "python -m meta_tests.prooflops.suite.fleet.simulated"


@dataclass(frozen=True)
class Spread:
    """How healthy machines differ."""

    name: str
    node_sd: float
    freedom: float  # of Student's t; inf: normal


SPREADS = (
    Spread("normal, 0.4 %", 0.004, np.inf),
    Spread("heavy tails, 0.4 %", 0.004, 5.0),
    Spread("normal, 0.8 %", 0.008, np.inf),
)


def noise(random: Any, spread: Spread, shape: Any) -> Any:
    if spread.freedom == np.inf:
        return random.standard_normal(shape)
    return random.standard_t(spread.freedom, shape) * np.sqrt((spread.freedom - 2) / spread.freedom)


def runs(nodes: int, bad: int, by: float, seed: int, spread: Spread, *, again: bool = True) -> list[NodeRun]:
    """The first runs of all, of which the first `bad` are slower by `by`, and the second runs of all."""
    random = np.random.default_rng(seed)
    base = random.lognormal(-7, 1, BENCHMARKS)
    own = noise(random, spread, nodes) * spread.node_sd + np.where(np.arange(nodes) < bad, np.log1p(by), 0.0)
    sd = np.geomspace(0.0025, 0.025, BENCHMARKS)
    found = []
    for turn in range(2 if again else 1):
        times = base * np.exp(own[:, None] + sd * noise(random, spread, (nodes, BENCHMARKS)))
        for node, row in enumerate(times.tolist()):
            benchmarks = {f"b{i}": Measurement(f"b{i}", f"b{i}", time_s, 0.0, {}) for i, time_s in enumerate(row)}
            found.append(NodeRun(f"node-{node}", "card", f"2026-01-0{turn + 1}", {}, benchmarks, {}, "", ""))
    return found


def found(nodes: int, share: float, by: float, spread: Spread, fleets: int) -> tuple[Fleet, ...]:
    bad = max(round(nodes * share), 1) if share else 0
    return tuple(fleet("card", runs(nodes, bad, by, seed, spread)) for seed in range(fleets))


HEAD = [
    "| machines | they differ by | healthy fleets: suspects | by two runs | found: 3 % | 5 % | 10 % | wrongly named |",
    "|---|---|---|---|---|---|---|---|",
]


@collector_off()
def row(nodes: int, spread: Spread, fleets: int) -> str:
    """Markdown: how many of so many healthy fleets have a machine named, and which share of bad ones is found."""
    healthy = found(nodes, 0.0, 0.0, spread, fleets)
    first = sum(bool(each.named) for each in healthy)
    after = sum(bool(each.bad) for each in healthy)
    hits, wrong = [], 0
    for by in (0.03, 0.05, 0.10):
        shares = []
        for bad in dict.fromkeys(max(round(nodes * share), 1) for share in (0.01, 0.05)):
            expected = {f"node-{node}" for node in range(bad)}
            planted = found(nodes, bad / nodes, by, spread, max(fleets // 4, 4))
            named = [{named.node for named in each.bad} for each in planted]
            shares.append(sum(len(each & expected) for each in named) / (bad * len(planted)))
            wrong += sum(len(each - expected) for each in named)
        hits.append(", ".join(f"{each:.0%}" for each in shares))
    cells = [str(nodes), spread.name, f"{first} of {fleets}", f"{after} of {fleets}", *hits, str(wrong)]
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
        (folder / f"{node:04d}.json").write_text(json.dumps(each), encoding="utf-8")


if __name__ == "__main__":
    made = list(HEAD)
    for machines, count in FLEETS.items():
        for each in SPREADS:
            made.append(row(machines, each, count))
            print(made[-1], flush=True)
    page_tables.write(PAGE, "fleets", COMMAND, "\n".join(made))
