"""Runs a short benchmark with rounds of its own again and again, its whole test with set-up and fixtures.

`benchmark.pedantic` with one round of a microsecond says nothing of a process: interrupts and cold caches are of that
size. Only the fastest round counts, so the test is run several times, as often on both sides, since first runs are the
slowest. The first is reported; a later one that fails, as its state allows one run alone, only ends the repeating.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

FEWEST = 10  # runs


def runs_in(seconds: float, test_s: float) -> int:
    """The number of runs of a test in so many seconds."""
    return max(int(seconds / test_s), FEWEST)


class Repeats:
    """`runs`: of a test, by node id. `current` is the node id of the test that is run again."""

    def __init__(self, runs: Mapping[str, int]) -> None:
        self.runs, self.current = runs, ""

    @pytest.hookimpl
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if item.nodeid not in self.runs or not isinstance(item, pytest.Function):
            return None
        session = getattr(item.config, "_benchmarksession", None)
        number = len(session.benchmarks) if session else 0
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._run_all(item)
        # What later tests do not need is torn down with the last run, and an error then is this test's.
        call = pytest.CallInfo.from_call(
            lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown"
        )
        if call.excinfo:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if session:
            _merge(session.benchmarks, number)
        return True

    def _run_all(self, item: pytest.Function) -> None:
        following = _copied(item)
        reports = runtestprotocol(item, nextitem=following)
        self.current = item.nodeid
        for _ in range(self.runs[item.nodeid] - 1):
            if not all(report.passed for report in reports):
                break
            again, following = following, _copied(item)
            reports = runtestprotocol(again, log=False, nextitem=following)
        self.current = ""


def _copied(item: pytest.Function) -> pytest.Function:
    """The same test with a request of its own, for pytest tears down no fixture that the next test needs."""
    other = copy.copy(item)
    other._initrequest()
    return other


def _merge(benchmarks: list[Any], first: int) -> None:
    """Adds the rounds of the later runs, from the one after `first` on, to those of the first."""
    if len(benchmarks) > first + 1:
        for bench in benchmarks[first + 1 :]:
            if bench.fullname == benchmarks[first].fullname and not bench.has_error:
                for seconds in bench.stats.data:
                    benchmarks[first].stats.update(seconds)
        del benchmarks[first + 1 :]
