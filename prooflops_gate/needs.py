"""Refuses to begin without the packages that something needs; imports none of them."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

GATE = ("numpy", "scipy")
SUITE = ("torch", "hypothesis", "einops")


def check(what: str, packages: Sequence[str]) -> None:
    """Raises UsageError that says how to install those of the packages that are missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        install = f"{sys.executable} -m pip install {' '.join(missing)}"
        raise pytest.UsageError(
            f"{what} {', '.join(missing)}, which {sys.executable} lacks: {install}"
        )
