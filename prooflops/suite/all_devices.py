"""`--device all`: validates all cards at once, each in a process of its own, and compares them.

This process opens no device, because a context would occupy memory on the cards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite import ranks
from prooflops.suite.fleet.command import publish
from prooflops.suite.fleet.nodes import NodeRun
from prooflops_gate import cleanup_process
from prooflops_gate.history import records as history
from prooflops_gate.options import history_folder, settings, words_for_children
from prooflops_gate.process import DROPPED, PACKAGE
from prooflops_gate.run_state import RECORD_TO


@dataclass(frozen=True)
class CardRun:
    """The run of one card: its exit code, and its record if it wrote one."""

    card: str
    code: int
    record: dict[str, Any] | None


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int | None:
    """Runs `--device all`.

    Returns the exit status, or None for a single card, which this process then validates.

    Raises UsageError without a card, or with another option that starts processes.
    """
    # Torch then asks NVML instead of the CUDA runtime.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from prooflops.machine import device as machine

    counts = machine.counts()
    cards = [f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
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
        say(f"--device all: this machine has one card, {cards[0]}, which is validated alone")
        config.option.device = cards[0]
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
    cards: Sequence[str],
    command: Sequence[str],
    root: Path,
    folder: Path,
    say: Callable[[str], None],
) -> list[CardRun]:
    """Runs `command` on all cards at once. Keeps each output in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    with tempfile.TemporaryDirectory() as records, cleanup_process.running() as register:
        children = []
        for card in cards:
            output, file = folder / f"{card.replace(':', '-')}.txt", Path(records, card)
            child = start([*command, "--device", card], root, output, file)
            register("group", str(child.pid))
            children.append((card, child, output, file))
        for card, child, output, file in children:
            code = child.wait()
            register("ended", str(child.pid))
            record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
            with_record = "with" if record else "without"
            say(f"{card}: exit {code}, {with_record} a record; its output: {output}")
            runs.append(CardRun(card, code, record))
    return runs


def start(
    command: Sequence[str], root: Path, output: Path, record: Path
) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in DROPPED}
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with open(output, "wb") as printed:
        return subprocess.Popen(
            command,
            cwd=root,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths), RECORD_TO: str(record)},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


# ---- results ------------------------------------------------------------------------------------


def store(runs: Sequence[CardRun], folder: Path) -> None:
    """Adds the records to the history, which keeps the cards apart."""
    for run in runs:
        if run.record is not None:
            fingerprint = run.record["prooflops"]["fingerprint"]
            fingerprint["card"] = run.card
            history.append_record(folder, run.record, fingerprint)


def conclude(runs: Sequence[CardRun], folder: Path, say: Callable[[str], None]) -> int:
    """Prints and writes the comparison of the cards, as `prooflops compare` does of machines.

    Returns 1 if a card's run failed.
    """
    # Work that competes for the cores competes with all cards.
    nodes = [
        replace(NodeRun.of(run.record, contended=True), node=run.card) for run in runs if run.record
    ]
    if nodes:
        publish(nodes, [], folder, "cards", say)
    return int(any(run.code or run.record is None for run in runs))
