"""The plugin in a repository that knows nothing of this suite.

It costs next to nothing, and records when asked to.
"""

import subprocess
import sys

import pytest

from meta_tests.conftest import ROOT, child_environment
from meta_tests.prooflops_gate.foreign_repo import add_hooks, run

MODULES = ("hookspecs", "needs", "options", "plugin", "run_state", "unpatched")
LOADED = ["prooflops_gate", *(f"prooflops_gate.{name}" for name in MODULES)]


def test_a_plain_run_loads_a_few_small_modules_and_leaves_nothing(foreign):
    (foreign / "pytest.ini").write_text("[pytest]\n")
    add_hooks(
        foreign,
        "def pytest_unconfigure():\n"
        "    import sys\n"
        "    ours = [name for name in sys.modules if name.split('.')[0] == 'prooflops_gate']\n"
        "    heavy = sorted({'numpy', 'scipy', 'torch', 'pynvml'} & set(sys.modules))\n"
        "    print('loaded', sorted(ours), heavy)\n",
    )
    # A process that has imported nothing.
    command = [sys.executable, "-m", "pytest", "-p", "prooflops_gate.plugin"]
    environment = child_environment(ROOT)
    done = subprocess.run(command, cwd=foreign, env=environment, capture_output=True, text=True)
    assert f"loaded {LOADED} []" in done.stdout, done
    assert not (foreign / ".prooflops").exists()


MARKED = """
import pytest

@pytest.mark.gate(min_effect=7)
def test_sum(benchmark): ...
"""


def test_wrong_markers_are_refused_before_anything_runs(foreign):
    (foreign / "test_it.py").write_text(MARKED)
    done = run(foreign, "--gate-record", "main")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_sum: " in done.output
    assert not (foreign / ".prooflops").exists()
