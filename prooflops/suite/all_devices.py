"""`--device all`: each card of a box validated alone, one after the other, then all at once, and compared.

Every card has a process of its own. This one opens no device: a context here would hold memory on the cards that it
compares.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, inf, log
from pathlib import Path
from typing import Any

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table
from prooflops.gate.processes import DROPPED, HERE, passed_on
from prooflops.gate.settings import history_folder, settings
from prooflops.history import records as history
from prooflops.run_state import REPLICATE
from prooflops.suite import ranks

ALONE, AT_ONCE = "alone", "at once"
# A card is an outlier where it is as far from the median card as this, by both measures.
LEAST_SHARE = 0.03
LEAST_Z = 3.5  # Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
FEWEST_CARDS = 3  # of two that differ, none is the odd one out


@dataclass(frozen=True)
class Card:
    """One card of the box: the arguments and the environment with which a run of pytest measures it."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Validated:
    """What became of one card in one phase."""

    card: Card
    phase: str
    code: int
    wall_s: float
    record: dict[str, Any] | None
    said: str

    @property
    def medians_s(self) -> dict[str, float]:
        """The median time of each benchmark that may be compared."""
        rows = self.record["benchmarks"] if self.record else []
        return {str(row["fullname"]): float(row["stats"]["median"]) for row in rows if not history.is_ignored(row)}


def cards_of(counts: Mapping[str, int]) -> list[Card]:
    """The cards of the box, from how many there are of each kind.

    >>> [card.name for card in cards_of({"cuda": 2})]
    ['cuda:0', 'cuda:1']
    """
    names = [f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
    return [Card(name, ("--device", name)) for name in names]


# ---- running -----------------------------------------------------------------------------------------------------


def run(config: pytest.Config, say: Callable[[str], None] = print) -> int | None:
    """The whole of `--device all`; the exit status, or None where there is one card, which this process then runs.

    Raises UsageError where there is no card, or another option wants to start the processes.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # has torch ask NVML, and not the CUDA runtime
    from prooflops.machine import device as devices

    cards = cards_of(devices.counts())
    if not cards:
        raise pytest.UsageError(
            f"--device all: this machine has no accelerator; valid here: {', '.join(devices.available())}"
        )
    if ranks.place():
        raise pytest.UsageError("--device all starts a process for each card: run it without torchrun")
    if settings(config).used:
        raise pytest.UsageError("--device all and the options of the gate exclude each other")
    if len(cards) == 1:
        say(f"--device all: this machine has one card, {cards[0].name}, which is validated alone")
        config.option.device = cards[0].name
        return None
    folder = Path(config.option.report) / "box"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *passed_on(config), *config.args]
    found = validate(cards, command, config.invocation_params.dir, folder, say)
    store(found, history_folder(config))
    return conclude(found, folder, say)


def validate(
    cards: Sequence[Card], command: Sequence[str], root: Path, folder: Path, say: Callable[[str], None]
) -> list[Validated]:
    """Runs `command` for each card alone, in turn, then for all at once. Each one's words are kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="prooflops-box-") as records, _guarded() as guard:
        for number, card in enumerate(cards, start=1):
            say(f"{card.name} alone ({number} of {len(cards)}) ...")
            found += _phase([card], ALONE, command, root, folder, Path(records), guard)
            say(f"{card.name} alone: exit {found[-1].code} after {found[-1].wall_s:.0f} s")
        say(f"all {len(cards)} at once ...")
        found += _phase(cards, AT_ONCE, command, root, folder, Path(records), guard)
        said = ", ".join(f"{each.card.name} exit {each.code}" for each in found[-len(cards) :])
        say(f"all at once: {said}, after {max(each.wall_s for each in found[-len(cards) :]):.0f} s")
    return found


Guard = Callable[..., None]


@contextmanager
def _guarded() -> Iterator[Guard]:
    """A process that ends the children of this one, however this one ends (`prooflops.gate.cleanup_process`)."""
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", str(HERE / "cleanup_process.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert watcher.stdin
    pipe = watcher.stdin

    def tell(*words: str) -> None:
        pipe.write("\t".join(words) + "\n")
        pipe.flush()

    try:
        yield tell
    finally:
        pipe.close()
        watcher.wait()


def _phase(
    cards: Sequence[Card], phase: str, command: Sequence[str], root: Path, folder: Path, records: Path, guard: Guard
) -> list[Validated]:
    started = []
    for card in cards:
        stem = f"{card.name.replace(':', '-')}-{phase.replace(' ', '-')}"
        record, output = records / f"{stem}.json", folder / f"{stem}.txt"
        inherited = {key: value for key, value in os.environ.items() if key not in DROPPED}
        with open(output, "wb") as said:
            child = subprocess.Popen(
                [*command, *card.arguments],
                cwd=root,
                env={**inherited, **card.environment, REPLICATE: str(record)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        guard("group", str(child.pid))
        started.append((card, child, record, output, time.monotonic()))
    ended: dict[int, float] = {}
    while len(ended) < len(started):
        for number, (_, child, *_, began) in enumerate(started):
            if number not in ended and child.poll() is not None:
                ended[number] = time.monotonic() - began
                guard("ended", str(child.pid))
        time.sleep(0.05)
    return [
        Validated(
            card,
            phase,
            int(child.returncode),
            ended[number],
            json.loads(record.read_text(encoding="utf-8")) if record.exists() else None,
            output.read_text(encoding="utf-8", errors="replace"),
        )
        for number, (card, child, record, output, _) in enumerate(started)
    ]


def store(found: Sequence[Validated], folder: Path) -> None:
    """Puts the records into the history, each card and phase apart: they are not one another's noise."""
    for each in found:
        if each.record is not None:
            fingerprint = each.record["prooflops"]["fingerprint"]
            fingerprint["box"] = f"{each.card.name} {each.phase}"
            history.append(folder, each.record, fingerprint)


# ---- comparing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """How far one card is from the median card: as a share of it, and in robust standard deviations."""

    share: float
    z: float
    outlier: bool


def deviations(values: Sequence[float]) -> list[Deviation]:
    """Each value against the median of them all.

    z is the distance from the median over 1.4826 times the median absolute deviation, which is the standard deviation
    where the values are normal. An outlier is beyond 3.5 by z *and* beyond 3 %: among few equal cards the deviation is
    tiny, and z large for a trifle. Of two, none is.

    >>> [each.outlier for each in deviations([1.0, 1.01, 0.99, 1.1])], deviations([1.0, 1.0, 1.02])[2].outlier
    ([False, False, False, True], False)
    """
    from scipy.stats import median_abs_deviation

    middle = statistics.median(values)
    spread = float(median_abs_deviation(values, scale="normal"))
    rows = []
    for value in values:
        distance = value - middle
        z = distance / spread if spread else inf * (1 if distance > 0 else -1) if distance else 0.0
        share = distance / middle
        far = len(values) >= FEWEST_CARDS and abs(share) >= LEAST_SHARE and abs(z) >= LEAST_Z
        rows.append(Deviation(share, z, far))
    return rows


Times = Mapping[str, Mapping[str, float]]  # of each benchmark, on each card that has one


def times(found: Sequence[Validated], phase: str) -> Times:
    """The times of a phase. A benchmark may have failed on one card, and the run of a card may have left no record."""
    rows: dict[str, dict[str, float]] = {}
    for each in found:
        for name, median_s in each.medians_s.items() if each.phase == phase else ():
            rows.setdefault(name, {})[each.card.name] = median_s
    return rows


def mean(rows: Times) -> Times:
    """The geometric mean of the benchmarks that every card has which has any, where these are several."""
    cards = {card for row in rows.values() for card in row}
    common = [row for row in rows.values() if row.keys() == cards]
    if len(common) < 2:
        return {}
    return {f"all {len(common)}": {card: exp(statistics.fmean(log(row[card]) for row in common)) for card in common[0]}}


def compared(rows: Times) -> dict[str, dict[str, Deviation]]:
    """How each card's time deviates, among the cards that have one: of each benchmark that two or more have."""
    return {
        name: dict(zip(row, deviations(list(row.values())), strict=True)) for name, row in rows.items() if len(row) > 1
    }


def tables(found: Sequence[Validated]) -> dict[str, list[list[str]]]:
    """Time of each card against the median card, in both phases; and at once against the same card alone."""
    cards = [each.card.name for each in found if each.phase == ALONE]
    before, after = (times(found, phase) for phase in (ALONE, AT_ONCE))
    result = {}
    for phase, measured in ((ALONE, before), (AT_ONCE, after)):
        rows = [["benchmark", "median card", *cards]]
        for name, row in compared({**measured, **mean(measured)}).items():
            middle = engineering(statistics.median(measured[name].values()), "s") if name in measured else "-"
            cells = {card: f"{each.share:+.1%}" + (" !" if each.outlier else "") for card, each in row.items()}
            rows.append([short(name), middle, *(cells.get(card, "-") for card in cards)])
        result[f"{phase}: time against the median card"] = rows
    rows = [["benchmark", *cards]]
    for name, alone in before.items():
        cells = {card: f"{late / alone[card]:.2f}x" for card, late in after.get(name, {}).items() if card in alone}
        if cells:
            rows.append([short(name), *(cells.get(card, "-") for card in cards)])
    result["at once: time against the same card alone"] = rows
    return result


def short(name: str) -> str:
    return name.rpartition("::")[2].removeprefix("test_")


def outliers(found: Sequence[Validated]) -> list[str]:
    """A line for each card that is an outlier in a benchmark, the one that is in most of them first."""
    named = []
    for phase in (ALONE, AT_ONCE):
        rows = compared(times(found, phase))
        for card in (each.card.name for each in found if each.phase == phase):
            mine = {name: row[card] for name, row in rows.items() if card in row}
            far = {name: each for name, each in mine.items() if each.outlier}
            if far:
                worst = max(far, key=lambda name: abs(far[name].share))
                share = far[worst].share
                how = f"{abs(share):.1%} {'slower' if share > 0 else 'faster'} than the median card"
                where = f"{len(far)} of {len(mine)} benchmarks, most in {short(worst)}"
                named.append((len(far), f"outlier: {card} {phase} in {where}: {how}"))
    return [line for _, line in sorted(named, key=lambda pair: -pair[0])]


def unnamed(found: Sequence[Validated]) -> list[str]:
    """Why no outlier is named where none is: because there is none, or because too little was compared to tell."""
    sound, paired, lines = [], [], []
    for phase in (ALONE, AT_ONCE):
        rows = compared(times(found, phase))
        if not rows:
            lines.append(f"not compared {phase}: no benchmark has a time on two cards")
        elif max(map(len, rows.values())) < FEWEST_CARDS:
            paired.append(phase)
        elif not any(each.outlier for row in rows.values() for each in row.values()):
            sound.append(phase)
        lines += uncompared(found, phase)
    if paired and _count(found) < FEWEST_CARDS:
        lines.insert(0, f"of 2 cards that differ none is the odd one out: no outlier is named {' or '.join(paired)}")
    if sound:
        far = f"{LEAST_SHARE:.0%} and {LEAST_Z} robust deviations from the median card"
        lines.insert(0, f"no outlier {' or '.join(sound)}: no card is {far}")
    return lines


def uncompared(found: Sequence[Validated], phase: str) -> list[str]:
    """What is missing from the comparison of a phase: cards without a time that others have, and benchmarks on too few
    cards."""
    rows, lines = times(found, phase), []
    for each in (each for each in found if each.phase == phase):
        missing = [short(name) for name, row in rows.items() if len(row) > 1 and each.card.name not in row]
        if each.record is None:
            lines.append(f"not compared {phase}: {each.card.name}: no record")
        elif missing:
            lines.append(f"not compared {phase}: {each.card.name} in {', '.join(missing)}: no time there")
    few: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        few.setdefault(tuple(row), []).append(short(name))
    for cards, names in few.items():
        if len(cards) == 1:
            lines.append(f"not compared {phase}: {', '.join(names)}: a time on {cards[0]} only")
        elif len(cards) < FEWEST_CARDS <= _count(found):
            why = f"a time on {' and '.join(cards)} only, and of two that differ none is the odd one out"
            lines.append(f"no outlier is named {phase}: {', '.join(names)}: {why}")
    return lines


def _count(found: Sequence[Validated]) -> int:
    return sum(each.phase == ALONE for each in found)


def failures(found: Sequence[Validated]) -> list[str]:
    """What each card whose run was not green said, and the claims that fail on it."""
    lines = []
    for each in found:
        verdicts = each.record["prooflops"]["verdicts"] if each.record else []
        wrong = [str(verdict["id"]) for verdict in verdicts if verdict["verdict"] == "FAILS"]
        if each.code or each.record is None:
            last = [line for line in each.said.strip().splitlines() if line.startswith(("FAILED", "ERROR"))]
            last = last or each.said.strip().splitlines()[-5:]
            what = "without a record" if each.record is None else "with a record"
            lines.append(f"{each.card.name} {each.phase}: exit {each.code}, {what}")
            lines += [f"    {line}" for line in last]
        if wrong:
            lines.append(f"{each.card.name} {each.phase}: FAILS {', '.join(wrong)}")
    return lines


def conclude(found: Sequence[Validated], folder: Path, say: Callable[[str], None]) -> int:
    """Prints and writes the tables; 1 if the run of any card was not green."""
    page = [f"# {_count(found)} cards, each alone and all at once", ""]
    for title, rows in tables(found).items():
        page += [f"## {title}", "", *markdown_table(rows), ""]
        say("")
        say(title)
        for line in aligned(rows):
            say(line)
    for line in (*outliers(found), *unnamed(found), *failures(found)):
        page.append(f"- {line}")
        say(line)
    history.write_atomically(folder / "box.md", "\n".join(page) + "\n")
    say(f"report: {folder}/box.md")
    return int(any(each.code or each.record is None for each in found))
