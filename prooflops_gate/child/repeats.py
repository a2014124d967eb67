"""Repeats the whole test of a short benchmark that sets its own number of rounds.

Interrupts and cold caches take longer than one round of a microsecond, so `benchmark.pedantic` with
one such round cannot compare two processes. The test is therefore run several times, with its
fixtures, and its fastest round counts. Both sides run it equally often, since first runs are the
slowest. Only the first run is reported. A test whose state allows one run alone fails in a later
one, which just ends the repetition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

FEWEST_RUNS = 10


def runs_in(seconds: float, test_s: float) -> int:
    """The number of runs of a test that fit into `seconds`, and at least FEWEST_RUNS."""
    return max(int(seconds / test_s), FEWEST_RUNS)


class Repeats:
    """Runs each test of `runs` as often as stated there, by the test's name."""

    def __init__(self, runs: Mapping[str, int], name_of: Callable[[pytest.Item], str]) -> None:
        self.runs = runs
        self.name_of = name_of
        self.is_repeating = False

    @pytest.hookimpl
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if self.name_of(item) not in self.runs or not isinstance(item, pytest.Function):
            return None
        session = getattr(item.config, "_benchmarksession", None)
        already_run = len(session.benchmarks) if session else 0
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._run_all(item)
        # Fixtures that no later test needs are torn down now. An error there is this test's.
        call = pytest.CallInfo.from_call(
            lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown"
        )
        if call.excinfo:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if session:
            _merge(session.benchmarks, already_run)
        return True

    def _run_all(self, item: pytest.Function) -> None:
        following = _copied(item)
        reports = runtestprotocol(item, nextitem=following)
        self.is_repeating = True
        for _ in range(self.runs[self.name_of(item)] - 1):
            if not all(report.passed for report in reports):
                break
            again, following = following, _copied(item)
            reports = runtestprotocol(again, log=False, nextitem=following)
        self.is_repeating = False


def _copied(item: pytest.Function) -> pytest.Function:
    """The same test with a request of its own."""
    # With a shared request, pytest would leave its fixtures for the next run.
    other = copy.copy(item)
    other._initrequest()
    return other


def _merge(benchmarks: list[Any], first: int) -> None:
    """Merges the benchmarks of one name, from position `first` on, into the first of that name."""
    merged: dict[str, Any] = {}
    for bench in benchmarks[first:]:
        known = merged.setdefault(bench.fullname, bench)
        if known is not bench and not bench.has_error:
            for seconds in bench.stats.data:
                known.stats.update(seconds)
    benchmarks[first:] = merged.values()
