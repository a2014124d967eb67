"""Lists the tests that enter marked functions, in whatever process: a plugin of pytest.

A marked function touches a file of the folder MARKS, where each worker of xdist has its own. A
fixture's functions are entered by all tests that use it. What was cached while a marked function
ran is computed again in the next test.
"""

import functools
import gc
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

# Tests of names import this file without a run.
FOLDER = Path(os.environ.get("MARKS", "."), os.environ.get("PYTEST_XDIST_WORKER", ""))
by_fixture = defaultdict(set)
caches = []


def touched():
    return {file.name for file in FOLDER.iterdir() if file.name.isdigit()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish():
    FOLDER.mkdir(exist_ok=True)
    os.environ["MARKS"] = str(FOLDER)
    own = ("accounting", "bench", "meta_tests", "prooflops")
    cached = [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    caches.extend(each for each in cached if each.__module__.startswith(own))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    value = yield
    by_fixture[fixturedef.argname] |= touched()
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    for name in touched():
        (FOLDER / name).unlink()
    start_s = time.perf_counter()
    yield
    seconds = time.perf_counter() - start_s
    entered = touched()
    if entered:
        for each in caches:
            each.cache_clear()
    numbers = entered.union(*map(by_fixture.__getitem__, item.fixturenames))
    with open(FOLDER / "tests", "a", encoding="utf-8") as file:
        print(item.nodeid.partition("[")[0], seconds, *numbers, file=file)
