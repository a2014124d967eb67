"""One verdict per claim, from the outcomes of its tests. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prooflops.suite.registry import Claim

VERDICTS = ("holds", "holds if", "corrected", "FAILS", "error", "not checked", "on record")
RED = ("FAILS", "error")
WRITTEN_VERDICTS = {"holds": "holds", "holds-if": "holds if", "wrong": "corrected"}  # where all tests pass


@dataclass(frozen=True)
class Outcome:
    """The result of one test of a claim."""

    test: str
    # passed | failed | error (it crashed) | unmet (hardware it needs is absent) | skipped | unrun (it did not run)
    status: str
    reason: str = ""
    cases: int = 1
    duration: float = 0.0
    figures: tuple[str, ...] = ()
    known: bool = False  # a failure that --known-failures lists


@dataclass(frozen=True)
class Verdict:
    """The answer for one claim in one run."""

    id: str
    verdict: str
    reason: str
    cases: int
    duration: float
    figures: tuple[str, ...] = ()
    known: bool = False
    tests: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "topic": self.topic}


def verdict_of(claim: Claim, outcomes: Sequence[Outcome]) -> Verdict:
    """One verdict from all outcomes of a claim's tests.

    A failure decides against everything else, then a crash. A claim with a test that did not run or was skipped is not
    checked, whatever the reason, unless that test was skipped for hardware that the claim as a whole does not need, and
    other tests of it passed; those skipped are then named in the reason.
    """
    by_status: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_status[outcome.status].append(outcome)
    passed, failed, errors = by_status["passed"], by_status["failed"], by_status["error"]
    skipped, unmet, unrun = by_status["skipped"], by_status["unmet"], by_status["unrun"]
    red = failed or errors
    statement = _joined([claim.condition, claim.correction, claim.note if claim.on_record else ""])
    if red:
        verdict, reason = "FAILS" if failed else "error", _reasons([each for each in red if not each.known] or red)
    elif unrun:
        verdict = "not checked"
        reason = f"{len(outcomes) - len(unrun)} of {len(outcomes)} tests ran: {_reasons(unrun)}"
    elif skipped:
        verdict, reason = "not checked", _reasons(skipped)
    elif passed:
        verdict = "on record" if claim.on_record else WRITTEN_VERDICTS[claim.written]
        missing = f"{len(unmet)} of {len(outcomes)} tests not run here: {_reasons(unmet)}" if unmet else ""
        reason = _joined([statement, missing])
    elif claim.on_record and not outcomes:
        verdict, reason = "on record", statement or "a sourced fact that no machine can settle"
    else:
        verdict, reason = "not checked", _reasons(unmet) or "no test of it ran"
    return Verdict(
        id=claim.id,
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
