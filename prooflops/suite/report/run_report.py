"""The results of one run, shared by report.html, report.md, verdicts.json and the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prooflops.history.trend import Trend
from prooflops.suite.registry import Registry
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.verdicts import RED, VERDICTS


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the registry with its verdict and test results."""

    id: str
    topic: str
    statement: str
    verdict: str
    reason: str
    condition: str = ""
    correction: str = ""
    note: str = ""
    sources: tuple[Mapping[str, str], ...] = ()
    figures: tuple[str, ...] = ()
    cases: int = 0
    duration: float = 0.0
    tests: tuple[str, ...] = ()
    known: bool = False

    @property
    def line(self) -> str:
        """The printed verdict: with the condition for a holds-if claim, else with the reason."""
        known = " (known)" if self.known else ""
        if self.verdict == "holds if":
            return f"holds if {self.reason}"
        return f"{self.verdict}{known}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class RunReport:
    """One run on one machine."""

    machine: Mapping[str, Any]  # the fingerprint
    headline: tuple[str, ...]  # machine and software in a few lines, as pytest's header prints them
    claims: tuple[ClaimResult, ...] = ()
    benchmarks: tuple[Measurement, ...] = ()
    peaks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # not the vendor's, see Peaks
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
        return tuple(sorted({str(each.info["method"]) for each in self.benchmarks if "method" in each.info}))

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims per verdict, in the order of VERDICTS."""
        found = Counter(claim.verdict for claim in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def with_verdicts(self, *verdicts: str) -> list[ClaimResult]:
        return [claim for claim in self.claims if claim.verdict in verdicts]

    @property
    def red(self) -> list[ClaimResult]:
        return self.with_verdicts(*RED)

    @property
    def topics(self) -> dict[str, list[ClaimResult]]:
        """The claims of each topic, in the order of the registry."""
        return by_topic(self.claims)


def by_topic(claims: Iterable[ClaimResult]) -> dict[str, list[ClaimResult]]:
    topics: dict[str, list[ClaimResult]] = {}
    for claim in claims:
        topics.setdefault(claim.topic, []).append(claim)
    return topics


def run_report(
    record: Mapping[str, Any],
    registry: Registry,
    headline: Sequence[str],
    *,
    partial: str = "",
    trends: Sequence[Trend] = (),
) -> RunReport:
    """The report of a run record (see docs/history.md); a claim that the registry lacks has no statement."""
    ours = record["prooflops"]
    commit = record.get("commit_info") or {}
    revision = str(commit.get("id") or "")
    return RunReport(
        machine=ours["fingerprint"],
        headline=tuple(headline),
        claims=tuple(claim_result(row, registry) for row in ours.get("verdicts", [])),
        benchmarks=tuple(map(Measurement.of, record["benchmarks"])),
        peaks=ours.get("peaks", {}),
        caches=ours.get("caches", {}),
        date=str(record.get("datetime") or ours.get("date") or ""),
        duration_s=ours.get("duration_s"),
        arguments=tuple(map(str, ours.get("arguments", []))),
        revision=revision + (" with uncommitted changes" if revision and commit.get("dirty") else ""),
        version=str(ours.get("version", "")),
        pace=str(ours.get("pace", "")),
        partial=partial or str(ours.get("partial") or ""),
        trends=tuple(trends),
    )


def claim_result(row: Mapping[str, Any], registry: Registry) -> ClaimResult:
    """A record's verdict, joined with its claim's row in the registry."""
    claim = registry.claims.get(row["id"])
    stated: dict[str, Any] = {}
    if claim:
        sources = [registry.sources[key] for key in claim.sources]
        stated = {
            **{key: getattr(claim, key) for key in ("condition", "correction", "note")},
            "sources": tuple({"title": each.title, "locator": each.locator, "url": each.url} for each in sources),
        }
    return ClaimResult(
        id=row["id"],
        topic=row.get("topic") or row["id"].partition(".")[0],
        statement=claim.statement if claim else "",
        verdict=row["verdict"],
        reason=row["reason"],
        figures=tuple(row.get("figures", ())),
        cases=row["cases"],
        duration=row["duration"],
        tests=tuple(row.get("tests", ())),
        known=bool(row.get("known")),
        **stated,
    )
