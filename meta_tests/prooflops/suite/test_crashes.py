"""A failed assertion contradicts a claim; anything else that ends a test is a crash."""

import pytest
import torch
from hypothesis import given, settings, strategies

from prooflops.suite.crashes import crash_of, fault_of

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


def builds_a_net_in_torch():
    torch.nn.Linear(2, 3)(torch.zeros(5))


def looks_up_a_dtype():
    {}["bf16"]


def imports_what_is_absent():
    import absent_package  # noqa: F401


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (looks_up_a_dtype, "this suite"),
        (builds_a_net_in_torch, "torch, or how this suite calls it"),
        (imports_what_is_absent, "a missing or incompatible package"),
    ],
)
def test_a_crash_names_whose_fault_it_may_be(function, fault):
    assert fault_of(raised_by(function)) == fault
