"""What the calls that pytest-benchmark doesn't time show of memory; none is added, and timing stays as it is."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from prooflops.history.resources import FEWEST

from meta_tests.prooflops.gate.foreign_repo import run, run_git
from meta_tests.prooflops.gate.test_child_plugin import BRIEF
from meta_tests.prooflops.gate.without_processes import config
from prooflops.gate import call_resources
from prooflops.gate.call_resources import INSTRUCTIONS, MEMORY, UntimedCall, call_traced, measured_in
from prooflops.gate.processes import Replicates, Side
from prooflops.history.rows import RESOURCES
from prooflops.statistics.plan import LOOKS

TESTS = """
import tracemalloc
from collections import deque
import pytest

class Calls(deque):  # a list that grows in the traced call counts whole, and that of a fast machine is long
    def __call__(self, block=1000):
        self.append(tracemalloc.is_tracing())
        return bytearray(block)

def test_plain(benchmark):
    calls = [0, 0]  # not traced, traced: a list of thousands might grow in the traced call and be counted with it
    def make(block):
        calls[tracemalloc.is_tracing()] += 1
        return bytearray(block)
    assert len(benchmark(make, 100_000)) == 100_000
    assert calls[0] and calls[1] == 1

def test_by_keyword(benchmark):
    assert benchmark(function_to_benchmark=dict, function=1, figures=2) == {"function": 1, "figures": 2}

def test_pedantic(benchmark):
    calls = Calls()
    benchmark.pedantic(calls, rounds=5, warmup_rounds=2)
    assert [*calls] == [False] * 7

def test_pedantic_iterations(benchmark):
    calls = Calls()
    benchmark.pedantic(target=calls, args=(50_000,), rounds=2, iterations=3)
    assert [*calls] == [*[False] * 6, True]

@pytest.mark.parametrize("rounds", [3, 4])
def test_pedantic_warm_up(benchmark, rounds):
    calls, made = Calls(), []
    benchmark.pedantic(calls, setup=lambda: made.append(1), rounds=2, warmup_rounds=rounds)
    assert [*calls] == [*[False] * (rounds - 2), True, False, False, False] and len(made) == rounds + 2

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
    def shown(error):
        return [each.name for each in error.traceback.filter(error) if each.path.parent.name == "prooflops_gate"]
    with pytest.raises(ValueError, match="no number") as error:
        benchmark(int, "no number")
    assert shown(error) == []
    def fails():
        assert not tracemalloc.is_tracing()
    benchmark._mode = None
    with pytest.raises(AssertionError) as error:
        benchmark.pedantic(fails, iterations=2)
    assert shown(error) == ["call_traced"]
"""


def figures_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", "no:prooflops.plugin"])
    (tmp_path / "test_it.py").write_text(TESTS)
    with Replicates(config(tmp_path), limit_s=60, **options) as replicates:
        done = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None, paces=BRIEF)
    failed = [report["longrepr"] for report in done.reports if report["outcome"] == "failed"]
    assert not failed, failed
    return {
        bench["fullname"].partition("::test_")[2]: bench["extra_info"].get("gate_resources")
        for bench in done.record["benchmarks"]
    }


def test_untimed_calls_are_measured_and_none_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures_of(tmp_path, monkeypatch)
    measured = {name: figures[MEMORY] for name, figures in found.items() if figures}
    assert measured.keys() == {
        "plain", "by_keyword", "pedantic_iterations", "pedantic_warm_up[3]", "pedantic_warm_up[4]"
    }  # fmt: skip
    assert 100_000 <= measured["plain"] < 101_000
    assert 50_000 <= measured["pedantic_iterations"] < 51_000
    assert 1000 <= measured["pedantic_warm_up[3]"] < 2000


def test_nothing_is_measured_where_the_project_does_not_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TESTS", "def test_plain(benchmark):\n    benchmark(bytearray, 99)\n")
    assert figures_of(tmp_path, monkeypatch, resources=False) == {"plain": None}


def test_the_first_processes_of_a_side_measure_enough_to_decide_and_the_later_ones_nothing() -> None:
    turns = [measured_in(process) for process in range(9)]
    assert turns[: FEWEST[MEMORY]] == [MEMORY] * FEWEST[MEMORY]
    assert turns.count(INSTRUCTIONS) >= FEWEST[INSTRUCTIONS]
    assert turns[LOOKS[0] :] == [""]


class Fixture:
    """Stands for pytest-benchmark's: calls once in a round, and once more for the result."""

    def __init__(self) -> None:
        self.stats = SimpleNamespace(extra_info={})

    def __call__(self, function_to_benchmark: Any, *args: Any, **kwargs: Any) -> Any:
        self._make_runner(function_to_benchmark, args)()
        return function_to_benchmark(*args, **kwargs)

    def pedantic(self, target: Any, args: Any = (), warmup_rounds: int = 0) -> Any:
        return [self._make_runner(target, args)() for _ in range(warmup_rounds + 1)][-1]

    def _make_runner(self, function_to_benchmark: Any, args: Any) -> Any:
        return lambda: function_to_benchmark(*args)


@pytest.mark.parametrize("permitted", [True, False])
def test_instructions_are_counted_where_that_is_permitted_and_else_memory_is_measured(
    permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_resources, "call_counted", lambda function, *args: (function(*args), 7))
    monkeypatch.setattr(call_resources, "is_permitted", lambda: permitted)
    fixture: Any = type("Fixture", (Fixture,), dict(vars(Fixture)))
    monkeypatch.setattr("pytest_benchmark.fixture.BenchmarkFixture", fixture)
    call_resources.measure_untimed_calls("")
    assert fixture.__call__ is Fixture.__call__
    call_resources.measure_untimed_calls(INSTRUCTIONS)
    benchmark = fixture()
    assert benchmark(len, "abc") == 3
    found = benchmark.stats.extra_info["gate_resources"]
    assert found == {"instructions": 7} if permitted else found.keys() == {"memory"}
    warm = fixture()
    assert warm.pedantic(bytes, (9,), warmup_rounds=3) == bytes(9)
    assert warm.stats.extra_info["gate_resources"].keys() == found.keys()
    warm.stats = None
    assert warm(len, "abc") == 3, "benchmarks are disabled"
    monkeypatch.delattr(fixture, "_make_runner")
    monkeypatch.delattr(Fixture, "_make_runner")
    before = fixture.__call__
    call_resources.measure_untimed_calls(MEMORY)
    assert fixture.__call__ is before, "built in another way than is known"


def test_every_call_begins_with_the_same_garbage_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr("gc.collect", collected.append)
    figures: dict[str, int] = {}
    assert call_traced(figures, bytes, 5000) == bytes(5000)
    assert collected == [1]
    assert 5000 <= figures["memory"] < 6000
    assert RESOURCES[::2] == (MEMORY, INSTRUCTIONS)
    monkeypatch.setattr("gc.isenabled", lambda: False)
    call_traced(figures, bytes, 1)
    assert collected == [1], "the project does without"


@pytest.mark.parametrize(("count", "figures"), [(7, {"instructions": 7}), (None, {})])
def test_instructions_are_kept_where_they_could_be_counted(
    count: int | None, figures: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_resources, "call_counted", lambda function, *args: (function(*args), count))
    untimed = UntimedCall(len, INSTRUCTIONS)
    assert (untimed("abc"), untimed.figures) == (3, figures)


class Cuda:
    """torch.cuda of two devices, on which 100 bytes each are held."""

    def __init__(self, initialized: bool) -> None:
        self.initialized, self.peaks = initialized, [999, 100]

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def memory_allocated(self, device: int) -> int:
        return 100

    def max_memory_allocated(self, device: int) -> int:
        return self.peaks[device]

    def reset_peak_memory_stats(self, device: int) -> None:
        self.peaks[device] = 100


@pytest.mark.parametrize(("initialized", "held"), [(True, 4096), (False, None)])
def test_bytes_of_cuda_are_those_of_the_call_on_all_devices_and_none_where_no_gpu_is_used(
    initialized: bool, held: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(initialized)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]

    def step() -> None:
        cuda.peaks[1] += 4096

    figures: dict[str, int] = {}
    call_traced(figures, step)
    assert figures.get("CUDA memory") == held


WORK = """
def busy():
    return sum(step * step for step in range(2000))

def holds():
    rows = {held}
    return busy()

def rewritten():
    rows = {rows}
    return busy()
"""
MEMORY_TESTS = """
import pytest, work

@pytest.mark.parametrize("name", ["holds", "rewritten"])
def test_memory(benchmark, name):
    benchmark(getattr(work, name))
"""


def test_a_call_that_holds_twice_as_much_stops_the_gate_and_one_that_holds_the_same_otherwise_does_not(
    foreign: Path, tmp_path: Path
) -> None:
    (foreign / "test_foreign.py").write_text(MEMORY_TESTS)
    (foreign / "work.py").write_text(WORK.format(held="bytes(200_000)", rows="bytes(200_000)"))
    run_git(foreign, "commit", "-qam", "two")
    (foreign / "work.py").write_text(WORK.format(held="bytes(400_000)", rows="bytearray(99_000), bytes(101_000)"))
    done = run(
        foreign, "test_foreign.py", "--gate", "--gate-versus", "HEAD", "--gate-min-effect", "40%",
        "--gate-allow-inconclusive", f"--junitxml={tmp_path / 'junit.xml'}",
    )  # fmt: skip
    assert done.code == 1, done.output
    verdicts = {
        (case.get("name"), row.get("name")): row.get("value")
        for case in ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")
        for row in case.iter("property")
    }
    assert verdicts["test_memory[holds]", "gate.memory"] == "MORE MEMORY", done.output
    assert ("test_memory[rewritten]", "gate.memory") not in verdicts, done.output
    assert re.search(r"^MORE MEMORY +19\d\.\d KiB -> 39\d\.\d KiB \(\+99\.\d%\)", done.output, re.MULTILINE), (
        done.output
    )
    assert "memory of a call is 39" in done.output
