"""One answer for the user's model from all tests of a claim."""

import pytest

from prooflops.model.claims import answer_of
from prooflops.suite.registry import Claim
from prooflops.suite.verdicts import Outcome

HOLDS = Claim("demo.one", "It is so.", ("lecture",), "holds", "behaviour")
WRONG = Claim("demo.two", "It is not.", ("lecture",), "wrong", "behaviour", correction="It is otherwise.")
PASSED, FAILED = Outcome("a", "passed", figures=("3 B",)), Outcome("b", "failed", "3 is not 4")
NOT_APPLICABLE, UNCHECKED = (
    Outcome("c", "skipped", "does not apply: no weight is tied"),
    Outcome("d", "skipped", "no peak"),
)


@pytest.mark.parametrize(
    ("claim", "outcomes", "verdict", "reason"),
    [
        (HOLDS, [PASSED], "holds", ""),
        (WRONG, [PASSED], "corrected", "It is otherwise."),
        (HOLDS, [NOT_APPLICABLE, PASSED, UNCHECKED, FAILED], "FAILS", "3 is not 4"),
        (HOLDS, [PASSED, NOT_APPLICABLE, UNCHECKED], "not checked", "no peak"),
        (WRONG, [PASSED, NOT_APPLICABLE], "does not apply", "no weight is tied"),
    ],
)
def test_one_answer_from_all_tests_of_a_claim(claim: Claim, outcomes: list[Outcome], verdict: str, reason: str) -> None:
    answer = answer_of(claim, outcomes)
    assert (answer.verdict, answer.reason) == (verdict, reason)
