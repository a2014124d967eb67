"""Planted faults: each patches torch, a library, the device or a formula, and names the claims that must turn red.

A fault is a function that takes a `pytest.MonkeyPatch` and breaks something with it, or one that stands in for another
and is given that one before the arguments:

    @fault("flops.matmul-2mnk")
    def the_addition_of_each_multiply_add_is_forgotten(patch):
        patch.setattr(accounting.flops, "MULTIPLY_ADD_FLOPS", 1)

    @fault("storage.view-2x3-3x2", instead_of="torch.Tensor.view")
    def view_copies(original, x, *shape):
        return original(x, *shape).clone()

`python -m meta_tests.faults flops` runs the faults of one topic, each over the claims it names.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
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
PACKAGES = ("accounting", "bench", "prooflops")


def fault(*turns_red: str, instead_of: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as a fault that must turn these claims red."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        plant = functools.partial(put_instead_of, instead_of, function) if instead_of else function
        FAULTS.append(Fault(function.__module__.rpartition(".")[2], function.__name__, turns_red, plant))
        return function

    return register


def put_instead_of(target: str, function: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    """Replaces what has this dotted name; a function of this repository also where a module imported it by name."""
    path, _, name = target.rpartition(".")
    holder = pkgutil.resolve_name(path)
    original = getattr(holder, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    if isinstance(holder, ModuleType) and path.partition(".")[0] in PACKAGES:
        replace(patch, original, replacement)
    else:
        patch.setattr(holder, name, replacement)


def leaves_of(loss: Any) -> list[Any]:
    """The tensors to whose gradients a backward pass from `loss` adds."""
    nodes, leaves = [loss.grad_fn], {}
    while nodes:
        node = nodes.pop()
        if node is not None and node not in leaves:
            leaves[node] = getattr(node, "variable", None)
            nodes += [inner for inner, _ in node.next_functions]
    return [leaf for leaf in leaves.values() if leaf is not None]


def replace(patch: pytest.MonkeyPatch, original: object, replacement: Any) -> None:
    """Puts `replacement` wherever a loaded module of accounting, bench or prooflops holds `original`."""
    found = False
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in PACKAGES:
            continue
        for name, value in list(vars(module).items()):
            if value is original:
                patch.setattr(module, name, replacement)
                found = True
    if not found:
        raise LookupError(f"{original!r} is in no loaded module: the fault would change nothing")
