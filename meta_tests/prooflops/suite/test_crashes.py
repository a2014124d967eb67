"""A failed assertion contradicts a claim; anything else that ends a test is a crash."""

from itertools import count

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


@given(x=INTEGERS)
@quick
def crashes_twice(x):
    raise (KeyError if x > 50 else ValueError)("bf16")


def fails_once():
    calls = count()

    @given(x=INTEGERS)
    @quick
    def fails(x):
        assert next(calls), "at first"

    fails()


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


def test_all_crashes_of_a_property_are_named():
    crashes = crash_of(raised_by(crashes_twice))
    assert {*crashes.split("; ")} == {"KeyError: 'bf16'", "ValueError: bf16"}


def test_a_failure_that_the_same_input_does_not_repeat_is_a_crash():
    assert crash_of(raised_by(fails_once)).startswith("failed once, and passed when repeated")


@pytest.mark.parametrize(
    ("module", "is_crash"),
    [("torch.cuda", True), ("torch.testing._internal", False), ("torchvision", False)],
)
def test_an_assertion_inside_torch_contradicts_no_claim(module, is_crash):
    def fails():
        exec("assert False, 'no CUDA'", {"__name__": module})

    assert bool(crash_of(raised_by(fails))) is is_crash
