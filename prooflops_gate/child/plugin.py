"""The plugin of a process that the gate started, loaded there by `-p`.

The other side may have another Python, and another release of this package or none: the gate puts a folder first on its
path that holds this package alone. This file and its imports use the standard library, pytest and pytest-benchmark. The
plugin selects the tests that the gate asked for, because pytest stops at a node id on the command line that this side
lacks, and adds the gate's data to the process's record, under the key `replicate`.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate.child.callgrind import Counter
from prooflops_gate.child.calls import instrument
from prooflops_gate.child.repeats import Repeats, runs_in
from prooflops_gate.child.turns import LAST, NEXT, Turn, footprint
from prooflops_gate.machine.contention import Watch, without_own
from prooflops_gate.machine.core_speed import CoreSpeed
from prooflops_gate.run_state import is_benchmark, plain_figure

RECORD = "PROOFLOPS_RECORD_TO"
TASK = "PROOFLOPS_GATE_TASK"
ASKED = pytest.StashKey[dict[str, Any]]()  # the task
GIVEN = pytest.StashKey[set[str]]()  # the keys of OPTIONS that the command line sets
OPTIONS = {
    "max_time": "--benchmark-max-time",
    "min_rounds": "--benchmark-min-rounds",
}  # options that the gate sets


class Replicate:
    """Selects tests, paces the benchmarks among them, and collects the gate's data on them.

    `given`: the keys of OPTIONS that the command line sets; they override `paces`, as does a benchmark's own marker.
    """

    def __init__(self, task: dict[str, Any], given: set[str]) -> None:
        self.ids: set[str] | None = None if task["ids"] is None else set(task["ids"])
        self.benchmarks_only: bool = task["benchmarks_only"]
        self.paces: dict[str, dict[str, Any]] = task["paces"]
        self.given, self.examined = given, set(task["examined"])
        fastest_s = math.inf if task["fastest_s"] is None else task["fastest_s"]
        self.speed, self.turn = CoreSpeed(fastest_s, task["patience_s"]), Turn(task["turn"])
        self.fixed: set[str] = set()  # benchmarks whose seconds a marker or the command line sets
        self.obeying: set[str] = (
            set()
        )  # benchmarks that choose their own rounds and asked for the pace
        self.once_s: dict[str, float] = {}  # seconds that only the first process of a side takes
        self.calls: dict[str, dict[str, Any]] = {}
        self.calls_cpu_s = 0.0  # CPU time of these
        counted = task["counted"] or {}  # in place of timing
        self.counter = Counter(task["dumps"], counted["by_function"]) if counted else None
        self.count_until: float = counted.get("until", math.inf)
        self.repeats = Repeats(
            {
                name: runs_in(self.chosen(name)["max_time"], test_s)
                for name, test_s in task["repeated"].items()
            }
        )
        self.reports: list[Any] = []
        self.contention: dict[str, Any] = {}
        self.own_switches_per_s: dict[
            str, float
        ] = {}  # context switches caused by the looks at the cores
        self.errors: list[str] = []
        self.session: pytest.Session | None = None  # once it has ended

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, dropped = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            is_asked = self.ids is None or item.nodeid in self.ids
            (
                kept if is_asked and (is_benchmark(item) or not self.benchmarks_only) else dropped
            ).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept
        for item in filter(is_benchmark, kept):
            self.set_pace(item)

    def set_pace(self, item: pytest.Item) -> None:
        """Sets the gate's pace by a new closest marker, the only one that pytest-benchmark reads."""
        own = item.get_closest_marker("benchmark")
        args, kwargs = (own.args, own.kwargs) if own else ((), {})
        if "max_time" in self.given or "max_time" in kwargs:
            self.fixed.add(item.nodeid)
        if pace := {
            key: value for key, value in self.chosen(item.nodeid).items() if key not in self.given
        }:
            item.add_marker(pytest.mark.benchmark(*args, **{**pace, **kwargs}), append=False)

    def chosen(self, name: str) -> dict[str, Any]:
        """The gate's pace of a benchmark."""
        return self.paces.get(name, self.paces.get("", {}))

    def is_fixed(self, item: pytest.Item) -> bool:
        """Whether the project itself, or the command line, says how long this benchmark runs."""
        # No public name tells that a test called `benchmark.pedantic`, whose rounds no option changes.
        mode = getattr(getattr(item, "funcargs", {}).get("benchmark"), "_mode", None)
        return item.nodeid in self.fixed or (
            "pedantic" in str(mode) and item.nodeid not in self.obeying
        )

    def pace(self, item: pytest.Item) -> tuple[float, int, bool]:
        """A benchmark's seconds, its least rounds, and whether an earlier process of this side has checked it."""
        marker = item.get_closest_marker("benchmark")
        kwargs = marker.kwargs if marker else {}
        self.obeying.add(item.nodeid)
        seconds, rounds = (
            kwargs.get(key, getattr(item.config.option, f"benchmark_{key}")) for key in OPTIONS
        )
        return float(seconds), int(rounds), item.nodeid in self.examined

    def leave_out(self, item: pytest.Item, seconds: float) -> None:
        """Leaves `seconds` out of the benchmark's time: later processes skip this work, as it is examined."""
        self.once_s[item.nodeid] = self.once_s.get(item.nodeid, 0.0) + seconds

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        self.turn.wait(
            NEXT
        )  # before its fixtures are made, and before another plugin's timeout begins
        began = time.monotonic()
        yield
        if item.nodeid in self.calls:
            self.calls[item.nodeid]["test_s"] = time.monotonic() - began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.counter and time.monotonic() > self.count_until:
            pytest.skip("the time for counting instructions is over")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        if self.counter:
            self.counter.name = item.nodeid
        if self.counter or not is_benchmark(item):
            yield
            return
        # The prooflops plugin, where it is active, watches by itself and records the result.
        watch = None if item.config.pluginmanager.hasplugin("prooflops_gate.plugin") else Watch()
        began, began_cpu, own_switches = (
            time.monotonic(),
            time.process_time(),
            self.speed.own_switches,
        )
        if not self.repeats.current:
            self.speed.begin()
        self.speed.look()
        yield
        self.speed.look(last=True)
        seconds = time.monotonic() - began
        self.calls_cpu_s += time.process_time() - began_cpu
        once_s = self.once_s.get(item.nodeid, 0.0)
        self.calls[item.nodeid] = {
            "seconds": seconds - once_s,
            "once_s": once_s,
            "fixed": self.is_fixed(item),
            "stretch_s": self.speed.stretch_s,
        }
        self.own_switches_per_s[item.nodeid] = (self.speed.own_switches - own_switches) / seconds
        if watch:
            self.contention[item.nodeid] = watch.stop()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, None]:
        outcome = yield
        report = outcome.get_result()
        if self.repeats.current:
            return
        self.reports.append(
            item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        )

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, None]:
        self.turn.wait(LAST)
        if "hypothesis" not in sys.modules:
            # Hypothesis's plugin would import all of Hypothesis to print a summary: half of a small replicate's time.
            session.config.pluginmanager.unregister(name="hypothesispytest")
        yield
        # By now the prooflops plugin, where it is active, has written its record.
        path = Path(os.environ[RECORD])
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
        else:
            record = {"benchmarks": self.benchmarks(session.config), "prooflops": {}}
        for bench in record["benchmarks"]:
            own = self.own_switches_per_s.get(bench["fullname"], 0.0)
            if contention := bench["extra_info"].get("contention"):
                bench["extra_info"]["contention"] = without_own(contention, own)
        record["replicate"] = {
            "prefix": sys.prefix,
            "modules": modules(),
            "errors": self.errors,
            "reports": self.reports,
            "calls": self.calls,
            **(self.counter.result if self.counter else {"counts": None}),
            "fastest_s": self.speed.fastest_s,
            "was_fast": self.speed.was_fast,
            "waited_s": self.speed.waited_s,
            "idle_s": self.turn.waited_s,
            "footprint": footprint(),
            "start_cpu_s": time.process_time() - self.calls_cpu_s,
        }
        part = path.with_suffix(".part")
        part.write_bytes(json.dumps(record, default=plain_figure).encode())
        part.replace(path)
        self.session = session

    def leave(self) -> None:
        """Ends the process without clearing its modules (0.5 to 1.2 s with torch). Called at exit, last."""
        if self.session:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.session.exitstatus)

    def benchmarks(self, config: pytest.Config) -> list[dict[str, Any]]:
        """The part of pytest-benchmark's JSON that the gate compares; used where the prooflops plugin is inactive."""
        session = getattr(config, "_benchmarksession", None)
        return [
            {
                "fullname": bench.fullname,
                "stats": {"min": bench.stats.min},
                "extra_info": {
                    **bench.extra_info,
                    "contention": self.contention.get(bench.fullname, {}),
                },
            }
            for bench in (session.benchmarks if session else ())
            if bench and not bench.has_error
        ]


def modules() -> dict[str, str]:
    """Name and file of every imported module outside site-packages, the standard library and this linked package."""
    library, linked = str(Path(os.__file__).resolve().parent), f"{__name__.partition('.')[0]}."
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            isinstance(file, str)
            and "site-packages" not in file
            and not f"{name}.".startswith(linked)
        ):
            file = os.path.realpath(file)
            if not file.startswith(library):
                found[name] = file
    return found


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, args: list[str]
) -> Generator[None, None, None]:
    # The variable is removed, so that processes that the tests start do not see it.
    task = json.loads(Path(os.environ.pop(TASK)).read_text(encoding="utf-8"))
    for name, value in task["restore"].items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    words = {word.partition("=")[0] for word in args}
    early_config.stash[GIVEN] = {key for key, option in OPTIONS.items() if option in words}
    early_config.stash[ASKED] = task
    # The parent's paths and node ids are of its own side; so are the conftest.py beside them.
    early_config.known_args_namespace.file_or_dir = task["targets"]
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, None, None]:
    config.args = config.option.file_or_dir = config.stash[ASKED]["targets"]
    yield


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "gate: known to strict markers where the plugin is not installed"
    )
    task = config.stash[ASKED]
    replicate = Replicate(task, config.stash[GIVEN])
    if replicate.counter:
        replicate.counter.instrument()
    else:
        instrument(task["measured"], replicate.speed, task["same_memory"])
    atexit.register(replicate.leave)  # functions that the tests register run before it
    config.pluginmanager.register(replicate, "prooflops_gate.replicate")
    config.pluginmanager.register(replicate.repeats, "prooflops_gate.repeats")
