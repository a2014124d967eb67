"""The gate takes a suite as it is.

Other plugins, other markers, ids that differ, tests that are gone.
"""

import importlib.util
import re

import pytest

from meta_tests.prooflops_gate.foreign_repo import INI, commit_all, run

ONE = "test_foreign.py::test_busy_loop"
# The plan of these tests alarms on 30 % of runs: half as slow again is beyond its noise.
QUESTION = "--gate --gate-versus HEAD --gate-min-effect 0.5 --gate-replicates"
VERSUS_HEAD = f"{QUESTION} 2".split()
# So many pairs confirm a slowdown.
CONFIRMING = f"{QUESTION} 4".split()
# Each module has the plugin as `-p` takes it, what a project's `addopts` hold, and its name.
DISTURBING = {
    "xdist": ("xdist.plugin", "-n 2 --dist loadfile", "xdist"),
    "pytest_randomly": ("pytest_randomly", "", "pytest-randomly"),
    "pytest_cov": ("pytest_cov.plugin", "--cov=work --cov-fail-under=100", "pytest-cov"),
    "pytest_rerunfailures": ("pytest_rerunfailures", "--reruns 2", "pytest-rerunfailures"),
    "pytest_timeout": ("pytest_timeout", "--timeout 0.001", "pytest-timeout"),
    "pytest_repeat": ("pytest_repeat", "--count 3", "pytest-repeat"),
    "pytest_forked": ("pytest_forked", "--forked", "pytest-forked"),
    "pytest_codspeed": ("pytest_codspeed.plugin", "--codspeed", "pytest-codspeed"),
}


def touch(repo):
    """A change that nothing measures."""
    (repo / "work.py").write_text((repo / "work.py").read_text() + "\n# changed\n")


def write(repo, tests):
    """Commits these tests beside the others, and changes something that nothing measures."""
    (repo / "test_more.py").write_text(tests)
    commit_all(repo)
    touch(repo)


@pytest.fixture(params=DISTURBING)
def disturbing(request):
    """A plugin that disturbs benchmarks."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}: pip install -e prooflops_gate[plugins]")
    return DISTURBING[request.param]


def test_plugins_that_disturb_benchmarks_are_off_and_that_is_said_once(foreign, disturbing):
    plugin, options, name = disturbing
    (foreign / "pytest.ini").write_text(INI.replace("addopts =", f"addopts = {options}"))
    commit_all(foreign)
    touch(foreign)
    done = run(foreign, ONE, *VERSUS_HEAD, PYTEST_ADDOPTS=f"-p {plugin}")
    assert done.code == 0
    assert re.search(r"^gate: passes: 1 (SAME|INCONCLUSIVE)", done.output, re.MULTILINE)
    assert done.output.count(f"run without {name}, which would disturb") == 1


def test_a_plain_run_is_recorded_without_xdist(foreign):
    pytest.importorskip("xdist", reason="needs xdist: pip install -e prooflops_gate[plugins]")
    (foreign / "pytest.ini").write_text(INI.replace("addopts =", "addopts = -p xdist.plugin -n 2"))
    commit_all(foreign)
    done = run(foreign, ONE, "--gate-record", "main")
    assert done.code == 0
    assert "this run went without xdist" in done.output
    assert "baseline main: commit " in done.output


MARKED = """
import pytest
import work

pytestmark = pytest.mark.benchmark()

def test_plain():
    assert work.busy({steps}) is not None

@pytest.mark.benchmark(group="rounds", max_rounds=4, warmup_time=1.0, min_time=0.5)
@pytest.mark.parametrize("number", [1, 2])
def test_with_parameters_and_a_fixture(tmp_path, number):
    assert tmp_path.exists()
    work.busy({steps} * number)

@pytest.mark.benchmark(max_rounds=4)
def test_fixture_and_marker(benchmark):
    benchmark(work.busy, {steps})

class TestInAClass:
    def test_method(self):
        work.busy({steps})
"""
RENAMED = """
import copy
import work

def test_renamed(benchmark):
    benchmark.fullname = benchmark.name = "a loop"
    benchmark(work.busy, {steps})

def test_several(benchmark):
    copy.copy(benchmark)(work.busy, 4000)
    second = copy.copy(benchmark)
    second(work.busy, {steps})
"""
SLOWER = {
    "test_more.py::test_plain",
    "test_more.py::test_with_parameters_and_a_fixture[1]",
    "test_more.py::test_with_parameters_and_a_fixture[2]",
    "test_more.py::test_fixture_and_marker",
    "test_more.py::TestInAClass::test_method",
    "a loop",
    "test_renamed.py::test_several#2",
}


# Times that other work on the machine does not change.
CLOCK = """
time_s = 0.0

def now():
    global time_s
    time_s += 1e-9
    return time_s

def busy(steps):
    global time_s
    time_s += 50e-9 * steps
    return steps
"""


def slower_in(output):
    """The benchmarks that a run calls slower."""
    return set(re.findall(r"^(?!SLOWER|FAILED)(\S.*?) is [\d.]+ (?:%|times)", output, re.MULTILINE))


def test_marked_renamed_and_several_benchmarks_of_a_test_are_compared(foreign):
    (foreign / "conftest.py").touch()
    (foreign / "work.py").write_text(CLOCK)
    (foreign / "test_renamed.py").write_text(RENAMED.format(steps=4000))
    write(foreign, MARKED.format(steps=4000))
    (foreign / "test_more.py").write_text(MARKED.format(steps=12000))
    (foreign / "test_renamed.py").write_text(RENAMED.format(steps=12000))
    options = (*CONFIRMING, "--benchmark-timer", "work.now")
    done = run(foreign, "test_more.py", "test_renamed.py", *options)
    assert done.code == 1
    assert slower_in(done.output) == SLOWER
    assert "FAILED test_renamed.py::test_renamed" in done.output


# What pytest-codspeed does where it is asked for: its fixtures leave no record.
CODSPEED = """
import os
import pytest

def pytest_addoption(parser):
    parser.addoption("--codspeed", action="store_true")

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "codspeed_benchmark: measured whole")
    if config.getoption("--codspeed") or "CODSPEED_ENV" in os.environ:
        config.option.benchmark_disable = True

@pytest.fixture
def codspeed_benchmark():
    return lambda function, *arguments: function(*arguments)
"""
FOR_CODSPEED = """
import os, sys
import pytest
import work

if "--codspeed" not in sys.argv and "CODSPEED_ENV" not in os.environ:
    pytest.skip("run with --codspeed", allow_module_level=True)

@pytest.fixture(scope="module", autouse=True)
def skip_without_the_option(request):
    if not request.config.getoption("--codspeed") and "CODSPEED_ENV" not in os.environ:
        pytest.skip("run with --codspeed")

def test_fixture(benchmark):
    benchmark(work.busy, {steps})

def test_other_fixture(codspeed_benchmark):
    codspeed_benchmark(work.busy, {steps})

@pytest.mark.codspeed_benchmark(max_rounds=4)
def test_marker():
    work.busy({steps})
"""


@pytest.mark.prove
@pytest.mark.parametrize("by_environment", [False, True])
def test_a_suite_for_codspeed_is_measured_by_pytest_benchmark(foreign, by_environment):
    plugin = foreign.parent / "path" / "pytest_codspeed"
    plugin.mkdir()
    (plugin / "plugin.py").write_text(CODSPEED)
    write(foreign, FOR_CODSPEED.format(steps=4000))
    (foreign / "test_more.py").write_text(FOR_CODSPEED.format(steps=12000))
    words, variables = ["--codspeed"], {}
    if by_environment:
        words, variables = [], {"CODSPEED_ENV": "1"}
    words = ["-p", "pytest_codspeed.plugin", *words, "test_more.py", *CONFIRMING]
    done = run(foreign, *words, **variables)
    assert done.code == 1
    found = {name.removeprefix("test_more.py::") for name in slower_in(done.output)}
    assert found == {"test_fixture", "test_other_fixture", "test_marker"}
    assert done.output.count("run without pytest-codspeed, which would disturb") == 1


CHANGING_IDS = """
import random, tempfile, uuid
import pytest
import work

functions = [lambda n=n: work.busy(n) for n in (300, 400)]

@pytest.mark.parametrize("f", functions, ids=str)
def test_of_an_address(benchmark, f):
    benchmark(f)

@pytest.mark.parametrize("key", [str(uuid.uuid4()), uuid.uuid4().hex])
def test_of_a_uuid(benchmark, key):
    benchmark(sum, map(ord, key))

@pytest.mark.parametrize("folder", [tempfile.mkdtemp(), tempfile.mkdtemp()])
def test_of_a_folder(benchmark, folder):
    benchmark(len, folder)

@pytest.mark.parametrize("number", [random.random()])
def test_random(benchmark, number):
    benchmark(sum, range(300))
"""


def test_ids_that_differ_are_paired_by_what_is_stable_or_named(foreign):
    write(foreign, CHANGING_IDS)
    done = run(foreign, "test_more.py", *VERSUS_HEAD)
    assert done.code == 0
    assert "not compared: 1 test whose id differs from process to process" in done.output
    assert "test_more.py::test_random[0." in done.output
    (passes,) = re.findall(r"^gate: passes: (.*)", done.output, re.MULTILINE)
    assert sum(map(int, re.findall(r"(\d+) (?:SAME|INCONCLUSIVE)", passes))) == 6, passes
    assert "MISSING" not in done.output


LEFT = """
import pytest
import work

def test_stays(benchmark):
    benchmark(work.busy)

def test_leaves(benchmark):
    benchmark(work.busy)

class TestOther:
    def test_leaves(self, benchmark):
        benchmark(work.busy)

@pytest.mark.parametrize("number", {numbers})
def test_numbers(benchmark, number):
    benchmark(work.busy, number)

if {runs}:
    def test_conditional(benchmark):
        benchmark(work.busy)
"""


def test_what_a_change_removes_is_gone_and_what_did_not_run_is_missing(
    foreign,
):
    write(foreign, LEFT.format(numbers=[300, 400], runs=True))
    less = LEFT.format(numbers=[300], runs=True).replace("test_leaves(b", "test_is_renamed(b")
    (foreign / "test_more.py").write_text(less)
    done = run(foreign, "test_more.py", *VERSUS_HEAD)
    assert done.code == 0
    for name in ("test_leaves", "test_numbers[400]"):
        assert f"test_more.py::{name} is gone" in done.output
    assert "2 GONE" in done.output
    (foreign / "test_more.py").write_text(LEFT.format(numbers=[300, 400], runs=False))
    done = run(foreign, "test_more.py", *VERSUS_HEAD)
    assert done.code == 1
    assert "1 MISSING" in done.output
    assert "gate_missing = report" in done.output


NEEDING_DATA = """
from pathlib import Path
import pytest
import work

def test_stays(benchmark):
    benchmark(work.busy)

def test_opens(benchmark):
    benchmark(sum, Path("data/in.bin").read_bytes())

def test_skips(benchmark):
    if not Path("data/in.bin").exists():
        pytest.skip("data/in.bin is not there")
    benchmark(work.busy)
"""
NOT_RUN = """
if False:
    def test_stays(benchmark): ...
"""
UNTRACKED = "A checkout of a revision has no data/in.bin, which git does not track: prepare a"


def test_what_a_benchmark_misses_there_is_named_and_nothing_in_common_is_no_green_run(foreign):
    (foreign / ".gitignore").write_text("data\n__pycache__\n")
    (foreign / "data").mkdir()
    (foreign / "data" / "in.bin").touch()
    write(foreign, NEEDING_DATA)
    done = run(foreign, "test_more.py", *VERSUS_HEAD)
    assert done.code == 0
    fails = r"test_opens is new: time .* \(it fails on the other side: FileNotFoundError: .*in.bin"
    assert re.search(fails, done.output)
    skips = r"test_skips is new: .* \(the other side skips it: data/in.bin is not there\)"
    assert re.search(skips, done.output)
    assert done.output.count(UNTRACKED) == 1
    for words, why in (
        ("-k opens", f"test_more.py::test_opens is NEW; it fails on the other side: .*{UNTRACKED}"),
        ("-k renamed", "test_renamed_that_stays is NEW\n"),
        ("-k stays -o gate_missing=report", "test_stays is MISSING; it did not run\n"),
    ):
        renamed = NEEDING_DATA.replace("test_stays", "test_renamed_that_stays") + NOT_RUN
        (foreign / "test_more.py").write_text(renamed)
        done = run(foreign, "test_more.py", *words.split(), *VERSUS_HEAD)
        assert done.code == 4
        none = "--gate-versus HEAD: no benchmark ran on both sides: nothing can be compared\n.*"
        assert re.search(none + why, done.output, re.DOTALL)
