"""What the wheel holds, and what it does where only the core dependencies are installed, in a repository not our own.

No network: the wheel is built by the setuptools that is here, and the environments are links to packages that are here.
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setup_env
from meta_tests.conftest import ROOT

CORE = [need.name for need in setup_env.requirements()]
SUITE = ("torch", "hypothesis", "einops", "matplotlib", "tomli", "pynvml")

WORK = """
STEPS = 300

def busy():
    return sum(step * step for step in range(STEPS))
"""
BENCHMARK = """
import work

def test_busy(benchmark):
    benchmark.extra_info["flops"] = 2 * work.STEPS
    benchmark.pedantic(work.busy, rounds=10, iterations=4)

def test_is_no_benchmark():
    assert work.busy() > 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this clone, unpacked."""
    setuptools = importlib.metadata.version("setuptools") if importlib.util.find_spec("setuptools") else None
    if not setup_env.Requirement("setuptools", "77").is_met_by(setuptools):
        pytest.skip("needs setuptools 77 or later")
    clone = tmp_path_factory.mktemp("clone")
    for name in ("accounting", "prooflops", "bench", "test_claims", "meta_tests"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, clone)
    shutil.copy(ROOT / "LICENSE", clone)
    build = "import setuptools.build_meta as backend; backend.build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (file,) = clone.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(clone / "unpacked")
    return clone / "unpacked"


def with_what_they_need(names):
    """The distributions of these names, and of all that they require here, by name."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            needs = map(Requirement, found[name].requires or [])
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def environment(folder, wheel, names):
    """A Python that sees the wheel, the packages of these names and what they need, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in with_what_they_need(names).values():
        tops = {path.parts[0] for path in distribution.files or [] if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    for path in wheel.iterdir():
        shutil.copytree(path, packages / path.name)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """A Python with the wheel and its core dependencies."""
    return environment(tmp_path_factory.mktemp("core"), wheel, CORE)


@pytest.fixture(scope="module")
def lean(wheel, tmp_path_factory):
    """A Python with the wheel and pytest-benchmark, without numpy and scipy."""
    return environment(tmp_path_factory.mktemp("lean"), wheel, ["pytest", "pytest-benchmark"])


@pytest.fixture
def foreign(tmp_path):
    """A repository that knows nothing of this package, whose second revision works more than its first."""

    def git(*arguments):
        author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "test_work.py").write_text(BENCHMARK)
    git("add", ".")
    git("commit", "--quiet", "--message=first")
    (tmp_path / "work.py").write_text(WORK.replace("300", "900"))
    git("commit", "--quiet", "--all", "--message=second")
    return tmp_path


def run(python, *arguments, cwd):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH", "GIT"))}
    return subprocess.run([python, *arguments], cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)


def run_pytest(python, *arguments, cwd):
    done = run(python, "-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)
    assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


class TestWheel:
    def test_it_holds_accounting_and_prooflops_and_nothing_else(self, wheel):
        folders = {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"}
        assert folders == {"accounting", "prooflops"}

    @pytest.mark.parametrize("package", ["accounting", "prooflops"])
    def test_it_holds_every_file_of_the_package(self, wheel, package):
        def files(root):
            return {path.relative_to(root) for path in (root / package).rglob("*") if path.is_file()}

        missing = {path for path in files(ROOT) - files(wheel) if "__pycache__" not in path.parts}
        assert not missing, f"the wheel lacks {sorted(map(str, missing))}"
        assert (wheel / package / "py.typed").exists()

    def test_its_plugin_is_named_like_its_module_and_starts_without_torch(self, wheel):
        code = (
            "import importlib.metadata, json, sys; "
            "(plugin,) = importlib.metadata.distribution('prooflops').entry_points.select(group='pytest11'); "
            "file = plugin.load().__file__; "
            "print(json.dumps([plugin.name, plugin.value, file, 'torch' in sys.modules]))"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], cwd=wheel, capture_output=True, text=True, check=True
        ).stdout
        name, value, file, torch_is_loaded = json.loads(answer)
        assert name == value == "prooflops.plugin", "else pytest takes the one that conftest.py loads for another"
        assert Path(file).is_relative_to(wheel)
        assert not torch_is_loaded


class TestWithTheCoreAlone:
    def test_nothing_of_the_suite_is_there(self, core, tmp_path):
        code = f"from importlib.util import find_spec; print([name for name in {SUITE} if find_spec(name)])"
        assert run(core, "-c", code, cwd=tmp_path).stdout == "[]\n"

    def test_every_formula_can_be_imported(self, core, tmp_path):
        formulas = sorted({file.stem for file in (ROOT / "accounting").glob("[a-z]*.py")} - {"measured"})
        done = run(core, "-c", f"import prooflops; from accounting import {', '.join(formulas)}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    def test_a_plain_run_of_pytest_loads_neither_numpy_nor_scipy(self, core, foreign):
        (foreign / "conftest.py").write_text(
            "import sys\n"
            "def pytest_sessionfinish():\n"
            "    assert 'prooflops.plugin' in sys.modules\n"
            "    assert not {'numpy', 'scipy', 'prooflops.gate.run', 'prooflops.history'} & sys.modules.keys()\n"
        )
        done = run_pytest(core, "--strict-config", cwd=foreign)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_gate_compares_two_revisions_side_by_side(self, core, foreign):
        done = run_pytest(core, "--gate", "--gate-versus=HEAD~1", "--gate-replicates=2", cwd=foreign)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "test_work.py::test_busy" in done.stdout
        assert "CHANGED" in done.stdout, "the declared FLOPs are threefold"
        assert "2 failed" not in done.stdout

    def test_a_baseline_is_kept_compared_with_and_listed(self, core, foreign):
        assert run_pytest(core, "--gate-record=main", cwd=foreign).returncode == 0
        assert "test_busy" in run_pytest(core, "--gate-baseline=main", cwd=foreign).stdout
        assert "main" in run_pytest(core, "--gate-history", "-v", cwd=foreign).stdout


class TestWithoutNumpyAndScipy:
    def test_a_plain_run_of_pytest_does_not_miss_them(self, lean, foreign):
        assert run_pytest(lean, cwd=foreign).returncode == 0

    @pytest.mark.parametrize(
        "options",
        [("--gate", "--gate-versus=HEAD~1"), ("--gate-record=main",), ("--gate-baseline=latest",), ("--gate-history",)],
    )
    def test_what_needs_them_says_what_to_install(self, lean, foreign, options):
        done = run_pytest(lean, *options, cwd=foreign)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
        assert "need numpy and scipy, which" in done.stderr
        assert "-m pip install numpy scipy" in done.stderr
