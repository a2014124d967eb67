"""The registry's claims about any model, answered for the user's own.

Tests of a user's model are marked `@pytest.mark.claim_of_model(id)`, not `claim`: what holds for one model is no
verdict on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import Outcome

MARKER = "claim_of_model"
DOES_NOT_APPLY = "does not apply"


@dataclass(frozen=True)
class Answer:
    """The answer to one claim for the user's model."""

    claim: str
    statement: str
    verdict: str  # holds | corrected | FAILS | error | does not apply | not checked
    reason: str  # why it fails, does not apply, or was not checked; the correction of a wrong claim
    figures: tuple[str, ...]


def answer_of(claim: Claim, outcomes: Sequence[Outcome]) -> Answer:
    """One answer from all tests: a failure decides, then a crash, what was not checked, and what does not apply."""

    def reasons(selected: Iterable[Outcome]) -> str:
        return "; ".join(dict.fromkeys(outcome.reason.removeprefix(f"{DOES_NOT_APPLY}: ") for outcome in selected))

    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    errors = [outcome for outcome in outcomes if outcome.status == "error"]
    not_applicable = [outcome for outcome in outcomes if outcome.reason.startswith(DOES_NOT_APPLY)]
    settled = (*failed, *errors, *not_applicable)
    unchecked = [outcome for outcome in outcomes if outcome.status != "passed" and outcome not in settled]
    if failed:
        verdict, reason = "FAILS", reasons(failed)
    elif errors:
        verdict, reason = "error", reasons(errors)
    elif unchecked:
        verdict, reason = "not checked", reasons(unchecked)
    elif not_applicable:
        verdict, reason = DOES_NOT_APPLY, reasons(not_applicable)
    else:
        verdict, reason = ("corrected", claim.correction) if claim.written == "wrong" else ("holds", "")
    figures = tuple(figure for outcome in outcomes for figure in outcome.figures)
    return Answer(claim.id, claim.statement, verdict, reason, figures)
