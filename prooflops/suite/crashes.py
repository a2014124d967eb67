"""Distinguishes a contradicted claim from a crash of the suite or the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from torch.autograd.gradcheck import GradcheckError

# Exceptions that contradict a claim: from `assert`, `pytest.raises` and `gradcheck`.
CONTRADICTIONS = (AssertionError, pytest.fail.Exception, GradcheckError)


def crash_of(error: BaseException) -> str:
    """The exception in one line if it is a crash; empty for a failed assertion.

    Hypothesis raises one exception unchanged, and groups several. One failed assertion in a group
    contradicts the claim. A failure that the same input does not reproduce does not.

    >>> crash_of(KeyError("bf16")), crash_of(AssertionError("3 is not 4"))
    ("KeyError: 'bf16'", '')
    """
    parts: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if _is_flaky(error):
        found = _joined(map(one_line, parts or (error,)))
        return f"failed once, and passed when repeated with the same input: {found}"
    if parts:
        crashes = [crash_of(part) for part in parts]
        return _joined(crashes) if all(crashes) else ""
    return "" if isinstance(error, CONTRADICTIONS) and not _is_of_torch(error) else one_line(error)


def _is_flaky(error: BaseException) -> bool:
    # Importing hypothesis is a tenth of the start of a process that only measures; unimported,
    # it raised nothing.
    errors = sys.modules.get("hypothesis.errors")
    return errors is not None and isinstance(error, errors.Flaky)


def one_line(error: BaseException) -> str:
    """Type and message of an exception, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _is_of_torch(error: BaseException) -> bool:
    """True if an assertion inside torch failed, such as "Torch not compiled with CUDA enabled"."""
    module = _module_of(error)
    ours = module.startswith("torch.testing") or isinstance(error, GradcheckError)
    return module.partition(".")[0] == "torch" and not ours


def _module_of(error: BaseException) -> str:
    """The module in which an exception was raised."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")) if trace else ""


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
