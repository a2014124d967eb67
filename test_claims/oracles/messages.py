"""Assertions that build their own messages: `WHAT: GOT, but should be SHOULD [CASE]`.

`what` names the value, as the code or the field does: "the peak in bytes", "activation_bytes". The
case is whatever else a reader needs to repeat the call, as keywords:

    equal(net(x).dtype, torch.bfloat16, "the output's dtype", layer=name)
    # the output's dtype: torch.float32, but should be torch.bfloat16 [layer='Linear']

    agree("bytes kept", got=got, formula=activation_bytes(model, batch), by_hand=4 * batch * dim)
    # bytes kept should agree: got=80, formula=80, by_hand=96

A failure points at the claim's line: pytest leaves these functions out of the traceback.
"""

import pytest
from torch import Tensor

from test_claims.oracles.tensors import difference


def text(value):
    """A float to six digits, anything else as Python writes it."""
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def listed(values):
    return ", ".join(f"{name}={text(value)}" for name, value in values.items())


def with_case(found, case):
    return f"{found} [{listed(case)}]" if case else found


def unlike(got, should, what, case):
    return with_case(f"{what}: {got}, but should be {should}", case)


def equal(got, should, what, **case):
    """Asserts that two values are equal; of tensors, the shape and every value."""
    __tracebackhide__ = True
    if isinstance(got, Tensor):
        wrong = difference(got, should)
        assert not wrong, with_case(f"{what}: {wrong}", case)
    else:
        assert got == should, unlike(repr(got), repr(should), what, case)


def agree(what, **values):
    """Asserts that all these values are equal, such as a count, a formula and a sum by hand."""
    __tracebackhide__ = True
    first, *others = values.values()
    for other in others:
        assert other == first, f"{what} should agree: {listed(values)}"


def close(got, should, what, rel=None, within=None, **case):
    """Asserts that a number, or each of several, is near: `rel` of it, or `within` so much.

    Defaults are those of `pytest.approx`: a millionth, or 1e-12.
    """
    __tracebackhide__ = True
    near = pytest.approx(should, rel=rel, abs=within)
    assert got == near, unlike(text(got), near, what, case)


def at_most(got, most, what, **case):
    """Asserts an upper bound."""
    __tracebackhide__ = True
    assert got <= most, unlike(text(got), f"at most {text(most)}", what, case)


def at_least(got, least, what, **case):
    """Asserts a lower bound."""
    __tracebackhide__ = True
    assert got >= least, unlike(text(got), f"at least {text(least)}", what, case)


def between(got, least, most, what, **case):
    """Asserts both bounds."""
    __tracebackhide__ = True
    span = f"from {text(least)} to {text(most)}"
    assert least <= got <= most, unlike(text(got), span, what, case)
