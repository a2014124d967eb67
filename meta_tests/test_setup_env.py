"""The set-up that `make` does: which Python is run, and what is installed where.

No network and no real package: the given Pythons are empty virtual environments with stubs in them,
and pip is a stand-in that puts stubs where pip would put packages.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setup_env
from setup_env import SetupError, ready_python, requirements

REPOSITORY = Path(setup_env.__file__).parent
ALL_BESIDE_A_DRIVER = {need.name: need.minimum for need in requirements("nvidia")}


def put_package(folder, name, version, source=""):
    """A package of one empty module, with the metadata by which pip and pytest find it."""
    module = folder / name.replace("-", "_")
    module.mkdir(parents=True, exist_ok=True)
    # A .pyc is told from its source by the second and the size, and both may be those of the
    # version before.
    shutil.rmtree(module / "__pycache__", ignore_errors=True)
    (module / "__init__.py").write_text(f"__version__ = {version!r}\n{source}\n")
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def packages_of(folder):
    (found,) = folder.glob("lib/python*/site-packages")
    return found


@pytest.fixture
def given(tmp_path):
    """Makes a virtual environment with these packages and returns its Python."""

    def make(**versions):
        folder = tmp_path / "given"
        venv.create(folder, symlinks=True)
        for name, version in versions.items():
            put_package(packages_of(folder), name, version)
        return str(folder / "bin" / "python")

    return make


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "prooflops_gate").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "prooflops_gate/pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture
def installs(monkeypatch):
    """The `pip install` commands given: each puts in stubs; venvs are made without pip."""
    commands = []

    def run(command, quiet=False):
        if "venv" in command:
            venv.create(command[3], symlinks=True)
        if "install" in command:
            commands.append(command)
            for requirement in [word for word in command if ">=" in word]:
                put_package(packages_of(Path(command[0]).parent.parent), *requirement.split(">="))
        return 0

    monkeypatch.setattr(setup_env, "_run", run)
    monkeypatch.setattr(setup_env, "has_nvidia_driver", lambda: True)
    # With it the stand-ins would see more than their stubs.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return commands


def names_in(command):
    return {word.split(">=")[0] for word in command if ">=" in word}


def test_a_python_that_has_all_packages_is_run_as_it_is(given, repository, installs):
    # A vendor's build of torch.
    python = given(**{**ALL_BESIDE_A_DRIVER, "torch": "2.6.0a0+ecf3bae40a.nv25.01"})
    assert ready_python(python, repository=repository) == python
    assert not installs
    assert not (repository / ".venv").exists(), "made a .venv that nobody needs"


def test_a_python_without_torch_stays_apart(given, repository, installs):
    versions = {name: version for name, version in ALL_BESIDE_A_DRIVER.items() if name != "torch"}
    python = ready_python(given(**versions), repository=repository)
    assert python == str(repository / ".venv/bin/python")
    (command,) = installs
    assert names_in(command) == set(ALL_BESIDE_A_DRIVER), (
        "the .venv sees none of the given Python's packages"
    )
    assert command[command.index("--constraint") + 1] == str(repository / "constraints.txt")


def test_of_a_python_with_torch_only_the_rest_is_installed(given, repository, installs):
    python = ready_python(
        given(torch="2.11.0", numpy="1.26.4", pytest="7.4"), repository=repository
    )
    (command,) = installs
    assert names_in(command) == set(ALL_BESIDE_A_DRIVER) - {"torch", "numpy"}, (
        "pytest 7.4 is too old"
    )
    assert "--constraint" not in command, (
        "a torch that is not ours decides which versions go with it"
    )
    code = (
        "import torch, numpy, pytest; print(torch.__version__, numpy.__version__, pytest.__file__)"
    )
    seen = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.startswith(f"2.11.0 1.26.4 {repository}")


@pytest.mark.parametrize(
    ("version", "source", "message"),
    [
        (
            "2.11.0",
            "raise ImportError('libcudart.so.12: no such file')",
            "libcudart.so.12: no such file",
        ),
        ("2.11.0", "import os; os.abort()", r"cannot be imported \(exit status -6\)"),
        ("2.5.1", "", r"has torch 2\.5\.1, but torch>=2\.6 is needed"),
    ],
)
def test_a_torch_that_cannot_be_used_is_an_error_and_left_as_it_is(
    given, repository, installs, tmp_path, version, source, message
):
    python = given(pytest=ALL_BESIDE_A_DRIVER["pytest"])
    put_package(packages_of(tmp_path / "given"), "torch", version, source)
    with pytest.raises(SetupError, match=message):
        ready_python(python, repository=repository)
    assert not installs


def test_the_venv_is_kept_until_base_or_requirements_change(given, repository, installs, tmp_path):
    python = given(torch="2.11.0")
    left = repository / ".venv" / "left"

    def was_kept(*extras):
        if not left.parent.exists() or not left.exists():
            ready_python(python, repository=repository)
            left.touch()
        installs.clear()
        return ready_python(python, *extras, repository=repository) and left.exists()

    assert was_kept()
    assert not installs
    assert was_kept("dev")
    assert names_in(installs[0]) == {need.name for need in requirements("dev")} - set(
        ALL_BESIDE_A_DRIVER
    )
    einops = f"einops-{ALL_BESIDE_A_DRIVER['einops']}.dist-info"
    shutil.rmtree(packages_of(repository / ".venv") / einops)
    # An activated environment goes by its base.
    ready_python(str(repository / ".venv/bin/python"), repository=repository)
    assert left.exists()
    assert names_in(installs[-1]) == {"einops"}
    text = (repository / "constraints.txt").read_text()
    (repository / "constraints.txt").write_text(text.replace("torch==", "torch==9", 1))
    assert not was_kept(), "other versions in the repository make it anew"
    left.touch()
    shutil.rmtree(packages_of(tmp_path / "given") / "torch-2.11.0.dist-info")
    put_package(packages_of(tmp_path / "given"), "torch", "2.12.0")
    assert not was_kept(), "another torch makes it anew"


def test_the_constraints_pin_everything_that_is_asked_for():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert pins[0].name == "torch", "a torch without a pin drags in gigabytes of CUDA"
    assert all(re.fullmatch(r"==[\d.]+", str(pin.specifier)) for pin in pins)
    asked = {need.name for need in requirements("nvidia", "dev")} - {"tomli"}
    assert asked <= {pin.name for pin in pins}, (
        "tested versions are not said for all that is asked for"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
class TestMake:
    def make(self, *arguments):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MAKE")
        }
        # A make that runs these tests puts its own there.
        environment["READY_PYTHON"] = "/no/python"
        command = ["make", *arguments]
        return subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environment
        )

    def test_too_old_a_python_is_refused_before_it_reads_anything(self, tmp_path):
        old = tmp_path / "python2.7"
        pretence = (
            "import sys; sys.version_info = (2, 7); sys.version = '2.7.18 (old)'; exec(sys.argv[1])"
        )
        old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretence}" "$2"\n')
        old.chmod(0o755)
        answer = self.make("validate", f"PYTHON={old}")
        assert answer.returncode != 0
        assert "needs Python 3.10 or later, but" in answer.stderr

    def test_the_parts_of_make_test_cover_each_folder(self):
        commands = self.make("--dry-run", "test", f"READY_PYTHON={sys.executable}").stdout
        tests = [line.rpartition("--doctest-glob='*.md'")[2] for line in commands.splitlines()]
        alone = [word for line in tests for word in re.findall(r" meta_tests/([\w/.]+)", line)]
        left_out = re.findall(r"--ignore=meta_tests/([\w/.]+)", commands)
        assert sorted(alone) == sorted(left_out), "what one part leaves out is what others run"
        assert "-W error" in commands, "warnings are errors in `make test`"
        assert "-W" not in self.make("--dry-run", "validate", f"PYTHON={sys.executable}").stdout
