"""The study's data: packed from the collector's lines, and read back as arrays in the order of time."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
RUNS = DATA / "runs.csv.gz"
FIGURES = ("min", "p10", "p25", "median", "mean", "sd")
PROCESS = ("session", "load_kind", "started", "extra", "wall_s", "load", "steal", "cpu_over_wall", "involuntary_per_s")


@dataclass(frozen=True)
class Session:
    """Processes taken one after another: a row of each array is a process, a column of `figures` a kernel."""

    name: str
    load_kind: str
    kernels: tuple[str, ...]
    facts: dict[str, NDArray[np.float64]]
    figures: dict[str, NDArray[np.float64]]  # seconds

    def __len__(self) -> int:
        return len(self.facts["started"])

    def only(self, extra: float) -> Session:
        """The processes with that much extra work."""
        rows = np.isclose(self.facts["extra"], extra)
        facts = {name: values[rows] for name, values in self.facts.items()}
        return Session(
            self.name, self.load_kind, self.kernels, facts, {name: x[rows] for name, x in self.figures.items()}
        )


def pack() -> None:
    """Adds the lines of data/*.jsonl to runs.csv.gz, a row per process; a session that is there is replaced."""
    lines = [json.loads(line) for file in sorted(DATA.glob("*.jsonl")) for line in file.read_text().splitlines()]
    new = {line["session"] for line in lines}
    old = [row for row in _rows() if row["session"] not in new] if RUNS.exists() else []
    kernels = [key[: -len(".p25")] for key in old[0] if key.endswith(".p25")] if old else list(lines[0]["kernels"])
    columns = [*PROCESS, "n", *(f"{kernel}.{figure}" for kernel in kernels for figure in FIGURES)]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in sorted(old + [_row(line) for line in lines], key=lambda row: float(row["started"])):
        table.writerow(row)
    with (
        open(RUNS, "wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="", compresslevel=9) as packed,
    ):
        packed.write(text.getvalue().encode())


def _row(line: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: line[name] for name in PROCESS}
    row |= {name: f"{line[name]:.3g}" for name in ("load", "steal", "cpu_over_wall", "involuntary_per_s")}
    row["n"] = min(figures["n"] for figures in line["kernels"].values())  # rounds: what Welch's test takes
    for kernel, figures in line["kernels"].items():
        row |= {f"{kernel}.{name}": f"{figures[name] * 1e6:.5g}" for name in FIGURES}  # microseconds
    return row


def _rows() -> list[dict[str, Any]]:
    with gzip.open(RUNS, "rt") as file:
        return list(csv.DictReader(file))


def sessions() -> list[Session]:
    """All sessions of the committed data, each in the order of time."""
    rows = _rows()
    kernels = tuple(key[: -len(".p25")] for key in rows[0] if key.endswith(".p25"))
    found = []
    for name in dict.fromkeys(row["session"] for row in rows):
        mine = [row for row in rows if row["session"] == name]
        facts = {fact: np.array([float(row[fact]) for row in mine]) for fact in (*PROCESS[2:], "n")}
        figures = {
            figure: np.array([[float(row[f"{kernel}.{figure}"]) * 1e-6 for kernel in kernels] for row in mine])
            for figure in FIGURES
        }
        found.append(Session(name, mine[0]["load_kind"], kernels, facts, figures))
    return found
