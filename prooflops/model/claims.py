"""The registry's claims about any model, answered for the user's own.

Tests of a user's model are marked `@pytest.mark.claim_of_model(id)`, not `claim`: what holds for
one model is no verdict on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import DOES_NOT_APPLY, Outcome, verdict_of

MARKER = "claim_of_model"


@dataclass(frozen=True)
class Answer:
    """The answer to one claim for the user's model."""

    claim: str
    statement: str
    verdict: str  # holds | corrected | FAILS | error | does not apply | not checked
    reason: str  # why it fails, does not apply, or was not checked; the correction of a wrong claim
    figures: tuple[str, ...]


def answer_of(claim: Claim, outcomes: Sequence[Outcome]) -> Answer:
    """One answer from all tests, by `verdict_of`: a test that lacks hardware leaves the claim
    unchecked here.
    """
    found = verdict_of(claim, [_as_of_a_model(outcome) for outcome in outcomes])
    verdict = "holds" if found.verdict in ("holds if", "on record") else found.verdict
    return Answer(
        claim.id,
        claim.statement,
        verdict,
        "" if verdict == "holds" else found.reason,
        found.figures,
    )


def _as_of_a_model(outcome: Outcome) -> Outcome:
    if outcome.reason.startswith(DOES_NOT_APPLY):
        return replace(
            outcome,
            status="not applicable",
            reason=outcome.reason.removeprefix(f"{DOES_NOT_APPLY}: "),
        )
    return replace(outcome, status="skipped") if outcome.status == "unmet" else outcome
