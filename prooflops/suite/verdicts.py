"""Derives one verdict per claim from its tests' outcomes. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from prooflops.suite.registry import Claim, Registry
from prooflops_gate.console.tables import many

VERDICTS = ("holds", "holds if", "corrected", "FAILS", "error", "not checked", "on record")
RED = ("FAILS", "error")
# Begins the reason of a crash after which the process cannot use the device.
LOST = "the device is lost: "
# A slip is known from the record alone, whatever tests say of its correction.
VERDICT_IF_ALL_PASS = {
    "holds": "holds",
    "holds-if": "holds if",
    "wrong": "corrected",
    "slip": "on record",
}


@dataclass(frozen=True)
class Outcome:
    """The result of one test of a claim."""

    test: str
    # passed | failed | error (it crashed) | unmet (hardware it needs is absent) | skipped | unrun
    # (it did not run)
    status: str
    reason: str = ""
    cases: int = 1
    duration: float = 0.0
    figures: tuple[str, ...] = ()
    # A failure that --known-failures lists.
    known: bool = False


@dataclass(frozen=True)
class Verdict:
    """The answer for one claim in one run."""

    claim: Claim
    verdict: str
    reason: str
    cases: int
    duration: float
    figures: tuple[str, ...]
    known: bool
    tests: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.claim.id

    @property
    def line(self) -> str:
        """The printed verdict: with the condition for a holds-if claim, else with the reason."""
        if self.verdict == "holds if":
            return f"holds if {self.reason}"
        return self.verdict + " (known)" * self.known + (f": {self.reason}" if self.reason else "")

    def as_dict(self) -> dict[str, Any]:
        """The verdict as a record keeps it: without the claim's row in the registry."""
        own = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {"id": self.id, **own, "topic": self.claim.topic}


def verdicts_of(
    registry: Registry,
    outcomes: Mapping[str, Sequence[Outcome]],
    selected: Collection[str] | None = None,
) -> list[Verdict]:
    """Verdicts of the tested claims and of the on-record claims in their topics, in registry order.

    `selected`: the claims that --claim names.
    """
    topics = {claim.partition(".")[0] for claim in outcomes}
    found = []
    for claim in registry.claims.values():
        is_selected = claim.topic in topics if selected is None else claim.id in selected
        if is_selected and (claim.id in outcomes or claim.on_record):
            found.append(verdict_of(claim, outcomes.get(claim.id, ())))
    return found


def verdict_of(claim: Claim, outcomes: Sequence[Outcome]) -> Verdict:
    """One verdict from all outcomes of a claim's tests: the first of these that applies.

    A test failed: FAILS. A test crashed: error. A test did not run, or was skipped: not checked.
    Tests passed: the verdict of how the claim is written. Tests skipped for hardware that only they
    need leave that verdict as it is, and are named in its reason.
    """
    by_status: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_status[outcome.status].append(outcome)
    passed, failed, errors = by_status["passed"], by_status["failed"], by_status["error"]
    unmet, unrun = by_status["unmet"], by_status["unrun"]
    of_all = many(len(outcomes), "test")
    red = failed or errors
    statement = _joined([claim.condition, claim.correction, claim.note if claim.on_record else ""])
    if red:
        verdict, reason = (
            "FAILS" if failed else "error",
            _reasons([each for each in red if not each.known] or red),
        )
    elif unrun:
        verdict = "not checked"
        reason = f"{len(outcomes) - len(unrun)} of {of_all} ran: {_reasons(unrun)}"
    elif skipped := by_status["skipped"]:
        verdict, reason = "not checked", _reasons(skipped)
    elif passed:
        verdict = "on record" if claim.on_record else VERDICT_IF_ALL_PASS[claim.written]
        missing = f"{len(unmet)} of {of_all} not run here: {_reasons(unmet)}" if unmet else ""
        reason = _joined([statement, missing])
    elif claim.on_record and not outcomes:
        verdict, reason = "on record", statement or "a sourced fact that no machine can settle"
    else:
        verdict, reason = "not checked", _reasons(unmet) or "none of its tests ran"
    return Verdict(
        claim,
        verdict=verdict,
        reason=reason,
        cases=sum(outcome.cases for outcome in (*passed, *failed, *errors)),
        duration=round(sum(outcome.duration for outcome in outcomes), 4),
        figures=tuple(figure for outcome in outcomes for figure in outcome.figures),
        known=bool(red) and all(outcome.known for outcome in (*failed, *errors)),
        tests=tuple(outcome.test for outcome in outcomes if outcome.status != "unrun"),
    )


def _reasons(outcomes: Iterable[Outcome]) -> str:
    return _joined(dict.fromkeys(outcome.reason for outcome in outcomes))


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)
