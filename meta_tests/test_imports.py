"""Which file may import which, that each has its tests, and what importing the formulas costs.

Each rule is a function from the sources to the sentences that it finds wrong, and each has a planted violation.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from statistics import median
from time import perf_counter

import pytest

import accounting
from meta_tests.conftest import ROOT
from meta_tests.import_graph import circles, graph, module_of, names_in, reachable, sources

SOURCES = sources()
INSTRUMENTS = {"counted", "measured", "predicted"}
FORMULAS = sorted({*accounting.__all__} - INSTRUMENTS)

# What each package may import of the house.
MAY_IMPORT = {
    "accounting": {"accounting"},
    "prooflops": {"accounting", "prooflops"},
    "bench": {"accounting", "bench"},
    "test_claims": {"accounting", "test_claims"},
}
# The rooms of prooflops from the ground up; a room imports those below it, never one beside it.
FLOORS = (
    {"run_state", "hookspecs", "statistics", "console", "machine"},
    {"history"},
    {"gate"},
    {"plugin", "suite"},
    {"model"},
)
INSTALLED = {"plugin", "run_state", "hookspecs", "gate", "statistics", "history", "console"}
INSTALLED_NEEDS = {"pytest", "_pytest", "pluggy", "pytest_benchmark", "numpy", "scipy"}

Sources = Mapping[str, str]
RULES: list[Callable[[Sources], Iterator[str]]] = []


def rule(function: Callable[[Sources], Iterator[str]]) -> Callable[[Sources], Iterator[str]]:
    RULES.append(function)
    return function


def room(path: str) -> str:
    """The room of a file: the name below its package."""
    return [*module_of(path).split("."), "", ""][1]


def third_party(path: str, source: str) -> set[str]:
    tops = {name.partition(".")[0] for name in names_in(path, source)}
    return tops - sys.stdlib_module_names - {module_of(file).partition(".")[0] for file in SOURCES}


@rule
def packages_import_what_they_may(files: Sources) -> Iterator[str]:
    for path, imported in graph(files).items():
        package = path.partition("/")[0]
        for other in sorted(imported):
            if package in MAY_IMPORT and other.partition("/")[0] not in MAY_IMPORT[package]:
                yield f"{path} imports {other}, but {package} may import {sorted(MAY_IMPORT[package])} only"


@rule
def formulas_need_the_standard_library_alone(files: Sources) -> Iterator[str]:
    for path, imported in graph(files).items():
        if path.startswith("accounting/") and room(path) not in INSTRUMENTS:
            for name in sorted(third_party(path, files[path])):
                yield f"{path} imports {name}, but formulas need the standard library only"
            for other in sorted(imported):
                # accounting/__init__.py names the instruments for the type checker.
                if room(other) in INSTRUMENTS and path != "accounting/__init__.py":
                    yield f"{path} imports {other}, but formulas import no instrument"


@rule
def instruments_need_torch_alone(files: Sources) -> Iterator[str]:
    for path, source in files.items():
        if path.startswith("accounting/"):
            for name in sorted(third_party(path, source) - {"torch"}):
                yield f"{path} imports {name}, but accounting needs torch at most"


@rule
def rooms_import_lower_rooms(files: Sources) -> Iterator[str]:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    for path, imported in graph(files).items():
        mine = room(path)
        if not path.startswith("prooflops/") or not mine:
            continue
        if mine not in floor:
            yield f"{path}: the room {mine} stands on no floor of FLOORS ({__name__})"
            continue
        for other in sorted(imported):
            its = room(other)
            if other.startswith("prooflops/") and its and its != mine and floor.get(its, 0) >= floor[mine]:
                yield f"{path} imports {other}, but {mine} imports only rooms below it: see FLOORS ({__name__})"


@rule
def the_installed_part_needs_its_own_dependencies_alone(files: Sources) -> Iterator[str]:
    imported = graph(files)
    installed = [path for path in files if path.startswith("prooflops/") and room(path) in INSTALLED]
    for path in sorted({*installed, *reachable(imported, *installed)}):
        mine = room(path)
        if not path.startswith("prooflops/") or mine not in {*INSTALLED, "machine", ""}:
            yield f"{path} is imported by the installed part, {sorted(INSTALLED)} and what of machine it needs"
            continue
        for name in sorted(third_party(path, files[path]) - (INSTALLED_NEEDS if mine != "machine" else {"pynvml"})):
            if not name.startswith("prooflops_gate_"):  # copies of its own files, beside a replicate
                yield f"{path} imports {name}, which is not installed with the gate"


@rule
def no_files_import_each_other_in_a_circle(files: Sources) -> Iterator[str]:
    for circle in circles(graph(files)):
        yield f"these import one another in a circle: {', '.join(circle)}"


# What a newcomer reads in an hour: more than this and it takes two. Argument checks, the formatter of units, the index
# and the command are no formulas; what is data, and what measures, has rooms of its own.
MOST_LINES = 4000
NO_FORMULAS = {"__init__", "__main__", "checks", "units"}


@rule
def the_formulas_are_read_in_an_hour(files: Sources) -> Iterator[str]:
    lines = {
        path: source.count("\n")
        for path, source in files.items()
        if PurePosixPath(path).parent == PurePosixPath("accounting") and PurePosixPath(path).stem not in NO_FORMULAS
    }
    if sum(lines.values()) > MOST_LINES:
        longest = ", ".join(sorted(lines, key=lambda path: -lines[path])[:3])
        yield (
            f"the formulas have {sum(lines.values())} lines, but should have {MOST_LINES} at most: simplify, say once "
            f"what several docstrings say, or move what is data to a room; the longest are {longest}"
        )


def has_code(source: str) -> bool:
    """Whether a source has a function or method that does anything: a declaration has nothing to test."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return any(
        not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for function in functions
        for line in function.body
    )


@rule
def each_file_has_a_test_file_of_its_name(files: Sources) -> Iterator[str]:
    for path, source in files.items():
        file = PurePosixPath(path)
        if file.parts[0] not in ("accounting", "prooflops", "bench") or file.name in ("__init__.py", "conftest.py"):
            continue
        test = (PurePosixPath("meta_tests") / file.with_name(f"test_{file.stem.strip('_')}.py")).as_posix()
        if not file.name.startswith("test_") and has_code(source) and test not in files:
            yield f"{path} has no test file of its name: {test}"


@pytest.mark.parametrize("keeps", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(keeps: Callable[[Sources], Iterator[str]]) -> None:
    found = [*keeps(SOURCES)]
    assert not found, "\n".join(found)


PLANTED: dict[Callable[[Sources], Iterator[str]], list[tuple[str, str, str]]] = {
    packages_import_what_they_may: [
        ("accounting/counted/__init__.py", "import prooflops.plugin", "accounting may import"),
        ("bench/test_matmul.py", "from test_claims import oracles", "bench may import"),
        ("bench/test_matmul.py", "from prooflops.suite import ranks", "bench may import"),
        ("test_claims/test_flops.py", "import bench.models", "test_claims may import"),
        ("prooflops/plugin.py", "from bench import models", "imports bench/models.py"),
        ("prooflops/plugin.py", "def f():\n    import meta_tests.gate_study.replay", "meta_tests/gate_study/replay.py"),
        ("prooflops/plugin.py", "import_module('bench.models')", "imports bench/models.py"),
        ("prooflops/plugin.py", "pytest_plugins = ['bench.conftest']", "imports bench/conftest.py"),
        ("prooflops/plugin.py", "'-q -p bench.conftest'", "imports bench/conftest.py"),
        ("prooflops/plugin.py", "['-m', 'bench.search']", "imports bench/search.py"),
        ("prooflops/plugin.py", "'bench/test_matmul.py'", "imports bench/test_matmul.py"),
        ("prooflops/plugin.py", "ROOT / 'bench' / 'models.py'", "imports bench/models.py"),
    ],
    formulas_need_the_standard_library_alone: [
        ("accounting/flops.py", "import torch", "imports torch"),
        ("accounting/flops.py", "def f():\n    from numpy import prod", "imports numpy"),
        ("accounting/flops.py", "from accounting import counted", "formulas import no instrument"),
    ],
    instruments_need_torch_alone: [
        ("accounting/counted/__init__.py", "import pytest", "imports pytest"),
    ],
    rooms_import_lower_rooms: [
        ("prooflops/history/records.py", "import prooflops.gate.settings", "history imports only rooms below it"),
        ("prooflops/statistics/noise.py", "import prooflops.console.tables", "statistics imports only rooms below it"),
        ("prooflops/suite/plugin.py", "import prooflops.plugin", "suite imports only rooms below it"),
        ("prooflops/cellar/new.py", "", "the room cellar stands on no floor"),
    ],
    the_installed_part_needs_its_own_dependencies_alone: [
        ("prooflops/gate/run.py", "import torch", "run.py imports torch"),
        ("prooflops/gate/run.py", "import prooflops.suite.verdicts", "suite/verdicts.py is imported by the installed"),
        ("prooflops/gate/run.py", "import accounting.flops", "accounting/flops.py is imported by the installed"),
        ("prooflops/gate/run.py", "def f():\n    import prooflops.machine.device", "device.py imports torch"),
        ("prooflops/machine/contention.py", "import numpy", "contention.py imports numpy"),
    ],
    no_files_import_each_other_in_a_circle: [
        ("meta_tests/gate_study/runs.py", "import meta_tests.gate_study.tables", "in a circle"),
        ("accounting/contraction.py", "def f():\n    import accounting.flops", "in a circle"),
    ],
    the_formulas_are_read_in_an_hour: [
        ("accounting/new.py", "\n" * 4000, "lines, but should have 4000 at most: simplify"),
    ],
    each_file_has_a_test_file_of_its_name: [
        ("bench/new.py", "def f():\n    return 1", "has no test file of its name: meta_tests/bench/test_new.py"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("keeps", "path", "planted", "found"),
    [
        pytest.param(keeps, *row, id=f"{keeps.__name__}-{row[1] or row[0]}")
        for keeps, rows in PLANTED.items()
        for row in rows
    ],
)
def test_a_planted_violation_is_found(
    keeps: Callable[[Sources], Iterator[str]], path: str, planted: str, found: str
) -> None:
    files = {**SOURCES, path: f"{SOURCES.get(path, '')}\n{planted}\n"}
    texts = [*keeps(files)]
    assert any(found in text for text in texts), f"nothing says {found!r}: {texts}"


def test_each_rule_has_a_planted_violation() -> None:
    assert {*PLANTED} == {*RULES}


def test_the_floors_are_those_that_the_imports_of_the_files_give() -> None:
    below: dict[str, set[str]] = {}
    for path, imported in graph(SOURCES).items():
        if path.startswith("prooflops/") and room(path):
            others = {room(other) for other in imported if other.startswith("prooflops/")} - {room(path), ""}
            below.setdefault(room(path), set()).update(others)

    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=0)

    floors = {name: floor(name) for name in below}
    assert max(floors.values()) <= len(FLOORS) == 5, floors
    for number, names in enumerate(FLOORS, start=1):
        for name in names:
            assert floors[name] <= number, f"{name} stands on floor {floors[name]}, but FLOORS has it on {number}"


@pytest.mark.parametrize(
    "module",
    [
        *(f"accounting.{name}" for name in FORMULAS),
        "prooflops.plugin",
        "prooflops.suite.verdicts",
        "prooflops.history.records",
    ],
)
def test_importing_without_need_of_torch_does_not_import_it(
    python: Callable[..., subprocess.CompletedProcess[str]], module: str
) -> None:
    done = python("-c", f"import sys, {module}; print(sorted({{'torch', 'numpy', 'scipy'}} & sys.modules.keys()))")
    assert done.stdout == "[]\n", f"import {module} brings {done.stdout}{done.stderr}"


def import_seconds(code: str) -> float:
    """Median of 9 whole processes running `code`."""
    times = []
    for _ in range(9):
        start = perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        times.append(perf_counter() - start)
    return median(times)


def main() -> None:
    empty = import_seconds("pass")
    for what, code in (
        ("import accounting", "import accounting"),
        ("every formula module", f"from accounting import {', '.join(FORMULAS)}"),
    ):
        print(f"{what}: {1e3 * (import_seconds(code) - empty):.1f} ms (median of 9 processes, less an empty one's)")


if __name__ == "__main__":
    main()
