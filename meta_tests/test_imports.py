"""Import rules see planted violations; formulas import neither torch nor numpy."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from meta_tests.conftest import PACKAGES, ROOT

FORMULAS = sorted({file.stem for file in (ROOT / "accounting").glob("[a-z]*.py")})
VIOLATIONS = {
    "Formulas import one another": ("accounting/flops.py", "import prooflops.__main__"),
    "accounting imports the standard library": (
        "accounting/flops.py",
        "from prooflops import counted",
    ),
    "Instruments import neither": ("prooflops/counted/__init__.py", "import pytest"),
    "Claims import formulas": ("test_claims/test_flops.py", "import bench.models"),
    "Benchmarks import formulas": ("bench/test_matmul.py", "from prooflops.suite import ranks"),
    "A room of prooflops imports": ("prooflops/counted/counter.py", "import prooflops.memory"),
    "The gate imports neither": ("prooflops_gate/run.py", "def f():\n    import torch"),
    "No files import each other": (
        "accounting/contraction.py",
        "def f():\n    import accounting.flops",
    ),
}


@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="needs import-linter")
def test_each_import_rule_sees_a_planted_violation(tmp_path):
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line in VIOLATIONS.values():
        with open(tmp_path / path, "a", encoding="utf-8") as source:
            source.write(f"\n{line}\n")
    code = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    blind = [
        rule
        for rule in VIOLATIONS
        if not re.search(rf"{rule}[^:]*? BROKEN", done.stdout.replace("\n", " "))
    ]
    assert not blind, f"{blind} did not see what was planted:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    "code",
    [
        f"from accounting import {', '.join(FORMULAS)}",
        "from prooflops.__main__ import main; main(['plan', 'gpt2'])",
        "import prooflops, prooflops.plugin",
        "import prooflops_gate.plugin",
        "import prooflops.suite.verdicts",
        "import prooflops_gate.history.records",
    ],
)
def test_importing_without_need_of_torch_does_not_import_it(code):
    code = f"import sys; {code}; print(sorted({{'torch', 'numpy', 'scipy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
