"""`--device all`: validates each card alone, then all cards at once, and compares them.

Each card runs in its own process. This process opens no device, because a context would hold memory on the cards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from prooflops.console.tables import aligned, markdown_table
from prooflops.gate import cleanup_process
from prooflops.gate.options import history_folder, settings, words_for_children
from prooflops.gate.process import DROPPED
from prooflops.history import records as history
from prooflops.run_state import REPLICATE
from prooflops.suite import ranks
from prooflops.suite.card_comparison import (
    ALONE,
    AT_ONCE,
    Card,
    CardRun,
    failures,
    number_of_cards,
    outliers,
    tables,
    why_no_outlier,
)


def cards_of(counts: Mapping[str, int]) -> list[Card]:
    """Lists the cards of this machine, given the count per kind.

    >>> [card.name for card in cards_of({"cuda": 2})]
    ['cuda:0', 'cuda:1']
    """
    names = [f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
    return [Card(name, ("--device", name)) for name in names]


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int | None:
    """Runs `--device all`. Returns the exit status, or None for a single card, which this process then validates.

    Raises UsageError without a card, or with another option that starts processes.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # torch then asks NVML instead of the CUDA runtime
    from prooflops.machine import device as machine

    cards = cards_of(machine.counts())
    if not cards:
        raise pytest.UsageError(
            f"--device all: this machine has no accelerator; valid here: {', '.join(machine.available())}"
        )
    if ranks.job_rank():
        raise pytest.UsageError("--device all starts a process for each card: run it without torchrun")
    if settings(config).used:
        raise pytest.UsageError("--device all and the options of the gate exclude each other")
    if len(cards) == 1:
        say(f"--device all: this machine has one card, {cards[0].name}, which is validated alone")
        config.option.device = cards[0].name
        return None
    folder = Path(config.option.report) / "cards"
    words = words_for_children(config, folder.absolute() / "cache")
    command = [sys.executable, "-m", "pytest", "-p", "prooflops.gate.child.options", *words]
    runs = validate(cards, command, config.invocation_params.dir, folder, say)
    store(runs, history_folder(config))
    return conclude(runs, folder, say)


# ---- running -----------------------------------------------------------------------------------------------------


def validate(
    cards: Sequence[Card], command: Sequence[str], root: Path, folder: Path, say: Callable[[str], None]
) -> list[CardRun]:
    """Runs `command` for each card alone, then for all at once. Keeps each output in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[CardRun] = []
    with tempfile.TemporaryDirectory(prefix="prooflops-cards-") as records, cleanup_process.running() as register:
        processes = Processes(command, root, folder, Path(records), register)
        for number, card in enumerate(cards, start=1):
            say(f"{card.name} alone ({number} of {len(cards)}) ...")
            runs += processes.run([card], ALONE)
            say(f"{card.name} alone: exit {runs[-1].code} after {runs[-1].wall_s:.0f} s")
        say(f"all {len(cards)} at once ...")
        together = processes.run(cards, AT_ONCE)
        codes = ", ".join(f"{each.card.name} exit {each.code}" for each in together)
        say(f"all at once: {codes}, after {max(each.wall_s for each in together):.0f} s")
    return [*runs, *together]


class Processes:
    """Runs one command for several cards at once, one process per card."""

    def __init__(
        self, command: Sequence[str], root: Path, folder: Path, records: Path, register: Callable[..., None]
    ) -> None:
        self._command = command
        self._root = root
        self._folder = folder
        self._records = records
        self._register = register

    def run(self, cards: Sequence[Card], phase: str) -> list[CardRun]:
        """Starts one process per card, waits for all, and reads their records and outputs."""
        stems = [f"{card.name.replace(':', '-')}-{phase.replace(' ', '-')}" for card in cards]
        began = time.monotonic()
        children = [self._start(card, stem) for card, stem in zip(cards, stems, strict=True)]
        wall_s: dict[int, float] = {}
        while len(wall_s) < len(children):
            for number, child in enumerate(children):
                if number not in wall_s and child.poll() is not None:
                    wall_s[number] = time.monotonic() - began
                    self._register("ended", str(child.pid))
            time.sleep(0.05)
        runs = []
        for number, (card, stem, child) in enumerate(zip(cards, stems, children, strict=True)):
            file = self._records / f"{stem}.json"
            record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
            output = (self._folder / f"{stem}.txt").read_text(encoding="utf-8", errors="replace")
            runs.append(CardRun(card, phase, child.returncode, wall_s[number], record, output))
        return runs

    def _start(self, card: Card, stem: str) -> subprocess.Popen[bytes]:
        inherited = {key: value for key, value in os.environ.items() if key not in DROPPED}
        with open(self._folder / f"{stem}.txt", "wb") as output:
            child = subprocess.Popen(
                [*self._command, *card.arguments],
                cwd=self._root,
                env={**inherited, **card.environment, REPLICATE: str(self._records / f"{stem}.json")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._register("group", str(child.pid))
        return child


# ---- results -----------------------------------------------------------------------------------------------------


def store(runs: Sequence[CardRun], folder: Path) -> None:
    """Adds the records to the history. Cards and phases stay separate: their differences are not noise."""
    for run in runs:
        if run.record is not None:
            fingerprint = run.record["prooflops"]["fingerprint"]
            fingerprint["card"] = f"{run.card.name} {run.phase}"
            history.append(folder, run.record, fingerprint)


def conclude(runs: Sequence[CardRun], folder: Path, say: Callable[[str], None]) -> int:
    """Prints and writes the tables. Returns 1 if any card's run failed."""
    page = [f"# {number_of_cards(runs)} cards, each alone and all at once", ""]
    for title, rows in tables(runs).items():
        page += [f"## {title}", "", *markdown_table(rows), ""]
        for line in ("", title, *aligned(rows)):
            say(line)
    for line in (*outliers(runs), *why_no_outlier(runs), *failures(runs)):
        page.append(f"- {line}")
        say(line)
    history.write_atomically(folder / "cards.md", "\n".join(page) + "\n")
    say(f"report: {folder}/cards.md")
    return int(any(run.code or run.record is None for run in runs))
