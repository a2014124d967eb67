"""The files of both wheels, and the gate where it alone is installed, in a repository not our own.

No network: the wheels are built by the setuptools that is here; environments are links to packages
that are here.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from meta_tests.conftest import PACKAGES, ROOT, child_environment
from meta_tests.prooflops_gate.foreign_repo import commit_all, run_git

MODEL = """
import torch

def factory(batch=8):
    return torch.nn.Linear(16, 4), torch.randn(batch, 16)
"""


def dependencies(folder):
    """The packages that a pyproject.toml asks for, but our own."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1]
    needs = map(Requirement, re.findall(r'^ +"([^"]+)"', listed, re.MULTILINE))
    return [
        need.name
        for need in needs
        if need.name != "prooflops-gate" and (need.marker is None or need.marker.evaluate())
    ]


GATE = dependencies(ROOT / "prooflops_gate")
SUITE = [*dependencies(ROOT), *GATE]
BENCHMARK = """
import work

def test_busy(benchmark):
    benchmark.extra_info["flops"] = 2 * work.STEPS
    squares = lambda: sum(step * step for step in range(work.STEPS))
    benchmark.pedantic(squares, rounds=10, iterations=4)
"""


def build(source, clone):
    """The wheel of a folder with a pyproject.toml, unpacked."""
    for path in source.iterdir():
        if path.is_file():
            shutil.copy(path, clone)
        elif path.name in PACKAGES or source.name == "prooflops_gate":
            skipped = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
            shutil.copytree(path, clone / path.name, ignore=skipped)
    code = "import setuptools.build_meta as backend; backend.build_wheel('.')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=clone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = clone.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(clone / "unpacked")
    return clone / "unpacked"


@pytest.fixture(scope="module")
def gate_wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77")
    return build(ROOT / "prooflops_gate", tmp_path_factory.mktemp("prooflops_gate"))


@pytest.fixture(scope="module")
def suite_wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77")
    return build(ROOT, tmp_path_factory.mktemp("clone"))


def environment(folder, names, *wheels):
    """A Python that sees the wheels, these packages with all they require, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    waiting = list(names)
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        needs = map(Requirement, distribution.requires or [])
        waiting += [
            need.name
            for need in needs
            if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
        for top in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    for wheel in wheels:
        shutil.copytree(wheel, packages, dirs_exist_ok=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def gate_alone(gate_wheel, tmp_path_factory):
    """A Python with the gate and its dependencies."""
    return environment(tmp_path_factory.mktemp("gate"), GATE, gate_wheel)


@pytest.fixture
def foreign(tmp_path):
    """A repository without this package, whose second revision works more than its first."""
    run_git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (tmp_path / "work.py").write_text("STEPS = 300\n")
    (tmp_path / "test_work.py").write_text(BENCHMARK)
    commit_all(tmp_path)
    (tmp_path / "work.py").write_text("STEPS = 900\n")
    commit_all(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def suite(gate_wheel, suite_wheel, tmp_path_factory):
    """A Python with both wheels and all that the suite needs."""
    return environment(tmp_path_factory.mktemp("suite"), SUITE, gate_wheel, suite_wheel)


def run_pytest(python, *arguments, cwd):
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=child_environment(), capture_output=True, text=True, timeout=300
    )
    assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("wheel", "packages"),
    [("gate_wheel", {"prooflops_gate"}), ("suite_wheel", {"accounting", "prooflops"})],
)
def test_a_wheel_holds_every_file_of_its_packages_alone(request, wheel, packages):
    unpacked = request.getfixturevalue(wheel)

    def files(root):
        found = [path for name in packages for path in (root / name).rglob("*") if path.is_file()]
        return {path.relative_to(root) for path in found if "__pycache__" not in path.parts}

    own = {Path("prooflops_gate", name) for name in ("README.md", "pyproject.toml")}
    missing = files(ROOT) - files(unpacked) - own
    assert not missing, f"the wheel lacks {sorted(map(str, missing))}"
    assert {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"} == packages


def test_with_the_gate_alone_a_clone_says_what_the_suite_needs(gate_alone):
    done = run_pytest(gate_alone, "--claim=flops", cwd=ROOT)
    assert (done.returncode, done.stdout) == (4, ""), done.stdout + done.stderr
    assert re.fullmatch(
        r"ERROR: the suite .*make setup.* needs torch, .*: \S+ -m pip install torch .*",
        done.stderr.strip(),
    )


def test_the_gate_alone_compares_revisions_and_records_one(gate_alone, foreign):
    done = run_pytest(
        gate_alone,
        "--gate",
        "--gate-versus=HEAD~1",
        "--gate-replicates=2",
        "--gate-by=time",
        cwd=foreign,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CHANGED" in done.stdout, "the declared FLOPs are threefold"
    assert run_pytest(gate_alone, "--gate-record=main", cwd=foreign).returncode == 0


def test_without_numpy_an_option_says_what_to_install(gate_wheel, foreign, tmp_path):
    lean = environment(tmp_path / "lean", ["pytest", "pytest-benchmark"], gate_wheel)
    assert run_pytest(lean, "--ignore=lean", cwd=foreign).returncode == 0
    for options in (
        ("--gate", "--gate-versus=HEAD~1"),
        ("--gate-record=main",),
        ("--gate-history",),
    ):
        done = run_pytest(lean, *options, cwd=foreign)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
        assert "-m pip install numpy scipy" in done.stderr


@pytest.mark.prove
def test_a_model_is_examined_whatever_the_project_around_it_has(suite, tmp_path):
    project = tmp_path / "a project"
    (project / "bench").mkdir(parents=True)
    (project / "bench" / "__init__.py").touch()
    (project / "tiny.py").write_text(MODEL)
    (project / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device')\n"
    )
    (project / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -W error -n 2\n")
    done = run_pytest(
        suite, "--model", f"{project}/tiny.py:factory", "--device=cpu", "--quick", cwd=project
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "68 parameters, all trained" in done.stdout
    assert "one training step" in done.stdout
    assert list((project / "reports").glob("model-*tiny.py-factory.html"))
    assert list((project / ".prooflops").rglob("*.json"))
    assert {path.name for path in project.iterdir()} <= {
        *("bench", "tiny.py", "conftest.py", "pytest.ini"),
        *("reports", ".prooflops", ".pytest_cache", ".benchmarks", ".hypothesis", "__pycache__"),
    }


def test_a_foreign_option_of_the_suites_name_stays_its_own(suite, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--model')\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_it(pytestconfig):\n    assert pytestconfig.option.model == 'bert'\n"
    )
    done = run_pytest(suite, "--model=bert", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            ["{clone}", "--report", "{elsewhere}"],
            "write --report={elsewhere}; otherwise pytest takes its rootdir",
        ),
        (
            ["--report", "{elsewhere}"],
            "--report: write --model=FILE:FACTORY --report=..., or call it in a clone",
        ),
    ],
)
def test_the_error_names_the_form_of_an_option_that_was_meant(suite, tmp_path, words, meant):
    own = tmp_path / "own"
    elsewhere = tmp_path / "elsewhere"
    for folder in (own, elsewhere):
        folder.mkdir()
        (folder / "tiny.py").write_text(MODEL)
    options = [word.format(elsewhere=elsewhere) for word in words if word != "{clone}"]
    done = run_pytest(suite, *options, cwd=ROOT if "{clone}" in words else own)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert meant.format(elsewhere=elsewhere) in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in own.iterdir()} <= {"tiny.py", "__pycache__"}
