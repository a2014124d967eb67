"""Planted faults: each patches torch, a library, the device or a formula, and names the claims that must turn red.

A fault is a function that takes a `pytest.MonkeyPatch` and breaks something with it:

    @fault("flops.matmul-2mnk")
    def the_add_of_each_multiply_add_is_forgotten(patch):
        replace(patch, accounting.flops.matmul_flops, lambda m, k, n, batch=1: batch * m * k * n)

`python -m meta_tests.faults flops` runs the faults of one topic, each over the claims it names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Fault:
    """Something broken on purpose, and the claims that must notice."""

    topic: str
    name: str
    turns_red: tuple[str, ...]
    plant: Callable[[pytest.MonkeyPatch], None]


TOPICS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
FAULTS: list[Fault] = []


def fault(*turns_red: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """Registers the decorated function as a fault that must turn these claims red."""

    def register(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        FAULTS.append(Fault(plant.__module__.rpartition(".")[2], plant.__name__, turns_red, plant))
        return plant

    return register


def replace(patch: pytest.MonkeyPatch, original: object, replacement: Any) -> None:
    """Puts `replacement` wherever a loaded module of accounting, bench or prooflops holds `original`."""
    found = False
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("accounting", "bench", "prooflops"):
            continue
        for name, value in list(vars(module).items()):
            if value is original:
                patch.setattr(module, name, replacement)
                found = True
    if not found:
        raise LookupError(f"{original!r} is in no loaded module: the fault would change nothing")
