"""A pytest plugin that lists which benchmarks call a function: `-p field_trace`, with --benchmark-disable.

Calls count only within what is measured: not those of a test's setup. Stands alone, and is copied to where the
project's tests run. FIELD_FUNCTIONS: file:qualified name, separated by semicolons; FIELD_OUT: the file that is written.
"""

import json
import os
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

SOUGHT = [text.rpartition(":")[::2] for text in os.environ.get("FIELD_FUNCTIONS", "").split(";")]
callers: set[str] = set()
benchmarks: list[str] = []
running = [""]


def watch(frame, event, _argument):
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    if event == "call" and any(
        code.co_filename.endswith(file) and (sought if name != code.co_name else sought.rpartition(".")[2]) == name
        for file, sought in SOUGHT
    ):
        callers.add(running[0])


def watched(function):
    def call(*args, **kwargs):
        sys.setprofile(watch)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(None)

    return call


plain_call, plain_pedantic = BenchmarkFixture.__call__, BenchmarkFixture.pedantic
BenchmarkFixture.__call__ = lambda self, function, *args, **kwargs: plain_call(self, watched(function), *args, **kwargs)
BenchmarkFixture.pedantic = lambda self, target, *args, **kwargs: plain_pedantic(self, watched(target), *args, **kwargs)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    running[0] = item.nodeid
    yield
    if "benchmark" in getattr(item, "fixturenames", ()):
        benchmarks.append(item.nodeid)


def pytest_sessionfinish():
    with open(os.environ["FIELD_OUT"], "w", encoding="utf-8") as file:
        json.dump({"benchmarks": benchmarks, "callers": sorted(callers)}, file)
