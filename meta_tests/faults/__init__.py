"""Planted faults: each breaks something, and names the checks that must then fail.

A check is the id of a claim (one string may hold several, separated by spaces) or the node id of a
test (`bench/...`, `meta_tests/...`; without `[...]` any of its cases will do). A fault is a
function that takes a `pytest.MonkeyPatch` and breaks something with it. With `instead_of`, it
stands in for another function, which it gets before the arguments.

    @fault("loop.order", instead_of="torch.optim.SGD.step")
    def sgd_steps_twice(step, self, closure=None):
        step(self)
        step(self)

    wrong_value(
        "the_addition_is_forgotten",
        "flops.matmul-2mnk flops.batched",
        target="accounting.flops.MULTIPLY_ADD_FLOPS",
        value=1,
    )

`options` are further options of the checks' pytest run, and `saying` is a regular expression that
the failure's message must match. `name` replaces the name of a decorated function.

A module of this package is a topic: the claims' topics, and those of tests (`bench`: what the
benchmarks must notice). `python -m meta_tests.faults TOPIC` runs its faults in one process:

- Plugins named in `options` start first, so a simulated card is there when the fault is planted.
  Then the fault is planted; then pytest imports conftest files and tests. The fault goes before the
  card does.
- All modules of `accounting`, `bench` and `prooflops` but the tests are imported before the first
  fault; a simulated `time.perf_counter` reaches them, too. Test modules (`test_claims`,
  `meta_tests`, tests of `bench`) are imported anew in each run: a planter imports them itself, or
  names them with dots (`instead_of`, `target`), and no fault's module imports them at its top.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], Any]


@dataclass(frozen=True)
class Fault:
    """Something broken on purpose, and the checks that must notice."""

    topic: str
    name: str
    noticed_by: tuple[str, ...]
    plant: Plant
    options: str = ""
    saying: str = ""


TOPICS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
FAULTS = []
PACKAGES = ("accounting", "bench", "prooflops")


def fault(
    *noticed_by,
    instead_of="",
    options="",
    saying="",
    name="",
    topic="",
):
    """Registers the decorated function as a fault that these checks must notice."""
    topic = topic or _caller()
    checks = []
    for text in noticed_by:
        checks += [text] if "::" in text else text.split()

    def register(function):
        plant = stand_in(instead_of, function) if instead_of else function
        FAULTS.append(
            Fault(topic, name or function.__name__, tuple(checks), plant, options, saying)
        )
        return function

    return register


def wrong_value(name, *noticed_by, target, value, **options):
    """Registers a fault that puts a value under a dotted name."""

    def plant(patch):
        put(patch, target, value)

    fault(*noticed_by, name=name, topic=_caller(), **options)(plant)


def _caller():
    """The topic whose module called the function that asks."""
    return str(sys._getframe(2).f_globals["__name__"]).rpartition(".")[2]


def stand_in(target, function):
    """Has calls of a named function go to `function`, which gets the original first."""

    def plant(patch):
        original = pkgutil.resolve_name(target)
        put(patch, target, lambda *args, **kwargs: function(original, *args, **kwargs))

    return plant


def put(patch, target, value):
    """Puts a value under a dotted name.

    A function of ours is replaced also where a module imported it by name.
    """
    path, _, name = target.rpartition(".")
    holder = pkgutil.resolve_name(path)
    original = getattr(holder, name)
    if isinstance(holder, ModuleType) and path.partition(".")[0] in PACKAGES and callable(original):
        replace(patch, original, value)
    else:
        patch.setattr(holder, name, value)


def replace(patch, original, replacement):
    """Puts `replacement` wherever a loaded module of our packages holds `original`."""
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
