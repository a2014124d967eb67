"""Compares the runs of several cards: distance from the median card, outliers, missing times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from prooflops.console.tables import engineering
from prooflops.history.records import is_ignored
from prooflops.statistics.outliers import FEWEST, LEAST_SHARE, LEVEL, Deviation, deviations
from prooflops.suite.verdicts import RED

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
    wall_s: float
    record: dict[str, Any] | None
    output: str

    @property
    def medians_s(self) -> dict[str, float]:
        """The median time of each benchmark that may be compared."""
        rows = self.record["benchmarks"] if self.record else []
        return {str(row["fullname"]): float(row["stats"]["median"]) for row in rows if not is_ignored(row)}


Times = Mapping[str, Mapping[str, float]]  # of each benchmark, on each card that has one


def times_of(runs: Sequence[CardRun], phase: str) -> Times:
    """The times of a phase. A failed benchmark has no time; a card's run may have no record."""
    rows: dict[str, dict[str, float]] = {}
    for run in runs:
        for name, median_s in run.medians_s.items() if run.phase == phase else ():
            rows.setdefault(name, {})[run.card.name] = median_s
    return rows


def mean(rows: Times) -> Times:
    """One row: the geometric mean of the benchmarks all cards share; no row for fewer than two."""
    cards = {card for row in rows.values() for card in row}
    common = [row for row in rows.values() if row.keys() == cards]
    if len(common) < 2:
        return {}
    return {f"all {len(common)}": {card: exp(statistics.fmean(log(row[card]) for row in common)) for card in common[0]}}


def compare_times(rows: Times) -> dict[str, dict[str, Deviation]]:
    """Each card's deviation from the median, per benchmark that two or more cards ran."""
    compared = {name: row for name, row in rows.items() if len(row) > 1}
    return {
        name: dict(zip(row, deviations(list(row.values()), tests=len(compared)), strict=True))
        for name, row in compared.items()
    }


def tables(runs: Sequence[CardRun]) -> dict[str, list[list[str]]]:
    """Each card's time against the median card, in both phases; then at once against alone."""
    cards = [run.card.name for run in runs if run.phase == ALONE]
    times = {phase: times_of(runs, phase) for phase in (ALONE, AT_ONCE)}
    result = {}
    for phase, measured in times.items():
        rows = [["benchmark", "median card", *cards]]
        for name, row in compare_times({**measured, **mean(measured)}).items():
            middle = engineering(statistics.median(measured[name].values()), "s") if name in measured else "-"
            cells = {card: f"{each.share:+.1%}" + (" !" if each.outlier else "") for card, each in row.items()}
            rows.append([short_name(name), middle, *(cells.get(card, "-") for card in cards)])
        result[f"{phase}: time against the median card"] = rows
    rows = [["benchmark", *cards]]
    for name, alone in times[ALONE].items():
        at_once = times[AT_ONCE].get(name, {})
        cells = {card: f"{seconds / alone[card]:.2f}x" for card, seconds in at_once.items() if card in alone}
        if cells:
            rows.append([short_name(name), *(cells.get(card, "-") for card in cards)])
    result["at once: time against the same card alone"] = rows
    return result


def short_name(name: str) -> str:
    return name.rpartition("::")[2].removeprefix("test_")


def outliers(runs: Sequence[CardRun]) -> list[str]:
    """One line per outlier card, most outlying benchmarks first."""
    named = []
    for phase in (ALONE, AT_ONCE):
        rows = compare_times(times_of(runs, phase))
        for card in (run.card.name for run in runs if run.phase == phase):
            own = {name: row[card] for name, row in rows.items() if card in row}
            far = {name: each for name, each in own.items() if each.outlier}
            if far:
                worst = max(far, key=lambda name: abs(far[name].share))
                share = far[worst].share
                how = f"{abs(share):.1%} {'slower' if share > 0 else 'faster'} than the median card"
                where = f"{len(far)} of {len(own)} benchmarks, most in {short_name(worst)}"
                named.append((len(far), f"outlier: {card} {phase} in {where}: {how}"))
    return [line for _, line in sorted(named, key=lambda pair: -pair[0])]


def why_no_outlier(runs: Sequence[CardRun]) -> list[str]:
    """Explains why no outlier is named: none exists, or too little could be compared."""
    without, too_few, lines = [], [], []
    for phase in (ALONE, AT_ONCE):
        rows = compare_times(times_of(runs, phase))
        if not rows:
            lines.append(f"not compared {phase}: no benchmark has a time on two cards")
        elif max(map(len, rows.values())) < FEWEST:
            too_few.append(phase)
        elif not any(each.outlier for row in rows.values() for each in row.values()):
            without.append(phase)
        lines += missing_times(runs, phase)
    if too_few and number_of_cards(runs) < FEWEST:
        lines.insert(0, f"no outlier is named {' or '.join(too_few)}: fewer than {FEWEST} cards are too few")
    if without:
        far = f"{LEAST_SHARE:.0%} from the median card and further than {LEVEL:.0%} of sound boxes would have one"
        lines.insert(0, f"no outlier {' or '.join(without)}: no card is {far}")
    return lines


def missing_times(runs: Sequence[CardRun], phase: str) -> list[str]:
    """Lists gaps of a phase: cards without a time, and benchmarks on too few cards."""
    rows, lines = times_of(runs, phase), []
    for run in (run for run in runs if run.phase == phase):
        missing = [short_name(name) for name, row in rows.items() if len(row) > 1 and run.card.name not in row]
        if run.record is None:
            lines.append(f"not compared {phase}: {run.card.name}: no record")
        elif missing:
            lines.append(f"not compared {phase}: {run.card.name} in {', '.join(missing)}: no time there")
    few: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        few.setdefault(tuple(row), []).append(short_name(name))
    for cards, names in few.items():
        if len(cards) == 1:
            lines.append(f"not compared {phase}: {', '.join(names)}: a time on {cards[0]} only")
        elif len(cards) < FEWEST <= number_of_cards(runs):
            why = f"a time on {' and '.join(cards)} only, and fewer than {FEWEST} are too few"
            lines.append(f"no outlier is named {phase}: {', '.join(names)}: {why}")
    return lines


def number_of_cards(runs: Sequence[CardRun]) -> int:
    return sum(run.phase == ALONE for run in runs)


def failures(runs: Sequence[CardRun]) -> list[str]:
    """The last lines of each failed run, and the claims that fail on its card."""
    lines = []
    for run in runs:
        name = f"{run.card.name} {run.phase}"
        verdicts = run.record["prooflops"]["verdicts"] if run.record else []
        if run.code or run.record is None:
            output = run.output.strip().splitlines()
            shown = [line for line in output if line.startswith(("FAILED", "ERROR"))] or output[-5:]
            lines.append(f"{name}: exit {run.code}, {'without' if run.record is None else 'with'} a record")
            lines += [f"    {line}" for line in shown]
        for word in RED:
            if claims := [str(verdict["id"]) for verdict in verdicts if verdict["verdict"] == word]:
                lines.append(f"{name}: {word} {', '.join(claims)}")
    return lines
