"""The state of one run: the device, the registry, and the outcome of each test of a claim."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from prooflops.machine import device as machine
from prooflops.suite.floors import Floors
from prooflops.suite.peaks import Peaks
from prooflops.suite.registry import Registry
from prooflops.suite.verdicts import Outcome, Verdict, verdicts_of


@dataclass
class Evidence:
    """A claim test's facts other than its outcome. Items hold it; reports hold it as a dict."""

    claims: list[str]
    figures: list[str] = field(default_factory=list)
    cases: int = 0
    # The required hardware that this machine lacks.
    unmet: str = ""
    # The error that ended it, if it does not contradict its claims, and whose fault that may be.
    crash: str = ""
    fault: str = ""

    @property
    def properties(self) -> list[tuple[str, object]]:
        """The same as test properties in JUnit's XML."""
        rows: list[tuple[str, object]] = [("claim", claim) for claim in self.claims]
        rows += [("figure", figure) for figure in self.figures]
        texts = {"unmet": self.unmet, "crash": self.crash, "fault": self.fault}
        rows += [(key, text) for key, text in texts.items() if text]
        rows.append(("cases", self.cases))
        return rows


EVIDENCE = pytest.StashKey[Evidence]()
LONGEST_REASON = 600


@dataclass(eq=False)
class Run:
    """Collects the outcomes of one run's claim tests, as a plugin."""

    device: torch.device
    pace: str
    registry: Registry
    selected: frozenset[str] | None
    known: frozenset[str]
    peaks: Peaks
    floors: Floors
    outcomes: defaultdict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))
    # All tests of each claim, each with the reason to report if it does not run.
    tests: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    # The selected tests, each with its claims.
    chosen: dict[str, list[str]] = field(default_factory=dict)
    red_tests: list[dict[str, Any]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    # Why the run ended early, if it did.
    stopped: str = ""
    # Settings of the machine that this run ignores.
    notes: list[str] = field(default_factory=list)
    # Read at the start: a lost device cannot be read.
    fingerprint: dict[str, Any] = field(default_factory=dict)
    # Bytes of data cache by level.
    caches: dict[str, int] = field(default_factory=dict)
    # The command line's selection; empty for the whole suite.
    selection: str = ""
    began: float = field(default_factory=time.monotonic)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = {
            item.nodeid: item.stash[EVIDENCE].claims
            for item in session.items
            if EVIDENCE in item.stash
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.ended.add(report.nodeid)
        outcome = outcome_of(report)
        if outcome is None:
            return
        claims = evidence_of(report).claims
        for claim in claims:
            self.outcomes[claim].append(outcome)
        if outcome.status in ("failed", "error") and not outcome.known:
            self._note_red(outcome, claims)

    def _note_red(self, outcome: Outcome, claims: Sequence[str]) -> None:
        facts = {key: getattr(outcome, key) for key in ("test", "status", "reason", "fault")}
        self.red_tests.append({**facts, "claims": [*claims]})

    def verdicts(self) -> list[Verdict]:
        """Verdicts of this run's claims, and of the on-record claims in their topics."""
        ran = {outcome.test for outcomes in self.outcomes.values() for outcome in outcomes}
        outcomes = {claim: [*found] for claim, found in self.outcomes.items()}
        unrun = self.unchosen()
        for test, claims in self.chosen.items():
            if test in ran:
                continue
            for claim in claims:
                unrun.setdefault(claim, {})[test] = self.stopped or "the run ended before them"
        tested = {claim for claims in self.chosen.values() for claim in claims}
        return verdicts_of(self.registry, tested, outcomes, unrun, self.selected)

    def unchosen(self) -> dict[str, dict[str, str]]:
        """Per claim, its tests that were not chosen to run, each with the reason."""
        found = {}
        for claim, tests in self.tests.items():
            left_out = {test: why for test, why in tests.items() if test not in self.chosen}
            if left_out:
                found[claim] = left_out
        return found

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def headline(self) -> list[str]:
        """The header: machine, software, peaks not from the vendor, and ignored settings."""
        return [
            *machine.headline(self.device, self.fingerprint),
            *self.peaks.headline(),
            *self.notes,
        ]

    @property
    def partial(self) -> str:
        """Why the run stopped early, and after how many tests; empty for a complete run."""
        ended = len(self.ended & self.chosen.keys())
        if ended == len(self.chosen):
            return ""
        return f"{self.stopped or 'ended'}, after {ended} of {len(self.chosen)} tests"


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
        fault=evidence.fault,
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
    # What follows "assert" is pytest's explanation.
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
