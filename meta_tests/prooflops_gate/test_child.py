"""A fresh process of the gate.

It runs the tests asked for, at the pace asked for, and leaves a record.
"""

import inspect
import math
import re
import sys
import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from meta_tests.conftest import ROOT
from meta_tests.prooflops_gate.foreign_repo import config_in
from prooflops_gate.child.callgrind import is_usable
from prooflops_gate.first_pair import too_long
from prooflops_gate.machine.cpu import allowed_cores
from prooflops_gate.process import Processes
from prooflops_gate.rows import Row
from prooflops_gate.task import Layout, OutOfTime, Pair, ReplicateFailed, Side, Task
from prooflops_gate.where import (
    NO_FUNCTION,
    NO_PROCESS,
    NO_PYTHON,
    NO_TIME,
    explained,
    first_function,
)

BRIEF = {"": {"max_time": 0.01, "min_rounds": 2}}
WITH_PLUGIN = ("-p", "prooflops_gate.plugin")


class Children:
    """Runs child processes over one file of tests, with no plugin but pytest-benchmark."""

    def __init__(self, root, patch):
        self.root, self.options = root, ["-p", "benchmark"]
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr("prooflops_gate.process.PATIENCE_S", 0.0)
        patch.delenv("PYTHONHASHSEED", raising=False)
        self.side = Side("here", sys.executable, root, paths=(str(root),))

    def write(self, text):
        (self.root / "test_it.py").write_text(text)

    def processes(self, limit_s=60.0):
        return Processes(config_in(self.root, *self.options), limit_s)

    def run(self, processes, tests=None, **rest):
        asked = None if tests is None else tuple(tests)
        task = Task(tests=asked, **{"paces": BRIEF, "memory": None, **rest})
        return processes.run([(self.side, ["test_it.py"])], task)[0]


@pytest.fixture
def children(tmp_path, monkeypatch):
    return Children(tmp_path, monkeypatch)


def extra(done):
    """The extra_info of each benchmark."""
    return {
        bench["fullname"].partition("::")[2]: bench["extra_info"]
        for bench in done.record["benchmarks"]
    }


def outcomes(done):
    return [report["outcome"] for report in done.reports if report["when"] == "call"]


TIMED = """
import numpy

def test_timed(benchmark):
    benchmark.extra_info["flops"] = numpy.int64(7)
    benchmark.pedantic(sum, args=([1, 2],), rounds=5)

def test_not_asked_for(benchmark):
    benchmark(sum, [1, 2])
"""


@pytest.mark.parametrize("installed", [True, False])
def test_a_record_has_what_the_gate_compares_with_and_without_the_package(children, installed):
    children.write(TIMED)
    if installed:
        children.options += WITH_PLUGIN
    else:
        # Neither this package nor any that only this repository needs.
        (children.root / "prooflops.py").write_text("raise ImportError('not on this side')\n")
        (children.root / "torch.py").write_text("raise ImportError('not on this side')\n")
    with children.processes() as processes:
        done = children.run(processes, ["test_it.py::test_timed"])
    assert ("fingerprint" in done.record["prooflops"]) == installed
    (benchmark,) = done.record["benchmarks"]
    assert (benchmark["fullname"], benchmark["extra_info"]["flops"]) == (
        "test_it.py::test_timed",
        7,
    )
    assert benchmark["stats"]["min"] > 0
    assert "contended" in benchmark["extra_info"]["contention"]
    assert {report["nodeid"] for report in done.reports} == {"test_it.py::test_timed"}
    assert {"test_it", "numpy"} <= done.modules.keys()
    assert any(re.match(r"lib.*\.so", name) for name in done.modules), "mapped by numpy"
    assert "json" not in done.modules, "Python's own"
    assert not [name for name in done.modules if name.startswith("prooflops_gate")], (
        "the gate's own are no code of it"
    )


FORMS = """
import asyncio, time; time.sleep(0.2)
import pytest

async def work(n=20):
    await asyncio.sleep(0)
    return sum(range(n))

@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()

@pytest.fixture
def run_async(benchmark, loop):
    return lambda call: benchmark(lambda: loop.run_until_complete(call()))

def test_async_by_a_fixture(run_async):
    run_async(work)

class TestClass:
    n = 3

    @pytest.mark.benchmark(group="sums")
    @pytest.mark.parametrize("size", [1, 2], ids=["one", "two, with a space"])
    def test_in_a_class(self, benchmark, size):
        benchmark(sum, range(self.n * size))

@pytest.mark.benchmark(max_time=0.002, group="own")
def test_own(benchmark):
    benchmark(sum, [1, 2])

def test_pedantic_with_a_setup(benchmark):
    benchmark.extra_info["flops"] = 2
    benchmark.pedantic(sum, setup=lambda: (([1, 2],), {}), teardown=lambda values: None, rounds=4)

@pytest.mark.benchmark
def test_marked_only():
    assert sum([1, 2]) == 3
"""


def test_every_form_of_a_benchmark_is_measured_and_paced(children):
    # Not pytest-benchmark 5.0.
    has_teardown = "teardown" in inspect.signature(BenchmarkFixture.pedantic).parameters
    children.write(FORMS if has_teardown else FORMS.replace("teardown=lambda values: None, ", ""))
    children.options += WITH_PLUGIN
    with children.processes() as processes:
        done = children.run(processes)
        again = children.run(processes, list(done.calls))
    assert set(outcomes(done)) == {"passed"}
    assert {name.partition("::")[2]: call["fixed"] for name, call in done.calls.items()} == {
        "test_async_by_a_fixture": False,
        "TestClass::test_in_a_class[one]": False,
        "TestClass::test_in_a_class[two, with a space]": False,
        "test_own": True,
        "test_pedantic_with_a_setup": True,
        "test_marked_only": False,
    }
    assert list(again.calls) == list(done.calls), (
        "the ids of the first process do not select the same tests"
    )
    found = {bench["name"]: bench for bench in done.record["benchmarks"]}
    options = {name: bench["options"] for name, bench in found.items()}
    assert (options["test_own"]["max_time"], found["test_own"]["group"]) == (0.002, "own")
    assert options["test_async_by_a_fixture"]["max_time"] == 0.01
    assert options["test_async_by_a_fixture"]["min_rounds"] == 2
    assert found["test_pedantic_with_a_setup"]["stats"]["rounds"] == 4
    called_s = sum(call["seconds"] for call in done.calls.values())
    assert 0 < done.start_cpu_s < done.wall_s - called_s - 0.2, "it waits"


LONG = """
import time
import pytest

def test_long(benchmark):
    benchmark(time.sleep, 0.3)

def test_many(benchmark):
    benchmark.pedantic(time.sleep, args=(0.05,), rounds=100)

def test_short(benchmark):
    benchmark(sum, [1])
"""


def test_calls_too_long_for_the_budget_is_skipped_and_named(children):
    children.write(LONG)
    with children.processes() as processes:
        done = children.run(processes, longest_s=0.2)
    assert sorted(outcomes(done)) == ["passed", "skipped", "skipped"]
    assert [bench["fullname"] for bench in done.record["benchmarks"]] == ["test_it.py::test_short"]
    notes = {row.name.partition("::")[2]: row.note for row in too_long(Pair(done, done), {}, 0.2)}
    long = "too long for the budget of the gate: after 0 s"
    assert notes == {"test_long": long, "test_many": long}


OPTIONS = """
def pytest_addoption(parser):
    for name in "--device", "--cache-size":
        parser.addoption(name)
    parser.addoption("--points", nargs=2)
    parser.addoption("--maybe", nargs="?", const="x")
    parser.addoption("--cov")
    parser.addoption("--no-cov", action="store_true")
"""
SEEN = """
def test_kept(benchmark, request):
    benchmark.extra_info["seen"] = vars(request.config.option)
    benchmark.extra_info["style"] = request.config.getini("console_output_style")
    benchmark(sum, [1])

def test_other(benchmark):
    benchmark(sum, [1])

def test_that_fails():
    assert False
"""


OWN = "--device cuda --maybe=a --points 1 2 -xvk kept --cache-size 3 --junit-xml x.xml --lf --sw"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (
            f"--gate --gate-versus=main gone.py::test_x --benchmark-autosave {OWN}",
            {"device": "cuda", "points": ["1", "2"], "cache_size": "3", "keyword": "kept"}
            | {"file_or_dir": ["test_it.py"], "xmlpath": None, "lf": False},
        ),
        ("-o addopts=--maxfail=2 -o console_output_style=count -- a", {"benchmark_warmup": False}),
        (
            "-p no:cacheprovider --cov x -c /dev/null --benchmark-max-time=0.003",
            {"cov": "x", "no_cov": True, "benchmark_max_time": "0.003"},
        ),
    ],
)
def test_a_process_has_this_runs_options_but_what_is_the_parents_alone(children, given, seen):
    (children.root / "conftest.py").write_text(OPTIONS)
    (children.root / "pytest.ini").write_text(
        "[pytest]\n"
        "addopts = --benchmark-warmup on --strict-markers --benchmark-disable\n"
        "  --maxfail=3\n"
    )
    children.write(SEEN)
    children.options += [*WITH_PLUGIN, *given.split()]
    with children.processes() as processes:
        done = children.run(processes)
    found = extra(done)
    assert {call["fixed"] for call in done.calls.values()} == {"max-time" in given}
    options = found["test_kept"]["seen"]
    seen = {"maxfail": 0, **seen}
    assert {name: options[name] for name in seen} == seen
    assert found["test_kept"]["style"] == ("count" if "style" in given else "progress")
    assert ("test_other" in found) == ("-xvk" not in given)
    assert not [name for name in ("x.xml", ".pytest_cache") if (children.root / name).exists()], (
        "the parent's own files"
    )


ENVIRONMENT = """
import os

def test_timed(benchmark):
    benchmark.extra_info["hash"] = hash("a")
    names = "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTEST_ADDOPTS"
    benchmark.extra_info["seen"] = [os.environ.get(name) for name in names]
    benchmark.extra_info["leaks"] = [name for name in os.environ if name == "PROOFLOPS_GATE_TASK"]
    benchmark(sum, [1])
"""


def test_a_pair_shares_a_hash_seed_and_bytecode_and_its_tests_see_neither(children, monkeypatch):
    children.write(ENVIRONMENT)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--benchmark-warmup=off")
    pair, other = Layout.drawn(), Layout.drawn()
    with children.processes() as processes:
        runs = [children.run(processes, layout=layout) for layout in (pair, pair, other)]
        files = processes.folder.glob(f"bytecode/{children.root}/*.pyc")
        compiled = [file.name.partition(".")[0] for file in files]
    found = [extra(done)["test_timed"] for done in runs]
    hashes = [each["hash"] for each in found]
    assert hashes[0] == hashes[1] != hashes[2]
    assert [each["seen"] for each in found] == [[None, "1", None, None]] * 3
    assert [each["leaks"] for each in found] == [[]] * 3
    assert compiled == ["test_it"]
    assert not list(children.root.rglob("*.pyc")), "the project asked for none in its folders"
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    # Else it would compile all of its imports again.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    with children.processes() as processes:
        done = children.run(processes, layout=Layout.drawn())
    assert extra(done)["test_timed"]["seen"][0] == "7", "the user's own is kept"


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("raise RuntimeError('broken')", r"ended with exit code 2\. It printed:\n.*broken"),
        ("import os\nos.abort()", r"crashed with SIGABRT\. It printed:\nFatal Python error"),
        ("import time\ntime.sleep(60)", r"was ended after 1 s \(--gate-budget\)"),
    ],
)
def test_a_process_without_a_record_is_named_with_what_it_printed(children, test, why):
    children.write(test)
    with (
        children.processes(1.0 if "sleep" in test else 60.0) as processes,
        pytest.raises(
            ReplicateFailed, match=rf"(?s)^process 1 \(here: .* in {children.root}\) {why}"
        ),
    ):
        children.run(processes)


UNTIMED = """
import tracemalloc
from collections import deque
import time
import pytest

# A list that grows in the traced call counts whole, and that of a fast machine is long.
class Calls(deque):
    def __call__(self, block=1000):
        self.append(tracemalloc.is_tracing())
        return bytearray(block)

def test_plain(benchmark):
    # Not traced, traced. A list of thousands might grow in the traced call and be counted with it.
    calls = [0, 0]
    def make(block):
        calls[tracemalloc.is_tracing()] += 1
        return bytearray(block)
    assert len(benchmark(make, 100_000)) == 100_000
    assert calls[0] and calls[1] == 1

def test_by_keyword(benchmark):
    found = benchmark(function_to_benchmark=dict, function=1, figures=2)
    assert found == {"function": 1, "figures": 2}

def test_pedantic(benchmark):
    calls = Calls()
    benchmark.pedantic(calls, rounds=5, warmup_rounds=2)
    assert [*calls] == [False] * 7

def test_pedantic_iterations(benchmark):
    calls = Calls()
    benchmark.pedantic(target=calls, args=(50_000,), rounds=2, iterations=3)
    assert [*calls] == [*[False] * 6, True]

def test_slow_when_traced(benchmark):
    benchmark(lambda: time.sleep(0.3 if tracemalloc.is_tracing() else 0) or bytearray(9000))

def test_generator(benchmark):
    benchmark(lambda: (number for number in range(9)))

def test_coroutine(benchmark):
    async def later(): pass
    benchmark(later).close()

def test_traces_itself(benchmark):
    tracemalloc.start()
    benchmark(list, "ab")
    assert tracemalloc.is_tracing()
    tracemalloc.stop()

def test_error(benchmark):
    with pytest.raises(ValueError, match="no number") as error:
        benchmark(int, "no number")
    shown = [str(each.path) for each in error.traceback.filter(error)]
    assert not [path for path in shown if "prooflops_gate/child" in path]
    assert not tracemalloc.is_tracing()
"""


def test_memory_is_measured_in_calls_that_are_made_anyway_and_not_timed(children):
    children.write(UNTIMED)
    with children.processes() as processes:
        done = children.run(processes)
    assert set(outcomes(done)) == {"passed"}, [report["longrepr"] for report in done.reports]
    resources = {name: figures.get("gate_resources") for name, figures in extra(done).items()}
    found = {name: figures["memory"] for name, figures in resources.items() if figures}
    assert found.keys() == {f"test_{name}" for name in (
        "plain", "by_keyword", "pedantic_iterations", "slow_when_traced"
    )}  # fmt: skip
    assert 100_000 <= found["test_plain"] < 101_000
    assert 50_000 <= found["test_pedantic_iterations"] < 51_000
    # Few processes measure memory: what that takes is no cost of a pair.
    cost = done.calls[next(name for name in done.calls if "slow_when_traced" in name)]
    assert 0.3 - 0.01 < cost["once_s"] < done.wall_s - cost["seconds"]
    children.write("def test_plain(benchmark):\n    benchmark(bytearray, 99)\n")
    with children.processes() as processes:
        done = children.run(processes, memory=())
    assert "gate_resources" not in extra(done)["test_plain"]


IN_TURN = """
import time
from dataclasses import replace
from pathlib import Path
import pytest

LOG = Path(__file__).parent.parent / "log"
SIDE = Path(__file__).parent.name

def note(what):
    with LOG.open("a") as log:
        log.write(f"{SIDE} {what}\\n")

@pytest.fixture
def prepared():
    note("begins")
    time.sleep(0.02)
    yield
    time.sleep(0.02)
    note("ends")

@pytest.mark.parametrize("number", range(3 if SIDE == "a" else 4))
def test_it(benchmark, prepared, number):
    benchmark(sum, [1, 2])
"""
FINISHED = "from test_it import note\ndef pytest_sessionfinish(session):\n    note('finishes')\n"
ENDS = """
import os

def test_it(benchmark):
    benchmark(sum, [1])

def test_then(benchmark):
    os._exit(1)
"""
LOCKED = """
import os, time
while True:
    try:
        os.mkdir("../lock")
        break
    except FileExistsError:
        time.sleep(0.01)

def test_it(benchmark):
    benchmark(sum, [1, 2])
"""


def both(root, a, b):
    sides = [
        Side(name, sys.executable, root / name, paths=(str(root / name),)) for name in ("a", "b")
    ]
    for side, text in zip(sides, (a, b), strict=True):
        side.root.mkdir()
        (side.root / "test_it.py").write_text(text)
        (side.root / "conftest.py").write_text(FINISHED if "note" in text else "")
    return [(side, ["test_it.py"]) for side in sides]


def test_two_processes_run_one_test_at_a_time_in_turn(
    children,
):
    sides = both(children.root, IN_TURN, IN_TURN)
    with children.processes() as processes:
        done = processes.run(sides, Task(paces=BRIEF))
    log = (children.root / "log").read_text().splitlines()
    turns_of = [side for side in "abbaab" for _ in "12"]
    assert [line[0] for line in log[:12]] == turns_of
    assert log[12:14] == ["b begins", "b ends"], "the longer side goes on alone"
    assert sorted(log[14:]) == ["a finishes", "b finishes"], (
        "reports of one would disturb a test of the other"
    )
    assert [each.side for each in done] == [side for side, _ in sides]
    assert [len(each.record["benchmarks"]) for each in done] == [3, 4]
    assert max(each.footprint["peak_bytes"] for each in done) > 1e6


@pytest.mark.parametrize(("one", "limit_s", "most_s"), [(LOCKED, 3.0, 20), (ENDS, 60.0, 30)])
def test_a_process_that_ends_or_waits_for_the_other_does_not_hang_the_pair(
    children, one, limit_s, most_s
):
    sides = both(children.root, one, one if one == LOCKED else IN_TURN)
    began = time.monotonic()
    with children.processes() as processes, pytest.raises(ReplicateFailed):
        processes.run(sides, Task(paces=BRIEF, limit_s=limit_s))
    assert time.monotonic() - began < most_s


PATCHED = """
import io, os, pathlib, resource, sys, time
from unittest import mock
import pytest

NAMES = [
    "time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time", "time.time",
    "time.sleep", "os.getpid", "os.times", "os.getloadavg", "os.cpu_count", "os.sysconf",
    "os.listdir", "os.scandir", "os.sched_getaffinity", "os.sched_setaffinity", "io.open",
    "builtins.open", "pathlib.Path.read_text", "pathlib.Path.glob", "resource.getrusage",
]
CLOCKS = time.monotonic, time.perf_counter, time.process_time, time.thread_time, time.time

def stopped(*_, **__):
    return 1.0

@pytest.mark.parametrize("name", NAMES)
def test_of_a_patched(benchmark, monkeypatch, name):
    monkeypatch.setattr(name, stopped)
    benchmark(sum, range(1000))

def test_as_freezegun_does(benchmark, monkeypatch):
    for name, module in [*sys.modules.items()]:
        for key, value in [*vars(module).items()]:
            if name.startswith("prooflops_gate") and any(value is clock for clock in CLOCKS):
                monkeypatch.setattr(module, key, stopped)
    benchmark(sum, range(1000))

def test_without_torch(benchmark, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", mock.Mock())
    benchmark(sum, range(1000))
"""


def test_a_test_that_patches_clocks_or_the_system_is_measured_as_any_other(children):
    children.write(PATCHED)
    with children.processes() as processes:
        done = children.run(processes)
    assert set(outcomes(done)) == {"passed"}
    assert len(done.record["benchmarks"]) == len(outcomes(done)) == 22
    for call in done.calls.values():
        assert 0.001 < call["seconds"] < done.wall_s
        assert call["stretch_s"] > 0
    for seen in extra(done).values():
        assert 0 <= seen["contention"]["cpu_over_wall"] < 1000
        assert seen["contention"]["cores"] == len(allowed_cores())


# More of each is more work, of which only the first three show bytecodes.
MORE_WORK = """
import dataclasses, zlib

@dataclasses.dataclass
class Point:
    x: int = 0
    y: int = 0
    {field}: int = 0

class Method:
    def grow(self):
        for _ in range({size}):
            pass

TABLE = [*range({size})]

def test_generated(benchmark):
    benchmark.pedantic(Point)

def test_method(benchmark):
    benchmark.pedantic(Method().grow)

def test_comprehension(benchmark):
    benchmark.pedantic(lambda: [each for each in range({size})])

def test_extension(benchmark):
    benchmark.pedantic(zlib.crc32, args=(bytes(10 * {size}),))

def test_table(benchmark):
    benchmark.pedantic(lambda: -1 in TABLE)

def sort():
    for _ in range(40):
        sorted(range({size}, 0, -1))

def test_sorted(benchmark, pytestconfig):
    benchmark.pedantic(sort)
    pytestconfig.pluginmanager.get_plugin("prooflops_gate.replicate").count_until = 0

def test_late(benchmark):
    benchmark.pedantic(sort)
"""
FUNCTIONS = {
    "generated": r"<string>:.*__init__",
    "method": r"test_it.py:Method.grow",
    "comprehension": r"test_it.py:test_comprehension\.<locals>\.<lambda>.*",
    "extension": NO_PYTHON,
    "table": NO_PYTHON,
    "sorted": NO_PYTHON,
    "late": NO_PYTHON,
}
IN_C = {
    "extension": r"\w*crc32\w*",
    "table": r"\w*(contains|compare)\w*",
    "sorted": r"\w*(sort|compare|rangeiter|long|list)\w*",
    "late": NO_FUNCTION,
}


@pytest.mark.parametrize("has_valgrind", [False, pytest.param(True, marks=pytest.mark.prove)])
def test_a_row_with_more_work_names_its_function_or_says_why_not(children, has_valgrind):
    if has_valgrind and not is_usable():
        pytest.skip("valgrind is not installed")

    pairs = []

    def sample(task):
        done = []
        for size, field in ((10, "y"), (2000, "z")):
            children.write(MORE_WORK.format(size=size, field=field))
            done.append(children.run(processes, task.tests, counting=task.counting))
        pairs.append(Pair(*done))
        return pairs[-1]

    named = FUNCTIONS | IN_C if has_valgrind else FUNCTIONS
    rows = [Row(f"test_it.py::test_{name}", "time", 1.0, 2.0, "SLOWER") for name in named]
    with children.processes(300.0) as processes:
        found = explained(rows, None, sample, math.inf, print, has_valgrind=has_valgrind)
    for row, name in zip(found, named.values(), strict=True):
        assert re.fullmatch(name, first_function(row.where)), (row.name, row.where)
    before, after = pairs[-1]
    steps = before.steps["test_it.py::test_sorted"]
    assert steps == after.steps["test_it.py::test_sorted"], "as many bytecodes, whatever C does"
    assert steps["test_it.py:sort"] > 40, "a loop of 40 takes a bytecode at least each time"
    if has_valgrind:
        rise = after.counts["test_it.py::test_sorted"] - before.counts["test_it.py::test_sorted"]
        assert rise > 40 * (2000 - 10), "a number takes an instruction at least"
        assert "test_it.py::test_late" not in after.counts, "it begins after the time for it"


@pytest.mark.parametrize(("error", "why"), [(OutOfTime, NO_TIME), (ReplicateFailed, NO_PROCESS)])
def test_a_row_says_why_its_function_could_not_be_counted(error, why):
    def sample(task):
        raise error("ended")

    rows = [
        Row("a", "time", 1.0, 2.0, "SLOWER"),
        Row("b", "time", 1.0, 2.0, "SLOWER", instructions=1.0),
    ]
    found = explained(rows, None, sample, math.inf, print, has_valgrind=True)
    assert [row.where for row in found] == [why, ""]
