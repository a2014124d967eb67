"""Faults generated from tables: each operator that the lecture's programs call × each property that can be wrong.

`recorded/generated_faults.txt` names for each cell the claims (of an instrument, the test) that notice it, or says why
nothing in the registry speaks of it. `python -m meta_tests.faults.generated` looks for the claims that notice a cell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meta_tests.faults import FAULTS, Fault
from meta_tests.faults.generated import instruments, operators, optimizers

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "generated_faults.txt"
OUTSIDE = "outside"

CELLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    **operators.CELLS,
    **optimizers.CELLS,
    **instruments.CELLS,
}


@functools.cache
def recorded() -> dict[str, str]:
    """What notices each cell, as the file has it."""
    text = RECORDED.read_text(encoding="utf-8").replace("\n  ", " ")
    return dict(line.split(": ", 1) for line in text.splitlines() if line and not line.startswith("#"))


def register(rows: dict[str, str], cells: dict[str, Any]) -> None:
    """Adds a fault for each cell that claims or tests notice."""
    for name, noticed in rows.items():
        if not noticed.startswith(OUTSIDE):
            FAULTS.append(Fault("generated", name.replace(" ", "-"), tuple(noticed.split()), cells[name]))


register(recorded(), CELLS)
