"""The other side of a comparison."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prooflops.gate import sides


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("HEAD", "both sides are the same"),
        (".", "both sides are the same"),
        (sys.executable, "both sides are the same"),
        ("no-such", "no folder, no interpreter, and no revision of this repository"),
    ],
)
def test_the_same_side_twice_and_an_unknown_side_are_refused(
    foreign: Path, other: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    config = SimpleNamespace(rootpath=foreign, invocation_params=SimpleNamespace(args=[f"--gate-versus={other}"]))
    with pytest.raises(pytest.UsageError, match=why):
        sides.other_side(other, config, None)  # type: ignore[arg-type]
