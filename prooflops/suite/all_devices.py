"""`--device all`: validates each card alone, then all cards at once, and compares them.

Each card runs in its own process. This process opens no device, because a context would hold
memory on the cards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from prooflops.suite import ranks
from prooflops.suite.fleet.command import print_page, sentence
from prooflops.suite.fleet.nodes import NodeRun, short_name
from prooflops.suite.fleet.slow import Fleet, fleets
from prooflops.suite.verdicts import RED
from prooflops_gate import cleanup_process
from prooflops_gate.console.tables import engineering, times_as
from prooflops_gate.history import records as history
from prooflops_gate.options import history_folder, settings, words_for_children
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section
from prooflops_gate.process import DROPPED, PACKAGE
from prooflops_gate.run_state import REPLICATE

ALONE, AT_ONCE = "alone", "at once"


@dataclass(frozen=True)
class Card:
    """One card: the arguments and the environment with which a run of pytest measures it."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CardRun:
    """The run of one card in one phase."""

    card: Card
    phase: str
    code: int
    record: dict[str, Any] | None
    output: str


def cards_of(counts: Mapping[str, int]) -> list[Card]:
    """Lists the cards of this machine, given the count per kind.

    >>> [card.name for card in cards_of({"cuda": 2})]
    ['cuda:0', 'cuda:1']
    """
    names = [f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
    return [Card(name, ("--device", name)) for name in names]


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int | None:
    """Runs `--device all`.

    Returns the exit status, or None for a single card, which this process then validates.

    Raises UsageError without a card, or with another option that starts processes.
    """
    # Torch then asks NVML instead of the CUDA runtime.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from prooflops.machine import device as machine

    cards = cards_of(machine.counts())
    if not cards:
        raise pytest.UsageError(
            "--device all: this machine has no accelerator; "
            f"valid here: {', '.join(machine.available())}"
        )
    if ranks.job_rank():
        raise pytest.UsageError(
            "--device all starts a process for each card: run it without torchrun"
        )
    if settings(config).used:
        raise pytest.UsageError("--device all and the options of the gate exclude each other")
    if len(cards) == 1:
        say(f"--device all: this machine has one card, {cards[0].name}, which is validated alone")
        config.option.device = cards[0].name
        return None
    folder = Path(config.option.report) / "cards"
    runs = validate(cards, command_of(config, folder), config.invocation_params.dir, folder, say)
    store(runs, history_folder(config))
    return conclude(runs, folder, say)


# ---- running ------------------------------------------------------------------------------------


def command_of(config: pytest.Config, folder: Path) -> list[str]:
    """This run's command line for the process of a card."""
    words = words_for_children(config, folder.absolute() / "cache")
    return [sys.executable, "-m", "pytest", "-p", "prooflops_gate.child.options", *words]


def validate(
    cards: Sequence[Card],
    command: Sequence[str],
    root: Path,
    folder: Path,
    say: Callable[[str], None],
) -> list[CardRun]:
    """Runs `command` on each card alone, then for all at once. Keeps each output in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[CardRun] = []
    phases = [*(([card], ALONE) for card in cards), (cards, AT_ONCE)]
    with (
        tempfile.TemporaryDirectory(prefix="prooflops-cards-") as records,
        cleanup_process.running() as register,
    ):
        for group, phase in phases:
            began = time.monotonic()
            stems = [f"{card.name.replace(':', '-')}-{phase.replace(' ', '-')}" for card in group]
            children = []
            for card, stem in zip(group, stems, strict=True):
                children.append(
                    start(
                        card, command, root, folder / f"{stem}.txt", Path(records, f"{stem}.json")
                    )
                )
                register("group", str(children[-1].pid))
            for card, stem, child in zip(group, stems, children, strict=True):
                code, file = child.wait(), Path(records, f"{stem}.json")
                register("ended", str(child.pid))
                record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
                output = (folder / f"{stem}.txt").read_text(encoding="utf-8", errors="replace")
                runs.append(CardRun(card, phase, code, record, output))
                say(f"{card.name} {phase}: exit {code} after {time.monotonic() - began:.0f} s")
    return runs


def start(
    card: Card, command: Sequence[str], root: Path, output: Path, record: Path
) -> subprocess.Popen[bytes]:
    inherited = {key: value for key, value in os.environ.items() if key not in DROPPED}
    inherited["PYTHONPATH"] = os.pathsep.join(
        [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with open(output, "wb") as printed:
        return subprocess.Popen(
            [*command, *card.arguments],
            cwd=root,
            env={**inherited, **card.environment, REPLICATE: str(record)},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


# ---- results ------------------------------------------------------------------------------------


def store(runs: Sequence[CardRun], folder: Path) -> None:
    """Adds the records to the history.

    Cards and phases stay separate: their differences are not noise.
    """
    for run in runs:
        if run.record is not None:
            fingerprint = run.record["prooflops"]["fingerprint"]
            fingerprint["card"] = f"{run.card.name} {run.phase}"
            history.append_record(folder, run.record, fingerprint)


def conclude(runs: Sequence[CardRun], folder: Path, say: Callable[[str], None]) -> int:
    """Prints and writes what sets a card apart: the tables, then the cards named.

    Returns 1 if a card's run failed.
    """
    nodes = {
        phase: [node_run(run) for run in runs if run.phase == phase and run.record]
        for phase in (ALONE, AT_ONCE)
    }
    found = {phase: fleets(each) for phase, each in nodes.items()}
    cards = [run.card.name for run in runs if run.phase == ALONE]
    tables = {
        f"{phase}: time against the median card": deviation_table(each, cards)
        for phase, each in nodes.items()
    }
    tables["at once: time against the same card alone"] = ratio_table(
        nodes[ALONE], nodes[AT_ONCE], cards
    )
    lines = [line for phase, each in found.items() for line in slow_cards(phase, each)]
    title = f"{len(cards)} cards, each alone and all at once"
    page = Page(
        title=title,
        kind="prooflops · the cards of one machine",
        lead=[*lines, *failures(runs)],
        sections=[Section(name, rows) for name, rows in tables.items() if len(rows) > 1],
    )
    print_page(page, say)
    history.write_atomically(folder / "cards.md", markdown(page))
    history.write_atomically(folder / "cards.html", html(page))
    say(f"report: {folder}/cards.html")
    return int(any(run.code or run.record is None for run in runs))


def node_run(run: CardRun) -> NodeRun:
    """A card as a machine of a fleet; what competes for the cores competes with all cards."""
    return replace(NodeRun.of(run.record, "", contended=True), node=run.card.name)


def slow_cards(phase: str, found: Sequence[Fleet]) -> list[str]:
    """What the comparison of the cards in a phase says, and the slow ones."""
    lines = []
    for fleet in found:
        lines.append(f"{phase}: {sentence(fleet)}")
        lines += [f"{phase}: {x.state}: {x.node}: {x.slowdown:.1%} slower" for x in fleet.slow]
    return lines


def by_benchmark(nodes: Sequence[NodeRun]) -> dict[str, dict[str, float]]:
    """Each benchmark's time by card."""
    rows: dict[str, dict[str, float]] = {}
    for node in nodes:
        for name, time_s in node.times_s.items():
            rows.setdefault(name, {})[node.node] = time_s
    return rows


def deviation_table(nodes: Sequence[NodeRun], cards: Sequence[str]) -> list[list[str]]:
    """Each card's time against the median card."""
    rows = [["benchmark", "median card", *cards]]
    for name, times in by_benchmark(nodes).items():
        middle = median(times.values())
        cells = {card: f"{time_s / middle - 1:+.1%}" for card, time_s in times.items()}
        rows.append(
            [short_name(name), engineering(middle, "s"), *(cells.get(card, "-") for card in cards)]
        )
    return rows


def ratio_table(
    alone: Sequence[NodeRun], at_once: Sequence[NodeRun], cards: Sequence[str]
) -> list[list[str]]:
    before, after = by_benchmark(alone), by_benchmark(at_once)
    rows = [["benchmark", *cards]]
    for name, times in before.items():
        both = times.keys() & after.get(name, {}).keys()
        cells = [
            times_as(after[name][card] / times[card]) if card in both else "-" for card in cards
        ]
        rows += [[short_name(name), *cells]] if both else []
    return rows


def failures(runs: Sequence[CardRun]) -> list[str]:
    """The last lines of each failed run, and the claims that fail on its card."""
    lines = []
    for run in runs:
        name = f"{run.card.name} {run.phase}"
        if run.code or run.record is None:
            output = run.output.strip().splitlines()
            shown = [line for line in output if line.startswith(("FAILED", "ERROR"))] or output[-5:]
            lines.append(
                f"{name}: exit {run.code}, {'without' if run.record is None else 'with'} a record"
            )
            lines += [f"    {line}" for line in shown]
        verdicts = run.record["prooflops"]["verdicts"] if run.record else []
        lines += [
            f"{name}: {each['verdict']} {each['id']}" for each in verdicts if each["verdict"] in RED
        ]
    return lines
