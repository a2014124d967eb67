"""`make setup`: which Python it chooses and what pip installs, by a Python that notes its calls."""

import shutil
import subprocess

import pytest

from meta_tests.conftest import ROOT, child_environment

FILES = ("Makefile", "constraints.txt", "pyproject.toml", "prooflops_gate/pyproject.toml")
# Has all packages or not, and a torch or none.
PYTHON = """#!/bin/sh
case "$*" in
    "-m pip --isolated"*) exit $LACKS ;;
    *'m.version("torch")'*) test -z "$FOUND" || echo "torch==$FOUND" ;;
    "-m venv"*)
        mkdir -p .venv/bin .venv/lib/python3/site-packages
        echo "$*" > .venv/made
        cp "$0" .venv/bin/python ;;
    "-m pip install"*) { echo "$*"; cat; } > .venv/installed ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Runs make for an active Python that lacks packages or has a torch; returns its .venv."""
    (tmp_path / "prooflops_gate").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def made(**variables):
        command = ["make", "setup", f"PYTHON={python}"]
        environment = child_environment(MAKEFLAGS="", **variables)
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        return tmp_path / ".venv"

    return made


def test_an_active_python_with_all_packages_is_used_unchanged(setup):
    assert not setup(LACKS="0", FOUND="2.11.0").exists(), "made a .venv that nobody needs"


@pytest.mark.parametrize(
    ("torch", "constraints"),
    [("2.11.0", "torch==2.11.0\n"), ("", (ROOT / "constraints.txt").read_text("utf-8"))],
)
def test_a_torch_that_is_there_is_never_replaced(setup, torch, constraints):
    venv = setup(LACKS="1", FOUND=torch)
    assert ("--system-site-packages" in (venv / "made").read_text()) == bool(torch)
    assert (venv / "constraints.txt").read_text() == constraints
    installed = (venv / "installed").read_text()
    assert "--constraint .venv/constraints.txt" in installed
    assert "pytest-benchmark>=" in installed
