"""`make setup`: which Python it chooses and what pip installs, by real pip and stub packages.

Without a network: pip finds an empty wheel of each requirement in a folder.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT

pip = pytest.importorskip("pip")
# Each case installs for 20 seconds. A Python without torch is set up by each run of CI.
pytestmark = pytest.mark.prove

FILES = ("Makefile", "constraints.txt", "pyproject.toml", "prooflops_gate/pyproject.toml")


def put_wheel(folder, name, version):
    """An empty package that pip installs."""
    name = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        about = f"{name}-{version}.dist-info"
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    (folder / "prooflops_gate").mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def wheels(tmp_path):
    """A folder with each requirement, in the version of constraints.txt or its lower bound."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    versions = {}
    for file in ("pyproject.toml", "prooflops_gate/pyproject.toml"):
        text = (ROOT / file).read_text(encoding="utf-8")
        versions |= dict(re.findall(r'^ +"([\w-]+)>=([\w.]+)', text, re.MULTILINE))
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions |= dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    for name, version in versions.items():
        put_wheel(folder, name, version)
    put_wheel(folder, "torch", "2.11.0")
    return folder


@pytest.fixture
def make(clone, wheels):
    """Runs make for an active Python with these packages; returns pip's list of the one chosen."""
    active = clone.parent / "active"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", active], check=True)
    (packages,) = active.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "PIP_", "PYTHON"))
    }
    environment |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": "/dev/null",
    }

    def run(*command):
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def made(*packages):
        python = str(active / "bin" / "python")
        if packages:
            run(python, "-m", "pip", "install", "--quiet", *packages)
        run("make", "setup", f"PYTHON={python}")
        own = clone / ".venv" / "bin" / "python"
        listed = run(str(own) if own.exists() else python, "-m", "pip", "list", "--format=freeze")
        return own.exists(), dict(
            line.replace("_", "-").split("==") for line in listed.splitlines()
        )

    return made


def needed(wheels):
    return {wheel.name.split("-")[0] for wheel in wheels.iterdir()}


def test_an_active_python_with_all_packages_is_used_unchanged(make, wheels):
    own, packages = make(*needed(wheels) - {"torch"}, "torch==2.11.0")
    assert not own, "made a .venv that nobody needs"
    assert packages["torch"] == "2.11.0"


def test_a_torch_that_is_there_is_never_replaced(make):
    own, packages = make("torch==2.11.0")
    assert own
    assert packages["torch"] == "2.11.0"
    assert "pytest-benchmark" in packages
