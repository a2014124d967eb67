"""The runs of many machines, read from the folders or the storage that they wrote their records to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any

from prooflops.suite.report.measurement import Measurement

SOFTWARE = ("torch", "driver", "cuda", "hip")


@dataclass(frozen=True)
class NodeRun:
    """One run on one machine, or on one card of it."""

    node: str
    kind: str  # the device's name
    date: str
    fingerprint: Mapping[str, Any]
    benchmarks: Mapping[str, Measurement]
    verdicts: Mapping[str, str]  # by claim
    partial: str
    source: str

    @property
    def software(self) -> dict[str, str]:
        """The versions that times depend on most."""
        return {name: str(self.fingerprint[name]) for name in SOFTWARE if self.fingerprint.get(name)}

    @cached_property
    def times_s(self) -> dict[str, float]:
        """The medians that may be compared: of benchmarks that nothing else competed with."""
        found = {}
        for name, bench in self.benchmarks.items():
            contention = bench.info.get("contention") or {}
            if bench.median_s > 0 and not contention.get("contended"):
                found[name] = bench.median_s
        return found

    @cached_property
    def best(self) -> dict[str, Measurement]:
        """By dtype, the benchmark with the highest arithmetic rate."""
        found: dict[str, Measurement] = {}
        rates: dict[str, float] = {}
        for bench in self.benchmarks.values():
            rate = bench.arithmetic_rate
            if bench.dtype and rate and rate > rates.get(bench.dtype, 0.0):
                found[bench.dtype], rates[bench.dtype] = bench, rate
        return found

    @property
    def traits(self) -> dict[str, str]:
        """What could explain a difference: the fingerprint's parts, and the labels of what slowed its benchmarks."""
        flat = dict(_flat("", self.fingerprint))
        labels = {label.partition(":")[0] for bench in self.benchmarks.values() for label in bench.labels}
        return {**flat, **{f"label {label}": "yes" for label in labels}}


def read_runs(sources: Sequence[str]) -> tuple[list[NodeRun], list[str]]:
    """The runs of these folders, files or pytest-benchmark storages, oldest first; and why others could not be read.

    Raises ValueError for a source that is not there, or has no record.
    """
    runs, unreadable = [], []
    for source in sources:
        found = 0
        for name, record in _records(source):
            try:
                runs.append(_node_run(record, name))
                found += 1
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                unreadable.append(f"{name}: not a record of this suite ({type(error).__name__}: {error})")
        if not found:
            raise ValueError(f"--report-compare {source}: no record of this suite in it; valid: a folder, a file, or a "
                             "storage of pytest-benchmark (file://..., elasticsearch+https://...)")  # fmt: skip
    return sorted(runs, key=lambda run: run.date), unreadable


def _records(source: str) -> Iterator[tuple[str, Any]]:
    if "://" in source:
        import logging

        from pytest_benchmark import utils

        load: Any = utils.load_storage
        storage = load(source, logger=logging.getLogger("prooflops"), netrc="", default_machine_id=None)
        yield from ((str(name), record) for name, record in storage.load())
        return
    path = Path(source)
    if not path.exists():
        raise ValueError(f"--report-compare {source}: there is no such folder or file")
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        if file.parent.name not in ("baselines", "gate") and file.name not in ("noise-floor.json", "verdicts.json"):
            try:
                yield str(file), json.loads(file.read_bytes())
            except (OSError, ValueError) as error:
                yield str(file), str(error)


def _node_run(record: Any, source: str) -> NodeRun:
    ours, fingerprint = record["prooflops"], record["prooflops"]["fingerprint"]
    card = fingerprint.get("card") or (fingerprint["device"] if ":" in str(fingerprint.get("device")) else "")
    host = str((record.get("machine_info") or {}).get("node") or "unknown host")
    benchmarks = map(Measurement.of, record["benchmarks"])
    return NodeRun(
        node=f"{host} {card}".strip(),
        kind=str(fingerprint["name"]),
        date=str(record.get("datetime") or ""),
        fingerprint=fingerprint,
        benchmarks={intern(bench.fullname): bench for bench in benchmarks},
        # One string for all records: what is asked for again and again is then found sooner.
        verdicts={intern(str(row["id"])): intern(str(row["verdict"])) for row in ours.get("verdicts", [])},
        partial=str(ours.get("partial") or ""),
        source=source,
    )


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        elif value is not None:
            yield f"{prefix}{key}", str(value)
