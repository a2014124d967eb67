"""The plugin of a process that the gate started, loaded there by `-p`.

A side may have another Python, and another release of this package or none. So the gate puts a
folder with this package alone first on its path. This file and its imports use the standard
library, pytest and pytest-benchmark. The plugin selects the tests of the gate's task itself,
because pytest stops at a node id on its command line that this side lacks. It writes the process's
record, with the gate's data under the key `replicate`.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import re
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate.child import turns
from prooflops_gate.child.callgrind import InstructionCounter
from prooflops_gate.child.calls import instrument
from prooflops_gate.child.turns import LAST, NEXT, Turn, footprint
from prooflops_gate.child.whole_tests import WholeTests, marker_arguments
from prooflops_gate.identity import folded, stable_names
from prooflops_gate.machine.contention import Watch, without_own
from prooflops_gate.machine.core_speed import CoreSpeed
from prooflops_gate.run_state import (
    RECORD,
    RECORD_TO,
    is_benchmark,
    is_whole_benchmark,
    plain_figure,
)
from prooflops_gate.unpatched import os, time

# This variable names the file of the process's task.
TASK_FILE = "PROOFLOPS_GATE_TASK"
TASK = pytest.StashKey[dict[str, Any]]()
PACE_OPTIONS = {"max_time": "--benchmark-max-time", "min_rounds": "--benchmark-min-rounds"}
PACE_ON_COMMAND_LINE = pytest.StashKey[set[str]]()
# A benchmark's extra_info has the name of its test under this key.
TEST_KEY = "gate_test"


class ChildPlugin:
    """Selects tests, paces the benchmarks among them, and collects the gate's data on them.

    Tests are called by their stable names. The keys of `pace_on_command_line` override `paces`, as
    does a benchmark's own marker.
    """

    def __init__(self, task: dict[str, Any], pace_on_command_line: set[str]) -> None:
        self.tests: set[str] | None = None if task["tests"] is None else set(task["tests"])
        self.paces: dict[str, dict[str, Any]] = task["paces"]
        self.pace_on_command_line = pace_on_command_line
        self.examined = set(task["examined"])
        fastest_s = math.inf if task["fastest_s"] is None else task["fastest_s"]
        self.speed, self.turn = CoreSpeed(fastest_s, task["patience_s"]), Turn(task["turn"])
        counting = task["counting"]
        self.counter: InstructionCounter | None = None
        self.count_until = math.inf
        if counting:
            self.counter = InstructionCounter(task["dumps"], counting["by_function"])
            self.count_until = counting["until"]
        self.memory: set[str] | None = None if task["memory"] is None else set(task["memory"])
        self.names: dict[str, str] = {}
        self.collected: list[str] = []
        self.whole_tests: set[str] = set()
        self.current = ""
        # A marker or the command line sets the seconds of these benchmarks.
        self.fixed: set[str] = set()
        # These benchmarks choose their own rounds, by the gate's pace.
        self.follow_pace: set[str] = set()
        # Only the first process of a side spends these seconds.
        self.once_s: dict[str, float] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.calls_cpu_s = 0.0
        self.reports: list[Any] = []
        self.contention: dict[str, Any] = {}
        # Sampling the cores causes context switches itself.
        self.own_switches_per_s: dict[str, float] = {}
        self.errors: list[str] = []
        self.ended: pytest.Session | None = None

    def name_of(self, item: pytest.Item) -> str:
        """The name of a test that is the same in every process."""
        return self.names.get(item.nodeid, item.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        self.names = stable_names(item.nodeid for item in items)
        self.collected = [self.name_of(item) for item in items if is_benchmark(item)]
        kept, dropped = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            is_listed = self.tests is None or self.name_of(item) in self.tests
            (kept if is_listed and is_benchmark(item) else dropped).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept
        self.whole_tests = {self.name_of(item) for item in filter(is_whole_benchmark, kept)}
        for item in kept:
            self.set_pace(item)

    def set_pace(self, item: pytest.Item) -> None:
        """Sets the gate's pace by a new closest marker, the one that pytest-benchmark reads."""
        own = marker_arguments(item)
        if "max_time" in self.pace_on_command_line or "max_time" in own:
            self.fixed.add(self.name_of(item))
        pace = dict(self.pace_of(self.name_of(item)))
        for key in self.pace_on_command_line:
            pace.pop(key, None)
        item.add_marker(pytest.mark.benchmark(**{**pace, **own}), append=False)

    def pace_of(self, name: str) -> dict[str, Any]:
        """The gate's pace of a benchmark."""
        return self.paces.get(name, self.paces.get("", {}))

    def is_fixed(self, item: pytest.Item) -> bool:
        """True if the project itself, or the command line, sets how long this benchmark runs."""
        name = self.name_of(item)
        # No public name shows that a test called `benchmark.pedantic`, whose rounds no option
        # changes.
        mode = getattr(getattr(item, "funcargs", {}).get("benchmark"), "_mode", None)
        return name in self.fixed or ("pedantic" in str(mode) and name not in self.follow_pace)

    def pace(self, item: pytest.Item) -> tuple[float, int, bool]:
        """A benchmark's seconds, its least rounds, and whether an earlier process checked it."""
        marker, option = item.get_closest_marker("benchmark"), item.config.option
        kwargs = marker.kwargs if marker else {}
        self.follow_pace.add(self.name_of(item))
        seconds = kwargs.get("max_time", option.benchmark_max_time)
        rounds = kwargs.get("min_rounds", option.benchmark_min_rounds)
        return float(seconds), int(rounds), self.name_of(item) in self.examined

    def leave_out(self, item: pytest.Item, seconds: float) -> None:
        """Leaves `seconds` out of the benchmark's time.

        Later processes skip this work, because the first has done it.
        """
        self.leave_out_of(self.name_of(item), seconds)

    def leave_out_of(self, name: str, seconds: float) -> None:
        self.once_s[name] = self.once_s.get(name, 0.0) + seconds

    def measures_memory(self) -> bool:
        """True if the memory of the current test is to be measured."""
        is_listed = self.memory is None or self.current in self.memory
        # Whole tests may allocate so often that tracing takes minutes.
        return is_listed and self.current not in self.whole_tests

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        # This process waits before fixtures are made and another plugin's timeout begins.
        self.turn.wait(NEXT)
        self.current = self.name_of(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.counter and time.monotonic() > self.count_until:
            pytest.skip("the time for counting instructions is over")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        if self.counter:
            self.counter.name = self.current
        if self.counter or not is_benchmark(item):
            yield
            return
        # The prooflops plugin, where it is active, watches by itself and records the result.
        is_watched = item.config.pluginmanager.hasplugin("prooflops_gate.plugin")
        watch = None if is_watched else Watch()
        began, began_cpu = time.monotonic(), time.process_time()
        own_switches, known = self.speed.own_switches, len(_benchmarks(item.config))
        self.speed.begin()
        self.speed.look()
        yield
        self.speed.look(last=True)
        seconds = time.monotonic() - began
        self.calls_cpu_s += time.process_time() - began_cpu
        name = self.current
        once_s = self.once_s.get(name, 0.0)
        self.calls[name] = {
            "seconds": seconds - once_s,
            "once_s": once_s,
            "fixed": self.is_fixed(item),
            "stretch_s": self.speed.stretch_s,
        }
        self.own_switches_per_s[name] = (self.speed.own_switches - own_switches) / seconds
        for bench in _benchmarks(item.config)[known:]:
            bench.extra_info[TEST_KEY] = name
        if watch:
            self.contention[name] = watch.stop()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, None]:
        outcome = yield
        report = outcome.get_result()
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        self.reports.append(data | {"nodeid": self.name_of(item)})

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, None]:
        self.turn.wait(LAST)
        if "hypothesis" not in sys.modules:
            # Hypothesis's plugin would import all of Hypothesis to print a summary, which takes
            # half of the time of a small process.
            session.config.pluginmanager.unregister(name="hypothesispytest")
        yield
        # If the prooflops plugin is active, it has made the record by now.
        made = session.config.stash.get(RECORD, None)
        record = made or {"benchmarks": self.benchmarks(session.config), "prooflops": {}}
        name_benchmarks(record["benchmarks"])
        for bench in record["benchmarks"]:
            test = bench.get("test", bench["fullname"])
            own = self.own_switches_per_s.get(test, 0.0)
            if contention := bench["extra_info"].get("contention"):
                bench["extra_info"]["contention"] = without_own(contention, own)
        record["replicate"] = self.data()
        path = Path(os.environ[RECORD_TO])
        part = path.with_suffix(".part")
        part.write_bytes(json.dumps(record, default=plain_figure).encode())
        part.replace(path)
        self.ended = session

    def data(self) -> dict[str, Any]:
        """The gate's data, for the record."""
        return {
            "prefix": sys.prefix,
            "modules": modules(),
            "errors": self.errors,
            "reports": self.reports,
            "calls": self.calls,
            "collected": self.collected,
            **(self.counter.result if self.counter else {"counts": None}),
            "fastest_s": self.speed.fastest_s,
            "was_fast": self.speed.was_fast,
            "waited_s": self.speed.waited_s,
            "idle_s": self.turn.waited_s,
            "footprint": footprint(),
            "start_cpu_s": time.process_time() - self.calls_cpu_s,
        }

    def leave(self) -> None:
        """Ends the process without clearing its modules (0.5 to 1.2 s with torch).

        Called at exit, last.
        """
        if self.ended:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.ended.exitstatus)

    def benchmarks(self, config: pytest.Config) -> list[dict[str, Any]]:
        """The part of pytest-benchmark's JSON that the gate compares.

        Used where the prooflops plugin is inactive.
        """
        found = []
        for bench in _benchmarks(config):
            if not bench or bench.has_error:
                continue
            contention = self.contention.get(bench.extra_info.get(TEST_KEY, ""), {})
            extra = {**bench.extra_info, "contention": contention}
            stats = {"min": bench.stats.min}
            found.append({"fullname": bench.fullname, "stats": stats, "extra_info": extra})
        return found


def _benchmarks(config: pytest.Config) -> list[Any]:
    """pytest-benchmark's list of what it has measured so far."""
    # No hook of pytest-benchmark hands out its session.
    session = getattr(config, "_benchmarksession", None)
    return session.benchmarks if session else []


def name_benchmarks(benchmarks: list[dict[str, Any]]) -> None:
    """Gives each benchmark a name that is the same in every process.

    A benchmark is called as its test, unless the project named it otherwise: then the key `test`
    has its test's name. Several benchmarks of one name are numbered.

    >>> found = [
    ...     {"fullname": "t.py::f[0x7f0000000010]", "extra_info": {"gate_test": "t.py::f[0x…]#2"}},
    ...     {"fullname": "sum of ten", "extra_info": {"gate_test": "t.py::g"}},
    ... ]
    >>> name_benchmarks(found)
    >>> [(each["fullname"], each.get("test")) for each in found]
    [('t.py::f[0x…]#2', None), ('sum of ten', 't.py::g')]
    """
    seen = Counter[str]()
    for bench in benchmarks:
        extra = bench.setdefault("extra_info", {})
        given = folded(bench["fullname"])
        test = extra.pop(TEST_KEY, given)
        name = test if test.partition("#")[0] == given else given
        seen[name] += 1
        bench["fullname"] = name if seen[name] == 1 else f"{name}#{seen[name]}"
        if bench["fullname"] != test:
            bench["test"] = test


def modules() -> dict[str, str]:
    """The file of every imported module, and of every shared library beside these, by its name.

    The standard library and this package are left out.
    """
    linked, library = f"{__name__.partition('.')[0]}.", os.path.dirname(os.__file__)
    standard = library, os.path.realpath(library)

    def is_standard(file: str) -> bool:
        # Python's own folder may hold site-packages.
        return file.startswith(standard) and "-packages" not in file

    found, files = dict[str, str](), set[str]()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        files |= {file, os.path.realpath(file)} if file.endswith(".so") else {file}
        if not f"{name}.".startswith(linked) and not is_standard(file):
            found[name] = os.path.abspath(file)
    for file in turns.mapped():
        if re.search(r"\.so[.\d]*$", file) and file not in files and not is_standard(file):
            found.setdefault(os.path.basename(file), file)
    return found


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, args: list[str]
) -> Generator[None, None, None]:
    # Processes that the tests start must not see the variable.
    task = json.loads(Path(os.environ.pop(TASK_FILE)).read_text(encoding="utf-8"))
    for name, value in task["restore"].items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    words = {word.partition("=")[0] for word in args}
    early_config.stash[PACE_ON_COMMAND_LINE] = {
        key for key, option in PACE_OPTIONS.items() if option in words
    }
    early_config.stash[TASK] = task
    # The paths on the command line, and the conftest.py beside them, are those of the parent's
    # side.
    early_config.known_args_namespace.file_or_dir = task["targets"]
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, None, None]:
    config.args = config.option.file_or_dir = config.stash[TASK]["targets"]
    yield


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "gate: known to strict markers where the plugin is not installed"
    )
    replicate = ChildPlugin(config.stash[TASK], config.stash[PACE_ON_COMMAND_LINE])
    if replicate.counter:
        replicate.counter.instrument()
    else:
        longest_s = config.stash[TASK]["longest_s"]
        instrument(
            replicate.measures_memory,
            lambda seconds: replicate.leave_out_of(replicate.current, seconds),
            replicate.speed,
            longest_s,
        )
    # Functions that the tests register later run before this one.
    atexit.register(replicate.leave)
    config.pluginmanager.register(replicate, "prooflops_gate.replicate")
    if not config.pluginmanager.hasplugin("prooflops_gate.whole_tests"):
        config.pluginmanager.register(WholeTests(), "prooflops_gate.whole_tests")
