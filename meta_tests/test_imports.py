"""Formulas, plans and plugins import neither torch nor numpy."""

import subprocess
import sys

import pytest

from meta_tests.conftest import ROOT

FORMULAS = sorted({file.stem for file in (ROOT / "accounting").glob("[a-z]*.py")})


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
