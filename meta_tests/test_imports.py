"""Which package may import which, and what importing the formulas costs."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

import accounting
from meta_tests.conftest import ROOT

INSTRUMENTS = {"counted", "measured", "predicted"}
FORMULAS = sorted({*accounting.__all__} - INSTRUMENTS)
HOUSE = ("accounting", "prooflops", "bench", "test_claims", "meta_tests")


def imports(source: str) -> set[str]:
    """The modules a source imports, at any depth; for `from a import b` both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def violations(file: Path, source: str) -> Iterator[str]:
    """What this file imports against the directions of the house."""
    package, name = file.parts[0], file.stem
    for module in sorted(imports(source)):
        top = module.partition(".")[0]
        forbidden = {
            "accounting": {"pytest", "prooflops", "bench", "test_claims", "meta_tests"},
            "prooflops": {"bench", "test_claims", "meta_tests"},
            "bench": {"prooflops", "test_claims", "meta_tests"},
            "test_claims": {"prooflops", "bench", "meta_tests"},
        }.get(package, set())
        if top in forbidden:
            yield f"{file} imports {module}: {package} must not import {top}"
        if package == "accounting" and not INSTRUMENTS & {*file.parts, name}:
            # accounting/__init__.py names the instruments for the type checker alone.
            instrument = file.name != "__init__.py" and {*module.split(".")[1:2]} & INSTRUMENTS
            if (top not in sys.stdlib_module_names and top != "accounting") or instrument:
                yield f"{file} imports {module}: a formula needs the standard library only"


def test_every_import_follows_the_directions_of_the_house() -> None:
    files = [file.relative_to(ROOT) for package in HOUSE for file in (ROOT / package).rglob("*.py")]
    found = [text for file in files for text in violations(file, (ROOT / file).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("accounting/flops.py", "import torch"),
        ("accounting/flops.py", "def f():\n    from numpy import prod"),
        ("accounting/flops.py", "from accounting import counted"),
        ("accounting/counted/__init__.py", "import pytest"),
        ("bench/test_matmul.py", "from test_claims import oracles"),
        ("test_claims/test_flops.py", "import bench.models"),
        ("prooflops/suite/plugin.py", "from bench import models"),
    ],
)
def test_an_import_against_the_directions_is_noticed(file: str, source: str) -> None:
    assert list(violations(Path(file), source))


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
