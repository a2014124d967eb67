"""Runs a short benchmark with rounds of its own again and again, its whole test with set-up and
fixtures.

`benchmark.pedantic` with one round of a microsecond says nothing of a process: interrupts and cold
caches are of that size. Only the fastest round counts, so the test is run several times, as often
on both sides, since first runs are the slowest. The first is reported; a later one that fails, as
its state allows one run alone, only ends the repeating.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

FEWEST_RUNS = 10


def runs_in(seconds: float, test_s: float) -> int:
    """The number of runs of a test in so many seconds."""
    return max(int(seconds / test_s), FEWEST_RUNS)


class Repeats:
    """`runs`: of a test, by name. `current` is the id of the test that is run again."""

    def __init__(self, runs: Mapping[str, int], name_of: Callable[[pytest.Item], str]) -> None:
        self.runs, self.name_of, self.current = runs, name_of, ""

    @pytest.hookimpl
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if self.name_of(item) not in self.runs or not isinstance(item, pytest.Function):
            return None
        session = getattr(item.config, "_benchmarksession", None)
        number = len(session.benchmarks) if session else 0
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._run_all(item)
        # What later tests do not need is torn down with the last run, and an error then is this
        # test's.
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
        for _ in range(self.runs[self.name_of(item)] - 1):
            if not all(report.passed for report in reports):
                break
            again, following = following, _copied(item)
            reports = runtestprotocol(again, log=False, nextitem=following)
        self.current = ""


def _copied(item: pytest.Function) -> pytest.Function:
    """The same test with a request of its own, for pytest tears down no fixture that the next test
    needs.
    """
    other = copy.copy(item)
    other._initrequest()
    return other


def _merge(benchmarks: list[Any], first: int) -> None:
    """Adds the rounds of the later runs, from the one after `first` on, to those of the first of
    that name.
    """
    kept: dict[str, Any] = {}
    for bench in benchmarks[first:]:
        known = kept.setdefault(bench.fullname, bench)
        if known is not bench and not bench.has_error:
            for seconds in bench.stats.data:
                known.stats.update(seconds)
    benchmarks[first:] = kept.values()
