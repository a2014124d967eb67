"""How outcomes become a verdict."""

from dataclasses import replace

import pytest

from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import Outcome, verdict_of

STATUSES = ("passed", "failed", "error", "unmet", "skipped", "unrun")


def claim(written: str = "holds", **rest: object) -> Claim:
    fields = {"condition": "", "correction": "", "needs": (), "kind": "number", **rest}
    return Claim(id="demo.it", statement="It is.", sources=("s",), written=written, **fields)  # type: ignore[arg-type]


def outcomes(*statuses: str) -> list[Outcome]:
    return [Outcome(f"test_{index}", status, reason=f"why {status}") for index, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("written", "rest", "verdict"),
    [
        ("holds", {}, "holds"),
        ("holds-if", {"condition": "it rains"}, "holds if"),
        ("wrong", {"correction": "it is not"}, "corrected"),
        ("holds", {"on_record": True}, "on record"),
    ],
)
def test_passed_tests_give_the_verdict_of_how_the_claim_is_written(written: str, rest: dict, verdict: str) -> None:
    assert verdict_of(claim(written, **rest), outcomes("passed", "passed")).verdict == verdict


@pytest.mark.parametrize("other", STATUSES)
@pytest.mark.parametrize("on_record", [False, True])
def test_one_failure_decides_against_everything_else(other: str, on_record: bool) -> None:
    verdict = verdict_of(claim(on_record=on_record), outcomes(other, "failed"))
    assert verdict.verdict == "FAILS"
    assert verdict.reason == "why failed"
    assert not verdict.known


@pytest.mark.parametrize("other", STATUSES)
def test_a_crash_decides_against_everything_but_a_failure(other: str) -> None:
    verdict = verdict_of(claim(), outcomes(other, "error"))
    assert verdict.verdict == ("FAILS" if other == "failed" else "error")


@pytest.mark.parametrize(("status", "verdict"), [("failed", "FAILS"), ("error", "error")])
def test_a_listed_failure_is_known_unless_another_is_beside_it(status: str, verdict: str) -> None:
    listed = replace(outcomes(status)[0], known=True)
    assert (found := verdict_of(claim(), [listed])).known
    assert found.verdict == verdict
    assert not verdict_of(claim(), [listed, *outcomes("failed")]).known, "a failure beside a known one is not known"


@pytest.mark.parametrize("others", [("passed",), ("passed", "skipped"), ("unmet",), ()])
@pytest.mark.parametrize("on_record", [False, True])
def test_a_claim_of_which_a_test_did_not_run_is_not_checked(others: tuple[str, ...], on_record: bool) -> None:
    verdict = verdict_of(claim(on_record=on_record), outcomes(*others, "unrun"))
    assert verdict.verdict == "not checked"
    assert verdict.reason == f"{len(others)} of {len(others) + 1} tests ran: why unrun"
    assert len(verdict.tests) == len(others)


@pytest.mark.parametrize("others", [(), ("passed",), ("unmet",), ("passed", "unmet")])
@pytest.mark.parametrize("on_record", [False, True])
def test_a_skipped_test_never_counts_as_holding(others: tuple[str, ...], on_record: bool) -> None:
    verdict = verdict_of(claim(on_record=on_record), outcomes(*others, "skipped"))
    assert verdict.verdict == "not checked"
    assert verdict.reason == "why skipped"


def test_a_claim_whose_every_test_lacks_hardware_is_not_checked() -> None:
    assert verdict_of(claim(), outcomes("unmet", "unmet")).verdict == "not checked"


def test_a_test_that_lacks_hardware_is_named_beside_those_that_passed() -> None:
    verdict = verdict_of(claim(), outcomes("passed", "unmet"))
    assert verdict.verdict == "holds"
    assert verdict.reason == "1 of 2 tests not run here: why unmet"


def test_no_outcome_is_not_checked_unless_the_claim_is_a_sourced_fact() -> None:
    assert verdict_of(claim(), []).verdict == "not checked"
    assert verdict_of(claim(on_record=True), []).verdict == "on record"


def test_cases_figures_and_durations_add_up() -> None:
    parts = [
        Outcome("a", "passed", cases=100, duration=1.0, figures=("x",)),
        Outcome("b", "passed", cases=3, duration=0.5),
    ]
    verdict = verdict_of(claim(), [*parts, Outcome("c", "unmet")])
    assert (verdict.cases, verdict.duration, verdict.figures) == (103, 1.5, ("x",))
