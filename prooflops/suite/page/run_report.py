"""The results of one run, shared by report.html, report.md, verdicts.json and the terminal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from prooflops.suite.commands import PYTEST, command_of
from prooflops.suite.page import delivery
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.reconciled import at_one_clock, reconciled
from prooflops.suite.peaks import DERIVED
from prooflops.suite.registry import Registry, Source
from prooflops.suite.verdicts import VERDICTS, Verdict
from prooflops_gate.page.section import Bar

# The version of the form of verdicts.json, raised for incompatible changes.
SCHEMA = 3
# The keys that verdicts.json copies from the fingerprint, a RunReport and a claim.
VERSION_KEYS = ("torch", "python", "driver", "cuda", "hip")
RUN_KEYS = ("date", "duration_s", "command", "revision", "pace")
CLAIM_KEYS = ("statement", "condition", "correction", "note")


@dataclass(frozen=True)
class RedTest:
    """A test that did not pass.

    One that failed contradicts its claims; one with another status came to no answer.
    """

    test: str
    status: str
    reason: str
    claims: Sequence[str] = ()

    @property
    def is_contradiction(self) -> bool:
        return self.status == "failed"


@dataclass(frozen=True)
class RunReport:
    """One run on one machine.

    machine     the fingerprint
    sources     the sources of the claims, by key
    red_tests   the tests that did not pass
    unmeasured  the benchmarks that were chosen and have no figure, each with the reason
    peaks       the peaks that are not the vendor's (see Peaks), a CPU's at `clock_mhz`
    caches      bytes of data cache by level
    floors      the figures for which --floor states a floor
    undecided_fails  True if such a floor fails the run where it could not be judged
    in_part     the claims without a verdict, as the command line left out tests of them
    known_claims  the number of claims that the registry has
    partial     why the run is partial; empty for a whole one
    unfinished  the tests that are left, and why; empty for a run that has ended
    resume      the command that runs these tests; empty if only the whole run can be repeated
    """

    machine: Mapping[str, Any]
    claims: tuple[Verdict, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    benchmarks: tuple[Measurement, ...] = ()
    red_tests: tuple[RedTest, ...] = ()
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    peaks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clock_mhz: float = 0.0
    caches: Mapping[str, int] = field(default_factory=dict)
    date: str = ""
    duration_s: float | None = None
    command: str = ""
    arguments: tuple[str, ...] = ()
    revision: str = ""
    version: str = ""
    pace: str = ""
    floors: tuple[str, ...] = ()
    undecided_fails: bool = False
    in_part: tuple[str, ...] = ()
    known_claims: int = 0
    partial: str = ""
    unfinished: str = ""
    resume: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The versions of the methods with which the benchmarks were measured."""
        found = {str(each.info["method"]) for each in self.benchmarks if "method" in each.info}
        return tuple(sorted(found))

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims per verdict, in the order of VERDICTS."""
        found = Counter(claim.verdict for claim in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def with_verdicts(self, *verdicts: str) -> list[Verdict]:
        return [claim for claim in self.claims if claim.verdict in verdicts]

    @property
    def red_benchmarks(self) -> list[RedTest]:
        """The tests without a claim that contradict something, such as a floor."""
        return [each for each in self.red_tests if not each.claims and each.is_contradiction]

    @cached_property
    def figures(self) -> list[delivery.Figure]:
        """The figures that the device delivers, the important ones first."""
        return delivery.figures(self.benchmarks)

    @property
    def bars(self) -> list[Bar]:
        """A bar for each figure, then for each that a buyer pays for and no benchmark measured."""
        missing = delivery.unmeasured_figures(self.figures, self.unmeasured)
        return delivery.bars([*self.figures, *missing]) if self.figures else []

    @property
    def undecided_floors(self) -> list[delivery.Figure]:
        """The figures whose stated floor could not be judged."""
        return delivery.undecided_floors(self.figures, () if self.unfinished else self.floors)

    @property
    def failing_floors(self) -> list[delivery.Figure]:
        """The figures whose stated floor fails the run, as it could not be judged."""
        return self.undecided_floors if self.undecided_fails else []

    @property
    def errors(self) -> list[RedTest]:
        """The tests that crashed, hung or ended by another error."""
        return [each for each in self.red_tests if not each.is_contradiction]


def by_topic(claims: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """The claims of each topic, in the order of the registry."""
    topics: dict[str, list[Verdict]] = {}
    for verdict in claims:
        topics.setdefault(verdict.claim.topic, []).append(verdict)
    return topics


# Claims that one interruption left open have one reason, however many of their tests ran.
COUNTED_TESTS = re.compile(r"^\d+ of \d+ tests? ran: ")


def unchecked(claims: Iterable[Verdict], in_part: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """The reasons for unchecked claims, and that some ran in part; each with the claims' ids."""
    reasons: dict[str, list[str]] = {}
    for claim in claims:
        if claim.verdict == "not checked":
            reason = COUNTED_TESTS.sub("", claim.reason)
            reasons.setdefault(f"not checked, {reason}", []).append(claim.id)
    parts = [("ran in part (--claim=ID runs all tests of a claim)", in_part)] if in_part else []
    return [*reasons.items(), *parts]


def run_report(
    record: Mapping[str, Any],
    verdicts: Sequence[Verdict],
    registry: Registry,
    resume: str = "",
) -> RunReport:
    """The report of a run, made of its record (see docs/how-to/history.md) and its verdicts.

    `resume` is the command that resumes it, if any.
    """
    ours = record["prooflops"]
    commit = record.get("commit_info") or {}
    revision = str(commit.get("id") or "")
    arguments = tuple(map(str, ours["arguments"]))
    benchmarks = reconciled(map(Measurement.of, record["benchmarks"]))
    benchmarks, derived, clock_mhz = at_one_clock(benchmarks, ours["peaks"].get(DERIVED, {}))
    return RunReport(
        machine=ours["fingerprint"],
        claims=tuple(verdicts),
        sources=registry.sources,
        benchmarks=benchmarks,
        red_tests=tuple(RedTest(**row) for row in ours.get("red_tests", ())),
        unmeasured={row["test"]: row["reason"] for row in ours.get("unmeasured", ())},
        peaks={**ours["peaks"], DERIVED: derived},
        clock_mhz=clock_mhz,
        caches=ours["caches"],
        date=str(record.get("datetime") or ""),
        duration_s=ours["duration_s"],
        command=ours.get("command") or command_of(PYTEST, arguments),
        arguments=arguments,
        revision=revision + " with uncommitted changes" * bool(commit.get("dirty")),
        version=ours["version"],
        pace=ours["pace"],
        floors=tuple(ours.get("floors", ())),
        undecided_fails=ours["undecided_fails"],
        in_part=tuple(ours.get("in_part", ())),
        known_claims=len(registry.claims),
        partial=ours["partial"] or ours["selection"],
        unfinished=ours["partial"],
        resume=resume,
    )


def verdicts_json(report: RunReport) -> str:
    """The text of verdicts.json, a run's results for programs, by verdicts.schema.json."""
    mark, text = delivery.answer(report.figures, report.benchmarks, report.unfinished)
    content = {
        "schema": SCHEMA,
        "prooflops": report.version,
        **{key: getattr(report, key) for key in RUN_KEYS},
        "whole": not report.partial,
        "partial": report.partial,
        "machine": dict(report.machine),
        "versions": {key: report.machine.get(key) for key in VERSION_KEYS},
        "verdict": mark.word,
        "verdict_text": text,
        "delivers": [each.as_dict() for each in report.figures],
        "red_tests": [asdict(each) for each in report.red_tests],
        "unmeasured": dict(report.unmeasured),
        "counts": report.counts,
        "claims": [_claim(report, each) for each in report.claims],
    }
    return json.dumps(content, indent=1, default=str) + "\n"


def _claim(report: RunReport, verdict: Verdict) -> dict[str, Any]:
    cited = [(report.sources[each.source], each.place) for each in verdict.claim.citations]
    return {
        **verdict.as_dict(),
        **{key: getattr(verdict.claim, key) for key in CLAIM_KEYS},
        "sources": [
            {"title": source.title, "locator": place, "url": source.url} for source, place in cited
        ],
    }
