"""A failed assertion contradicts a claim; anything else that ends a test is a crash."""

import pytest
import torch
from hypothesis import given, settings, strategies

from prooflops.suite.crashes import crash_of

INTEGERS = strategies.integers(min_value=0, max_value=100)
quick = settings(max_examples=50, database=None)


def raised_by(function):
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        function()
    return caught.value


@given(x=INTEGERS)
@quick
def crashes_and_is_wrong(x):
    if x > 50:
        raise KeyError(x)
    assert x < 10


def did_not_raise():
    with pytest.raises(ValueError):
        pass


@pytest.mark.parametrize(
    "function",
    [
        lambda: pytest.fail("no"),
        did_not_raise,
        crashes_and_is_wrong,
        lambda: torch.testing.assert_close(torch.ones(1), torch.zeros(1)),
    ],
    ids=["fail", "raises", "group", "assert_close"],
)
def test_a_failed_assertion_of_any_form_is_no_crash(function):
    assert crash_of(raised_by(function)) == ""
