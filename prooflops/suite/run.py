"""The state of one run: the device, the registry, and the outcome of each test of a claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from accounting.devices.floors import Floor
from prooflops.machine import device as machine
from prooflops.suite.evidence.file import Rows
from prooflops.suite.peaks import Peaks
from prooflops.suite.registry import Registry
from prooflops.suite.verdicts import Outcome


@dataclass
class Evidence:
    """A claim test's facts other than its outcome. Items hold it; reports hold it as a dict."""

    claims: list[str]
    figures: list[str] = field(default_factory=list)
    cases: int = 0
    # The required hardware that this machine lacks.
    unmet: str = ""
    # The error that ended it, if it does not contradict its claims.
    crash: str = ""


EVIDENCE = pytest.StashKey[Evidence]()
LONGEST_REASON = 600


@dataclass(eq=False)
class Run:
    """The state of one run."""

    device: torch.device
    pace: str
    registry: Registry
    selected: frozenset[str] | None
    known: frozenset[str]
    peaks: Peaks
    stated_floors: Mapping[str, float]
    reference_floors: Mapping[str, Floor] | None
    rows: Rows = field(default_factory=Rows)
    # All tests of each claim; a file that was not collected stands for its tests.
    tests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # Settings of the machine that this run ignores.
    notes: list[str] = field(default_factory=list)
    # Read at the start: a lost device cannot be read.
    fingerprint: dict[str, Any] = field(default_factory=dict)

    def in_part(self, chosen: Collection[str]) -> list[str]:
        """The claims with some tests that the command line chose and some that it left out."""
        here = {*chosen}
        return [claim for claim, tests in self.tests.items() if tests & here and tests - here]

    @property
    def headline(self) -> list[str]:
        """The header: machine, software, peaks not from the vendor, and ignored settings."""
        return [
            *machine.headline(self.device, self.fingerprint),
            *self.peaks.headline(),
            *self.notes,
        ]


RUN = pytest.StashKey[Run]()


def evidence_of(report: pytest.TestReport) -> Evidence:
    """The evidence on a report; empty in a process that only starts others."""
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
        reason=evidence.crash or _reason(report),
        cases=evidence.cases,
        duration=report.duration,
        figures=tuple(evidence.figures),
        known=report.skipped and hasattr(report, "wasxfail"),
    )


def _status(report: pytest.TestReport, evidence: Evidence) -> str:
    if report.skipped and not hasattr(report, "wasxfail"):
        return "unmet" if evidence.unmet else "skipped"
    if report.passed:
        return "passed"
    return "error" if evidence.crash else "failed"


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        # A skipped test has file, line and reason.
        text = str(report.longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr or "")
    # The text after "assert" is pytest's explanation.
    message = text.strip().partition("\nassert ")[0]
    # pytest.raises and pytest.warns do not name the input.
    if message.startswith("Failed: DID NOT "):
        test = report.nodeid.rpartition("::")[2]
        message = f"{message.partition(' Emitted warnings')[0]} [{test}]"
    return shortened(" ".join(message.split())) or report.outcome


def shortened(text: str) -> str:
    if len(text) <= LONGEST_REASON:
        return text
    return f"{text[:LONGEST_REASON]} ... ({len(text):,} characters)"
