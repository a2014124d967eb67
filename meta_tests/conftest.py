"""Child runs of pytest, their house of demonstration claims, the process of the planted faults.

Most of them are shared by the tests of a module, which pytest's own `pytester` cannot do, because
its folder and environment last for one test.
"""

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from meta_tests.faults import Fault
from meta_tests.golden import LAYOUT, MASKS, check, masked

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("accounting", "bench", "meta_tests", "prooflops", "prooflops_gate", "test_claims")

# A repo of its own, whose options are not ours.
collect_ignore = ["foreign"]

CLAIM = """
[[claim]]
id = "{id}"
statement = "{statement}"
sources = ["lecture § Minute 3"]
written = "{written}"
condition = "{condition}"
correction = "{correction}"
needs = {needs}
kind = "behaviour"
"""


def recorded(name):
    """The entries of a file of meta_tests/recorded by their names.

    An entry goes on in the lines indented below it.
    """
    text = (
        (ROOT / "meta_tests" / "recorded" / name).read_text(encoding="utf-8").replace("\n  ", " ")
    )
    return dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith("#"))


@dataclass
class ChildRun:
    """What a child run of pytest left: exit code, output, when it ended, and the verdicts."""

    code: int
    output: str
    ended: float = 0.0
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)


def child_environment(path="", **variables):
    """This run's environment without settings of pytest, of this project or of a CI service.

    Imports from `path`.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTEST_", "PROOFLOPS_", "GITHUB_"))
    }
    return {**kept, "PYTHONPATH": str(path), **variables}


# What the suite's plugins and an optimizer of torch import.
SUITE = "torch, torch._dynamo, scipy.stats"
# Reads a folder, environments, lines of arguments and a folder for results; forks for each
# environment, side by side, and each fork runs pytest for each line.
FORKS = """
import contextlib, gc, io, json, os, shlex, signal, sys
import cpuinfo, pytest, {imported}
cpu = cpuinfo.get_cpu_info()
# pytest-benchmark asks for its records, and each answer would start a score of processes.
cpuinfo.get_cpu_info = lambda: {{**cpu}}
# Imports the plugins of pytest.
with contextlib.redirect_stdout(io.StringIO()):
    pytest.main(["--version", "--version", "--noconftest", "-c", os.devnull, *{plugins}])
# Where `pip install -e .` made this clone a plugin, its modules are loaded: a copy has its own.
for name in [*sys.modules]:
    if name.partition(".")[0] in ("accounting", "prooflops", "prooflops_gate"):
        del sys.modules[name]
# pytest collects garbage five times at each end: not among all that has been imported.
gc.freeze()
for request in sys.stdin:
    folder, environments, lines, results = json.loads(request)
    children = []
    for fork, environment in enumerate(environments):
        children.append(os.fork())
        if not children[-1]:
            break
    else:
        print(*[os.waitpid(child, 0)[1] for child in children], flush=True)
        continue
    # A shell has its background jobs ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ends a run that hangs; claims on the simulated card take ten minutes beside other work.
    signal.alarm(1800)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    for number, line in enumerate(lines):
        with open(f"{{results}}/{{fork}}.{{number}}", "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv[1:] = shlex.split(line)
        code = int(pytest.main(sys.argv[1:]))
        sys.stdout.flush()
        os.rename(file.name, f"{{file.name}} {{code}}")
        gc.freeze()
    sys.exit()
"""


@functools.cache
def _forks(imported):
    # Where it is installed, its plugin imports it at the end of each run.
    plugins = ["-p", "hypothesis.strategies"] if importlib.util.find_spec("hypothesis") else []
    command = [
        sys.executable,
        "-c",
        FORKS.format(imported=imported, plugins=plugins),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def fork_side_by_side(folder, lines, environments, imported=SUITE):
    """One run of pytest in `folder` for each line of arguments, in forks side by side.

    There is a fork of the process that has `imported` for each environment. Importing torch takes
    longer than most runs, and starts no thread, so that a fork is safe.
    """
    forks = _forks(imported)
    assert forks.stdin
    assert forks.stdout
    with tempfile.TemporaryDirectory() as results:
        request = json.dumps([str(folder), environments, [*lines], results])
        print(request, file=forks.stdin, flush=True)
        statuses = [int(status) for status in forks.stdout.readline().split()]
        found = {
            each.name: (each.read_text("utf-8", "replace"), each.stat())
            for each in Path(results).iterdir()
        }
    runs = {}
    for name, (text, stat) in found.items():
        run, _, code = name.partition(" ")
        status = statuses[int(run.partition(".")[0])]
        # A run may end its process.
        if code or os.WIFEXITED(status):
            runs[run] = ChildRun(int(code or os.WEXITSTATUS(status)), text, ended=stat.st_mtime)
    by_environment = []
    for fork in range(len(environments)):
        names = [f"{fork}.{number}" for number in range(len(lines))]
        missing = [name for name in names if name not in runs]
        assert not missing, f"of {len(lines)} runs did not end: {missing}, {statuses}, {found}"
        by_environment.append(dict(zip(lines, map(runs.__getitem__, names), strict=True)))
    return by_environment


def run_pytest_for_each(
    folder,
    lines,
    imported=SUITE,
    *,
    path="",
    **variables,
):
    """One run of pytest in `folder` for each line, all in one fork of what has `imported`."""
    (runs,) = fork_side_by_side(folder, lines, [child_environment(path, **variables)], imported)
    return runs


def fork_pytest(folder, *arguments, imported="scipy.stats", **environment):
    """One run of pytest in `folder`, in a fork of a process that has `imported`."""
    line = shlex.join(["-p", "no:cacheprovider", *arguments])
    run = run_pytest_for_each(folder, [line], imported, **environment)[line]
    # pytest shows it below a test that fails.
    print(run.output)
    return run


@dataclass
class House:
    """A copy of the suite without its claims, to be furnished by a test."""

    root: Path

    def claim(self, claim_id, *, statement="It is so.", written="holds", **rest):
        row = {
            "condition": "",
            "correction": "",
            "needs": "[]",
            "statement": statement,
            "written": written,
            **rest,
        }
        file = self.root / "test_claims" / "registry" / f"{claim_id.partition('.')[0]}.toml"
        with open(file, "a", encoding="utf-8") as registry:
            registry.write(CLAIM.format(id=claim_id, **row))

    def test(self, code, file="test_claims/test_demo.py"):
        path = self.root / file
        header = "" if path.exists() else "import pytest\n"
        with open(path, "a", encoding="utf-8") as tests:
            tests.write(header + code + "\n")

    def run(self, *arguments, path=""):
        run = fork_pytest(self.root, *arguments, imported=SUITE, path=path)
        files = [
            *self.root.glob("reports/verdicts.json"),
            *self.root.glob("reports/partial/verdicts.json"),
        ]
        newest = max(files, key=lambda file: file.stat().st_mtime_ns, default=None)
        if newest:
            rows = json.loads(newest.read_text())["claims"]
            run.verdicts = {row["id"]: row for row in rows}
        return run


def new_house(root):
    """The suite copied to `root`, with a registry of one source and no claim."""
    for package in ("accounting", "prooflops", "prooflops_gate"):
        # Compiled modules too: each child would rewrite its asserts.
        shutil.copytree(ROOT / package, root / package)
    for file in ("conftest.py", "pytest.ini"):
        shutil.copy(ROOT / file, root)
    for folder in ("test_claims", "bench"):
        (root / folder).mkdir()
        (root / folder / "__init__.py").touch()
    registry = root / "test_claims" / "registry"
    registry.mkdir()
    (registry / "sources.toml").write_text(
        '[[source]]\nkey = "lecture"\ntitle = "A lecture"\nplaces = ["§ Minute 3"]\n'
    )
    return House(root)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite meta_tests/golden")


@pytest.fixture
def golden(pytestconfig, tmp_path):
    """Compares a text with a transcript; without `figures`, unless each run has the same."""
    update = pytestconfig.getoption("--update-golden")

    def compared(name, text, *, figures=False):
        masks = LAYOUT if figures else MASKS
        check(name, masked(text, masks, tmp=tmp_path, root=ROOT), update)

    return compared


@pytest.fixture
def house(tmp_path):
    """A house without a claim, to be furnished by the test."""
    return new_house(tmp_path)


def commit():
    """The commit that is checked out; empty without git."""
    git = ["git", "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return ""


def pytest_collection_modifyitems(config, items):
    """With --quick, leaves out tests marked `prove`."""
    if config.option.quick:
        left = {item for item in items if item.get_closest_marker("prove")}
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium without a window, driven by playwright; skips where one is absent."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if not executable:
        pytest.skip("needs Chromium: apt-get install chromium")
    reason = "needs playwright and axe-playwright-python, of the [dev] packages"
    driver = pytest.importorskip("playwright.sync_api", reason=reason)
    pytest.importorskip("axe_playwright_python", reason=reason)
    with driver.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield started
        started.close()
