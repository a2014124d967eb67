"""A failed assertion contradicts a claim; anything else that ends a test is a crash."""

import pytest
import torch
from hypothesis import given, settings, strategies

from prooflops.suite.crashes import crash_of

INTEGERS = strategies.integers(min_value=0, max_value=100)
quick = settings(max_examples=50, database=None)


def raised_by(function) -> BaseException:
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        function()
    return caught.value


@given(x=INTEGERS)
@quick
def looks_up_what_is_missing(x: int) -> None:
    {}["bf16"]


@given(x=INTEGERS)
@quick
def crashes_and_is_wrong(x: int) -> None:
    if x > 50:
        raise KeyError(x)
    assert x < 10


@given(x=INTEGERS)
@quick
def crashes_in_two_ways(x: int) -> None:
    raise KeyError if x > 50 else OverflowError


def did_not_raise() -> None:
    with pytest.raises(ValueError):
        pass


@pytest.mark.parametrize(
    "function",
    [
        lambda: pytest.fail("no"),
        did_not_raise,
        crashes_and_is_wrong,
        lambda: torch.testing.assert_close(torch.ones(1), torch.zeros(1)),
        lambda: torch.autograd.gradcheck(
            lambda x: x.detach() + 0 * x, torch.ones(1, dtype=torch.float64).requires_grad_()
        ),
    ],
    ids=["fail", "raises", "group", "assert_close", "gradcheck"],
)
def test_a_failed_assertion_of_any_form_is_no_crash(function) -> None:
    assert crash_of(raised_by(function)) == ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (looks_up_what_is_missing, "KeyError: 'bf16'"),
        (crashes_in_two_ways, "OverflowError"),
        (lambda: torch.ones(2).view(3), "RuntimeError: shape '[3]' is invalid for input of size 2"),
    ],
    ids=["given", "group", "torch"],
)
def test_another_exception_is_a_crash_and_is_named(function, said: str) -> None:
    assert said in crash_of(raised_by(function))
