"""How outcomes become a verdict."""

import pytest

from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import Outcome, verdict_of

STATUSES = ("passed", "failed", "error", "unmet", "skipped", "unrun")


def claim(written: str = "holds", **rest: object) -> Claim:
    fields = {"condition": "", "correction": "", "needs": (), "kind": "number", **rest}
    return Claim(id="demo.it", statement="It is.", sources=("s",), written=written, **fields)  # type: ignore[arg-type]


def outcomes(*statuses: str) -> list[Outcome]:
    return [Outcome(f"test_{index}", status, reason=f"why {status}") for index, status in enumerate(statuses)]


@pytest.mark.parametrize("other", STATUSES)
@pytest.mark.parametrize("on_record", [False, True])
def test_one_failure_decides_against_everything_else(other: str, on_record: bool) -> None:
    verdict = verdict_of(claim(on_record=on_record), outcomes(other, "failed"))
    assert verdict.verdict == "FAILS"
    assert verdict.reason == "why failed"
    assert not verdict.known


@pytest.mark.parametrize("others", [(), ("passed",), ("unmet",), ("passed", "unmet")])
@pytest.mark.parametrize("on_record", [False, True])
def test_a_skipped_test_never_counts_as_holding(others: tuple[str, ...], on_record: bool) -> None:
    verdict = verdict_of(claim(on_record=on_record), outcomes(*others, "skipped"))
    assert verdict.verdict == "not checked"
    assert verdict.reason == "why skipped"
