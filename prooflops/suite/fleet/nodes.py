"""Reads the runs of many machines from folders and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.results import record_of
from prooflops.suite.page import delivery
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.reconciled import reconciled
from prooflops_gate.history.records import LARGEST, SMALLEST, UnreadableRecord, is_ignored

SOFTWARE = ("torch", "driver", "cuda", "hip")


@dataclass(frozen=True)
class Timing:
    """The median of one benchmark: its rate, or without one its time; and its spread."""

    value: float
    unit: str = "s"
    spread: float = 0.0

    @classmethod
    def of(cls, bench: Measurement) -> Timing:
        if bench.has("tokens_per_s"):
            return cls(bench.number("tokens_per_s"), "tokens/s", bench.spread)
        return cls(*(bench.rate or (bench.median_s, "s")), bench.spread)

    def slowdown(self, first: Timing) -> float | None:
        """The time for the work that `first` does in a unit of time; None without a common unit."""
        if self.unit != first.unit:
            return None
        return self.value / first.value if self.unit == "s" else first.value / self.value


@dataclass(frozen=True)
class NodeRun:
    """The comparable figures of one run on one machine, or on one of its cards.

    Only uncontended benchmarks have timings, unless the reader wants the contended ones as well.
    """

    node: str
    # The name of the device.
    kind: str
    date: str
    # Versions by name; one that is absent is empty.
    software: Mapping[str, str]
    timings: Mapping[str, Timing]
    # The verdict of each claim.
    verdicts: Mapping[str, str]
    figures: Sequence[delivery.Figure] = ()
    # The verdict of the machine's page.
    answer: str = ""
    partial: str = ""

    @property
    def is_red(self) -> bool:
        return self.answer == delivery.MISSES.word or "FAILS" in self.verdicts.values()

    @classmethod
    def of(cls, record: Any, *, contended: bool = False) -> NodeRun:
        """Reads a record, with its contended times where wanted. Raises for what is no record."""
        ours, fingerprint = record["prooflops"], record["prooflops"]["fingerprint"]
        device = str(fingerprint.get("device") or "")
        card = fingerprint.get("card") or (device if ":" in device else "")
        host = str((record.get("machine_info") or {}).get("node") or "unknown host")
        rows = reconciled(map(Measurement.of, record["benchmarks"]))
        timings = {x.fullname: Timing.of(x) for x in rows if _is_compared(x, contended)}
        figures = tuple(delivery.figures(rows))
        return cls(
            node=f"{host} {card}".strip(),
            kind=str(fingerprint["name"]),
            date=str(record.get("datetime") or ""),
            software={name: str(fingerprint.get(name) or "") for name in SOFTWARE},
            timings=timings,
            figures=figures,
            answer=delivery.answer(figures, rows, str(ours.get("partial") or ""))[0].word,
            # Records repeat these strings, and anything but a string raises TypeError.
            verdicts={intern(x["id"]): intern(x["verdict"]) for x in ours.get("verdicts", [])},
            partial=str(ours.get("partial") or ours.get("selection") or ""),
        )


def _is_compared(bench: Measurement, contended: bool) -> bool:
    whole = bench.info.get("contention") or {}
    is_contended = bench.is_contended or whole.get("contended")
    is_left_out = is_ignored({"extra_info": bench.info}) or (is_contended and not contended)
    return SMALLEST < bench.median_s < LARGEST and not is_left_out


def short_name(name: str) -> str:
    """A benchmark's node id as tables show it: "matmul[bf16]"."""
    return name.rpartition("::")[2].removeprefix("test_")


def read_runs(sources: Sequence[str]) -> tuple[list[NodeRun], list[str]]:
    """The runs in these folders and files, oldest first; and why others were unreadable.

    Raises ValueError for a source that is missing or has no record.
    """
    runs: list[NodeRun] = []
    unreadable: list[str] = []
    for source in sources:
        before = len(runs)
        for file in _records(source):
            try:
                runs.append(NodeRun.of(_content(file)))
            except UnreadableRecord as error:
                unreadable.append(f"{file}: {error}")
            except Exception as error:
                # Any file may be there; one that is no record stops no comparison.
                unreadable.append(
                    f"{file}: not a record of this suite ({type(error).__name__}: {error})"
                )
        if len(runs) == before:
            raise ValueError(
                f"compare {source}: it has no record of this suite; name a folder of records, a "
                "record, or a file of make evidence"
            )
    return sorted(runs, key=lambda run: run.date), unreadable


def _records(source: str) -> Iterator[Path]:
    """The files that may be records."""
    path = Path(source)
    if not path.exists():
        raise ValueError(f"compare {source}: no such folder or file")
    files = [path]
    if path.is_dir():
        files = sorted([*path.rglob("*.json"), *path.rglob("*.jsonl")])
    for file in files:
        if file.parent.name not in ("baselines", "gate") and file.name != "verdicts.json":
            yield file


def _content(file: Path) -> Any:
    """The record in a file; a file of evidence has it in parts."""
    if file.suffix != ".jsonl":
        return json.loads(file.read_bytes())
    if not EvidenceFile(file).plan:
        raise UnreadableRecord("the run ended before its first test")
    return record_of(file)
