"""The evidence of a test reaches the verdicts unchanged when pytest serialises its reports."""

import json
from types import SimpleNamespace

import pytest

from prooflops.suite.run import Evidence, evidence_of, outcome_of, shortened

LONG = "the sum is 3, but should be 4 [tensor([[1., 2.],\n        [3., 4.]])]\nassert 3 == 4"
EVIDENCE = Evidence(["demo.one", "demo.two"], figures=["1.62x slower", "7 %, noisy"], cases=100)


def report(outcome: str, evidence: Evidence, longrepr: object = None) -> pytest.TestReport:
    made = pytest.TestReport("test_a.py::test_it", ("test_a.py", 1, "test_it"), {}, outcome, longrepr, "call")
    evidence.attach(made)
    return made


def test_evidence_survives_the_serialisation_of_a_report(pytestconfig: pytest.Config) -> None:
    """As for workers of pytest-xdist and the processes of the gate."""
    data = pytestconfig.hook.pytest_report_to_serializable(config=pytestconfig, report=report("passed", EVIDENCE))
    read = pytestconfig.hook.pytest_report_from_serializable(config=pytestconfig, data=json.loads(json.dumps(data)))
    assert evidence_of(read) == EVIDENCE
    outcome = outcome_of(read)
    assert outcome is not None
    assert (outcome.status, outcome.cases, outcome.figures) == ("passed", 100, ("1.62x slower", "7 %, noisy"))


def test_a_report_of_a_process_that_only_starts_others_has_no_evidence() -> None:
    assert evidence_of(pytest.TestReport("a", ("a", 1, "a"), {}, "passed", None, "call")) == Evidence([])


@pytest.mark.parametrize(("unmet", "status"), [("", "skipped"), ("needs a CUDA device", "unmet")])
def test_a_test_skipped_for_hardware_is_told_from_others(unmet: str, status: str) -> None:
    outcome = outcome_of(report("skipped", Evidence(["demo.one"], unmet=unmet), ("test_a.py", 1, "Skipped: why")))
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (status, "why")


def test_a_reason_is_the_whole_message_without_pytests_own_explanation() -> None:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=f"AssertionError: {LONG}"))
    outcome = outcome_of(report("failed", Evidence(["demo.one"]), crash))
    assert outcome is not None
    said = "AssertionError: the sum is 3, but should be 4 [tensor([[1., 2.], [3., 4.]])]"
    assert (outcome.status, outcome.reason) == ("failed", said)
    assert shortened("x" * 1000).endswith("... (1,000 characters)")


def test_the_reason_of_an_exception_that_was_not_raised_names_the_test() -> None:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="Failed: DID NOT WARN. No A. Emitted warnings: []."))
    outcome = outcome_of(report("failed", Evidence(["demo.one"]), crash))
    assert outcome is not None
    assert outcome.reason == "Failed: DID NOT WARN. No A. [test_it]"


def test_a_crash_is_an_error_with_its_reason() -> None:
    outcome = outcome_of(report("failed", Evidence(["demo.one"], crash="KeyError: 'bf16'")))
    assert outcome is not None
    assert (outcome.status, outcome.reason) == ("error", "KeyError: 'bf16'")
