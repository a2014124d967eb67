"""The tests that a run selects, and the benchmarks of the other side that its paths cover."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate import run_state
from prooflops_gate.identity import stable_names
from prooflops_gate.run_state import is_benchmark

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Selection:
    """The collected tests of this run by their stable names.

    It has the settings of their markers `gate`. Of the benchmarks, `only` some are measured if it
    names any.
    """

    config: pytest.Config
    items: tuple[pytest.Item, ...]
    only: Sequence[str] = ()

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The stable name of each test, by its id."""
        return stable_names(item.nodeid for item in self.items)

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        found = tuple(self.names[item.nodeid] for item in self.items if is_benchmark(item))
        return tuple(name for name in found if name in self.only) if self.only else found

    @cached_property
    def markers(self) -> Mapping[str, Mapping[str, Any]]:
        """The arguments of the marker `gate`, by test."""
        given = self.config.stash.get(run_state.MARKERS, {})
        return {self.names.get(node_id, node_id): row for node_id, row in given.items()}

    @cached_property
    def smallest(self) -> Mapping[str, float]:
        """The smallest change that counts, of each test whose marker sets it."""
        return {
            name: float(row["min_effect"])
            for name, row in self.markers.items()
            if "min_effect" in row
        }

    def covers(self, test: str) -> bool:
        """True if this run covers a test of the other side, and no marker says `ignore`."""
        if self.markers.get(test, {}).get("ignore", False):
            return False
        return test in self.benchmarks or is_asked_for(test, self.config)


def files_of(ids: Iterable[str]) -> list[str]:
    """The files of these tests, each once, in order."""
    return list(dict.fromkeys(name.partition("::")[0] for name in ids))


def function_of(name: str) -> str:
    """The test function of a test, without parameters.

    >>> function_of("t.py::TestX::test_a[1-2]#3")
    't.py::TestX::test_a'
    """
    return name.partition("[")[0].partition("#")[0]


def is_in_code(root: Path, name: str) -> bool:
    """True if the function of this test is in its file under `root`.

    It may be in its own class, or in one that this inherits from.
    """
    file, *path = function_of(name).split("::")
    try:
        module = ast.parse((root / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return defines(module, path, module)


def defines(scope: ast.AST, path: Sequence[str], module: ast.Module) -> bool:
    """True if a scope defines this function, behind the classes before it in the path.

    A class of another file, from which one of them inherits, may define it.

    >>> module = ast.parse("class TestA:\\n    def test_x(self): ...\\nclass TestB: ...")
    >>> [defines(module, path.split("."), module) for path in ("TestA.test_x", "TestB.test_x")]
    [True, False]
    """
    first, *rest = path
    found = [node for node in definitions(scope) if node.name == first]
    if not rest:
        return any(not isinstance(node, ast.ClassDef) for node in found)
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    if any(defines(each, rest, module) for each in classes):
        return True
    own = {node.name for node in definitions(module)}
    bases = [ast.unparse(base) for each in classes for base in each.bases]
    return any(base not in own or defines(module, [base, *rest], module) for base in bases)


def definitions(scope: ast.AST) -> Iterator[Definition]:
    """The functions and classes of a scope, also within its conditions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, Definition):
            yield node
        else:
            yield from definitions(node)


def is_gone(name: str, here: Path, there: Path, collected: Sequence[str]) -> bool:
    """True if this change removed a test from the code, so that it cannot run here.

    Its function is gone, or its parameters are: other tests of the function were collected, and its
    file differs between the two sides.
    """
    if not is_in_code(here, name):
        return True
    if name in collected:
        return False
    siblings = {function_of(each) for each in collected}
    return function_of(name) in siblings and _differs(name.partition("::")[0], here, there)


def _differs(file: str, here: Path, there: Path) -> bool:
    try:
        return (here / file).read_bytes() != (there / file).read_bytes()
    except OSError:
        return True


def is_asked_for(name: str, config: pytest.Config) -> bool:
    """True if the command line covers a test of this name, existing or not.

    It names tests by paths and node ids. So a benchmark that vanished from a file is missing, and
    one of another file is not. Where the last run selects the tests (--lf, --sw), nothing else was
    asked for: the other side has no such past.
    """
    if getattr(config.option, "lf", False) or getattr(config.option, "stepwise", False):
        return False
    file, _, inside = name.partition("::")
    path = (config.rootpath / file).resolve()
    for argument in config.args:
        given, _, wanted = argument.partition("::")
        place = (config.invocation_params.dir / given).resolve()
        if not wanted and (place == path or place in path.parents):
            return True
        is_within = inside == wanted or inside.startswith((f"{wanted}::", f"{wanted}["))
        if wanted and place == path and is_within:
            return True
    return False
