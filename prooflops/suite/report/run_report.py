"""The results of one run, shared by report.html, report.md, verdicts.json and the terminal."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prooflops.suite.registry import Registry, Source
from prooflops.suite.report import delivery
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.reconciled import reconciled
from prooflops.suite.verdicts import RED, VERDICTS, Verdict
from prooflops_gate.history.trend import Trend

SCHEMA = 2  # of verdicts.json, raised for incompatible changes; 1 was a list without a head
SCHEMA_FILE = Path(__file__).with_name("verdicts.schema.json")
VERSIONS = ("torch", "python", "driver", "cuda", "hip")


@dataclass(frozen=True)
class RunReport:
    """One run on one machine."""

    machine: Mapping[str, Any]  # the fingerprint
    headline: tuple[str, ...]  # machine and software in a few lines, as pytest's header prints them
    claims: tuple[Verdict, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)  # of the claims, by key
    benchmarks: tuple[Measurement, ...] = ()
    peaks: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # not the vendor's, see Peaks
    caches: Mapping[str, int] = field(default_factory=dict)  # bytes by level
    date: str = ""
    duration_s: float | None = None
    arguments: tuple[str, ...] = ()
    revision: str = ""
    version: str = ""
    pace: str = ""
    partial: str = ""  # why the run is partial; empty for a whole one
    trends: tuple[Trend, ...] = ()  # of its benchmarks, over the records of this machine

    @property
    def command(self) -> str:
        return shlex.join(["pytest", *self.arguments])

    @property
    def methods(self) -> tuple[str, ...]:
        """The versions of its methods of measurement."""
        return tuple(
            sorted({str(each.info["method"]) for each in self.benchmarks if "method" in each.info})
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims per verdict, in the order of VERDICTS."""
        found = Counter(claim.verdict for claim in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def with_verdicts(self, *verdicts: str) -> list[Verdict]:
        return [claim for claim in self.claims if claim.verdict in verdicts]

    @property
    def red(self) -> list[Verdict]:
        return self.with_verdicts(*RED)


def by_topic(claims: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """The claims of each topic, in the order of the registry."""
    topics: dict[str, list[Verdict]] = {}
    for verdict in claims:
        topics.setdefault(verdict.claim.topic, []).append(verdict)
    return topics


def unchecked(claims: Iterable[Verdict]) -> list[tuple[str, list[str]]]:
    """The reasons for unchecked claims, each with the claims' ids."""
    reasons: dict[str, list[str]] = {}
    for claim in claims:
        if claim.verdict == "not checked":
            reasons.setdefault(claim.reason, []).append(claim.id)
    return [*reasons.items()]


def run_report(
    record: Mapping[str, Any],
    verdicts: Sequence[Verdict],
    registry: Registry,
    headline: Sequence[str],
    partial: str = "",
) -> RunReport:
    """The report of a run, made of its record (see docs/history.md) and its verdicts."""
    ours = record["prooflops"]
    commit = record.get("commit_info") or {}
    revision = str(commit.get("id") or "")
    return RunReport(
        machine=ours["fingerprint"],
        headline=tuple(headline),
        claims=tuple(verdicts),
        sources=registry.sources,
        benchmarks=reconciled(map(Measurement.of, record["benchmarks"])),
        peaks=ours["peaks"],
        caches=ours["caches"],
        date=str(record.get("datetime") or ""),
        duration_s=ours["duration_s"],
        arguments=tuple(map(str, ours["arguments"])),
        revision=revision
        + (" with uncommitted changes" if revision and commit.get("dirty") else ""),
        version=ours["version"],
        pace=ours["pace"],
        partial=partial,
    )


def verdicts_json(report: RunReport) -> str:
    """The text of verdicts.json, a run's results for programs; its form is public, see docs/validate.md."""
    content = {
        "schema": SCHEMA,
        "prooflops": report.version,
        **{
            key: getattr(report, key)
            for key in ("date", "duration_s", "command", "revision", "pace")
        },
        "whole": not report.partial,
        "partial": report.partial,
        "machine": dict(report.machine),
        "versions": {key: report.machine.get(key) for key in VERSIONS},
        "delivers": [each.as_dict() for each in delivery.figures(report.benchmarks)],
        "counts": report.counts,
        "claims": [
            {
                **verdict.as_dict(),
                **{
                    key: getattr(verdict.claim, key)
                    for key in ("statement", "condition", "correction", "note")
                },
                "sources": [
                    {"title": source.title, "locator": source.locator, "url": source.url}
                    for source in map(report.sources.__getitem__, verdict.claim.sources)
                ],
            }
            for verdict in report.claims
        ],
    }
    return json.dumps(content, indent=1, default=str) + "\n"
