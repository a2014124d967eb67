"""Runs the suite as one rank of a job: rank 0 writes, and a rank that fails alone ends the job.

torchrun or a scheduler launches the ranks. This module reads the five variables that torchrun
sets. It imports no torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from prooflops_gate.console.tables import aligned, engineering, share
from prooflops_gate.options import settings

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RATES = {"algorithm bandwidth": "algbw_bytes_per_s", "bus bandwidth": "busbw_bytes_per_s"}


@dataclass(frozen=True)
class JobRank:
    """This process's place in the job."""

    rank: int
    size: int
    local_rank: int


def job_rank(environment: Mapping[str, str] | None = None) -> JobRank | None:
    """This process's rank; None unless all five variables of torchrun are set.

    Some clusters set RANK and WORLD_SIZE in every shell. Raises ValueError for invalid values.

    >>> ranks = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    >>> variables = {**ranks, "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    >>> job_rank(variables), job_rank({"RANK": "3", "WORLD_SIZE": "4"})
    (JobRank(rank=3, size=4, local_rank=0), None)
    """
    environment = os.environ if environment is None else environment
    if any(name not in environment for name in VARIABLES):
        return None
    try:
        rank, size, local = (int(environment[name]) for name in VARIABLES[:3])
    except ValueError:
        rank = size = local = -1
    if not 0 <= rank < size or local < 0:
        got = ", ".join(f"{name}={environment[name]}" for name in VARIABLES[:3])
        raise ValueError(f"RANK must be below WORLD_SIZE, and LOCAL_RANK not negative; got {got}")
    return JobRank(rank, size, local)


def is_writer() -> bool:
    """True if this process writes the record and report: rank 0, or a run outside a job."""
    own = job_rank()
    return own is None or own.rank == 0


def device_of(request: str | None, own: JobRank, counts: Mapping[str, int]) -> str | None:
    """The name of this rank's device: the accelerator of its local rank, or the requested device.

    `counts`: visible devices per kind. A scheduler may show each rank only its own card.
    Raises ValueError if all ranks would share one card, or cards are too few.

    >>> rank = JobRank(3, 4, 1)
    >>> device_of(None, rank, {"cuda": 2}), device_of("cpu", rank, {"cuda": 2})
    ('cuda:1', 'cpu')
    >>> device_of(None, JobRank(3, 4, 1), {"cuda": 1}), device_of(None, JobRank(3, 4, 1), {})
    ('cuda:0', None)
    """
    kind = request if request is not None else next(iter(counts), None)
    if kind is None or kind not in counts:
        if request is not None and ":" in request and own.size > 1:
            raise ValueError(
                f"--device {request}: each rank uses the card of its local rank; "
                f"give --device {request.partition(':')[0]}, or no --device"
            )
        return request
    if own.local_rank >= counts[kind] > 1:
        raise ValueError(
            f"rank {own.rank} is the local rank {own.local_rank}, but this machine has "
            f"{counts[kind]} {kind} devices: start at most {counts[kind]} ranks on it"
        )
    return f"{kind}:{own.local_rank if counts[kind] > 1 else 0}"


class RankPlugin:
    """The plugin of one rank of a job."""

    def __init__(self, config: pytest.Config, own: JobRank) -> None:
        if settings(config).orchestrated:
            raise pytest.UsageError("the gate starts processes of its own: run it without torchrun")
        self.rank, self.size = own.rank, own.size
        self.failed_alone = False
        self._config = config
        self._status = 0
        self._output = io.StringIO()
        if own.rank:
            self._silence()

    def _silence(self) -> None:
        """Suppresses this rank's output and files; rank 0 writes them."""
        from _pytest.terminal import TerminalReporter

        manager = self._config.pluginmanager
        for name in ("lfplugin", "nfplugin", "stepwiseplugin", "prooflops_gate.plugin"):
            if manager.hasplugin(name):
                manager.unregister(name=name)
        for plugin in list(manager.get_plugins()):
            if type(plugin).__name__ == "LogXML":
                # Stays registered: it unregisters itself.
                plugin.logfile = os.devnull
        session = getattr(self._config, "_benchmarksession", None)
        for option in ("json", "save", "autosave"):
            if getattr(session, option, None):
                setattr(session, option, None)
        if standard := manager.getplugin("terminalreporter"):
            manager.unregister(standard)
            manager.register(TerminalReporter(self._config, self._output), "terminalreporter")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.failed or (
            call.excinfo and getattr(call.excinfo.value, "on_all_ranks", False)
        ):
            return report
        self.failed_alone = True
        # The launcher names the rank that failed first.
        item.session.shouldfail = (
            f"rank {self.rank} of {self.size} failed in {item.nodeid}, so the job ends here; if it "
            "lost its connection, another rank failed first"
        )
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._status = int(exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from prooflops.suite.page import writing

        finished = terminalreporter.config.stash.get(writing.FINISHED, None)
        found = finished.content["benchmarks"] if finished else []
        benchmarks = [bench for bench in found if "ranks" in bench["extra_info"]]
        if benchmarks and not self.rank:
            terminalreporter.section(f"{self.size} ranks")
            for line in aligned(table(benchmarks)):
                terminalreporter.write_line(line)
            for bench in benchmarks:
                for text in bench["extra_info"]["stragglers"]:
                    terminalreporter.write_line(f"straggler: {text} [{bench['name']}]", yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        failed = self._status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if failed and self.rank:
            capture = self._config.pluginmanager.get_plugin("capturemanager")
            if capture:
                capture.suspend_global_capture(in_=True)
            for line in self._output.getvalue().splitlines():
                print(f"[rank {self.rank}] {line}", file=sys.stderr)
        # A pending collective would keep the process alive.
        if self.failed_alone:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status or 1)


# ---- printing about a job -----------------------------------------------------------------------


def table(benchmarks: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per benchmark: time on the slowest rank, bandwidths, efficiency."""
    rows = [["benchmark", "time", *RATES, "efficiency"]]
    for bench in benchmarks:
        extra = bench["extra_info"]
        rates = [engineering(extra[key], "B/s") if key in extra else "-" for key in RATES.values()]
        name = str(bench["name"]).removeprefix("test_")
        efficiency = share(extra.get("efficiency"), "-")
        rows.append([name, engineering(extra["seconds"], "s"), *rates, efficiency])
    return rows
