"""The state of one run: the device, the registry, and the outcome of each test that settles a claim."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field

import pytest
import torch

from prooflops.suite.registry import Claim, Registry
from prooflops.suite.verdicts import Outcome, Verdict, verdict_of


@dataclass
class Evidence:
    """The facts about a test of claims besides its outcome; kept on the item, and on its reports as a dict."""

    claims: list[str]
    figures: list[str] = field(default_factory=list)
    cases: int = 0
    unmet: str = ""  # the hardware that it needs and this machine lacks

    def attach(self, report: pytest.TestReport) -> None:
        """Puts it on a report, as a dict of plain values: those survive pytest's own serialisation, as for xdist."""
        report.evidence = asdict(self)  # type: ignore[attr-defined]

    @property
    def properties(self) -> list[tuple[str, object]]:
        """The same for readers of JUnit's XML, as properties of the test."""
        rows = [("claim", claim) for claim in self.claims] + [("figure", figure) for figure in self.figures]
        return [*rows, ("cases", self.cases), *([("unmet", self.unmet)] if self.unmet else [])]


EVIDENCE = pytest.StashKey[Evidence]()


class Run:
    """The plugin that collects the outcomes of the claims' tests in one run."""

    def __init__(
        self,
        device: torch.device,
        pace: str,
        registry: Registry,
        selected: frozenset[str] | None,
        known: frozenset[str],
    ) -> None:
        self.device = device
        self.pace = pace
        self.registry = registry
        self.selected = selected
        self.known = known
        self.outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if outcome := outcome_of(report):
            for claim in evidence_of(report).claims:
                self.outcomes[claim].append(outcome)

    def verdicts(self) -> list[Verdict]:
        """A verdict for each claim this run had a test of, and the on-record ones of its topics, as in the registry."""
        topics = {claim.partition(".")[0] for claim in self.outcomes}

        def concerned(claim: Claim) -> bool:
            asked = claim.topic in topics if self.selected is None else claim.id in self.selected
            return claim.id in self.outcomes or (asked and claim.on_record)

        rows = self.registry.claims.values()
        return [verdict_of(claim, self.outcomes.get(claim.id, [])) for claim in rows if concerned(claim)]


RUN = pytest.StashKey[Run]()


def evidence_of(report: pytest.TestReport) -> Evidence:
    """The evidence on a report; none on that of a process that only starts others."""
    found = getattr(report, "evidence", None)
    return Evidence(**found) if found else Evidence([])


def outcome_of(report: pytest.TestReport) -> Outcome | None:
    """The outcome that a report decides; None for a setup or teardown that passed."""
    if report.when != "call" and report.passed:
        return None
    evidence = evidence_of(report)
    return Outcome(
        test=report.nodeid,
        status=_status(report, evidence),
        reason=_reason(report),
        cases=evidence.cases,
        duration=report.duration,
        figures=tuple(evidence.figures),
    )


def _status(report: pytest.TestReport, evidence: Evidence) -> str:
    if hasattr(report, "wasxfail"):
        return "known" if report.skipped else "passed"
    if report.skipped:
        return "unmet" if evidence.unmet else "skipped"
    return report.outcome


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        text = str(report.longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr or "")
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else report.outcome
