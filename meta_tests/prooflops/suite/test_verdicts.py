"""How outcomes become a verdict."""

import pytest

from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import Outcome, verdict_of


def claim(on_record):
    return Claim(
        "demo.it", "It is.", sources=("s",), written="holds", kind="number", on_record=on_record
    )


def outcomes(*statuses):
    return [
        Outcome(f"test_{index}", status, reason=f"why {status}")
        for index, status in enumerate(statuses)
    ]


@pytest.mark.parametrize("other", ["passed", "failed", "error", "unmet", "skipped", "unrun"])
@pytest.mark.parametrize("on_record", [False, True])
def test_one_failure_decides_against_everything_else(other, on_record):
    verdict = verdict_of(claim(on_record), outcomes(other, "failed"))
    assert verdict.verdict == "FAILS"
    assert verdict.reason == "why failed"
    assert not verdict.known
    assert len(verdict.tests) == (1 if other == "unrun" else 2), "those that ran"


def test_a_known_failure_hides_no_other():
    known = Outcome("test_known", "failed", reason="listed", known=True)
    assert verdict_of(claim(False), [known]).line == "FAILS (known): listed"
    both = verdict_of(claim(False), [known, *outcomes("failed")])
    assert (both.known, both.reason) == (False, "why failed")
