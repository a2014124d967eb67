"""Runs of several processes, one per rank: who this one is, what only rank 0 writes, and how one failure ends the job.

torch.distributed is the engine, and torchrun or any scheduler the launcher: all that is read here are the five
variables that torchrun sets. This module imports nothing of torch.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from prooflops.console.tables import aligned, engineering
from prooflops.gate.settings import settings

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
GRACE_S = 2.0
COMMUNICATION = ("gloo", "NCCL", "ProcessGroup", "Connection", "Timed out", "timed out")


@dataclass(frozen=True)
class Place:
    """Which of the job's processes this is."""

    rank: int
    size: int
    local_rank: int


def place(environment: Mapping[str, str] | None = None) -> Place | None:
    """This process's place in the job; None where the five variables of torchrun are not set.

    All five are asked for, because some clusters set RANK and WORLD_SIZE in every shell.
    Raises ValueError for variables that are no ranks.

    >>> variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    >>> place(variables), place({"RANK": "3", "WORLD_SIZE": "4"})
    (Place(rank=3, size=4, local_rank=1), None)
    """
    environment = os.environ if environment is None else environment
    if any(name not in environment for name in VARIABLES):
        return None
    try:
        rank, size, local = (int(environment[name]) for name in VARIABLES[:3])
    except ValueError:
        rank = size = local = -1
    if not 0 <= rank < size or local < 0:
        told = ", ".join(f"{name}={environment[name]}" for name in VARIABLES[:3])
        raise ValueError(f"the environment should name a rank below WORLD_SIZE, and a local rank, got {told}")
    return Place(rank, size, local)


def is_writer() -> bool:
    """Whether this process writes the record and the report of its job: the only one, or rank 0."""
    mine = place()
    return mine is None or mine.rank == 0


def device_of(request: str | None, mine: Place, counts: Mapping[str, int]) -> str | None:
    """The name of the device of this rank: the accelerator of its local rank, or what was asked for.

    `counts`: how many devices of each kind this process sees. A scheduler may show each rank its own card only.
    Raises ValueError where all ranks would share one card, or there are too few.

    >>> device_of(None, Place(3, 4, 1), {"cuda": 2}), device_of("cpu", Place(3, 4, 1), {"cuda": 2})
    ('cuda:1', 'cpu')
    >>> device_of(None, Place(3, 4, 1), {"cuda": 1}), device_of(None, Place(3, 4, 1), {})
    ('cuda:0', None)
    """
    kind = request if request is not None else next(iter(counts), None)
    if kind is None or kind not in counts:
        if request is not None and ":" in request and mine.size > 1:
            raise ValueError(f"--device {request}: each rank takes the card of its local rank; say --device "
                             f"{request.partition(':')[0]}, or nothing")  # fmt: skip
        return request
    if mine.local_rank >= counts[kind] > 1:
        raise ValueError(f"rank {mine.rank} is the local rank {mine.local_rank}, but this machine has "
                         f"{counts[kind]} {kind} devices: start at most {counts[kind]} ranks on it")  # fmt: skip
    return f"{kind}:{mine.local_rank if counts[kind] > 1 else 0}"


class Ranked:
    """The plugin of a run that is one rank of a job."""

    def __init__(self, config: pytest.Config, mine: Place) -> None:
        if settings(config).orchestrated:
            raise pytest.UsageError("the gate starts processes of its own: run it without torchrun")
        self.place = mine
        self.tell: Callable[[str], object] = lambda text: None  # what the other ranks will be able to ask
        self.ask: Callable[[], Mapping[int, str]] = dict  # which of the others failed alone, and why
        self._config = config
        self.failed_alone = False
        self._status = 0
        self._said = io.StringIO()
        if mine.rank:
            self._be_quiet()

    def _be_quiet(self) -> None:
        """Has this rank keep its words to itself, and write nothing that rank 0 writes."""
        from _pytest.terminal import TerminalReporter

        manager = self._config.pluginmanager
        for name in ("lfplugin", "nfplugin", "stepwiseplugin", "prooflops.plugin"):
            if manager.hasplugin(name):
                manager.unregister(name=name)
        for plugin in list(manager.get_plugins()):
            if type(plugin).__name__ == "LogXML":
                plugin.logfile = os.devnull  # it unregisters itself, so it has to stay
        session = getattr(self._config, "_benchmarksession", None)
        for way in ("json", "save", "autosave"):
            if getattr(session, way, None):
                setattr(session, way, None)
        if standard := manager.getplugin("terminalreporter"):
            manager.unregister(standard)
            manager.register(TerminalReporter(self._config, self._said), "terminalreporter")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.failed or (call.excinfo and getattr(call.excinfo.value, "on_all_ranks", False)):
            return report
        self.failed_alone = True
        text = f"{item.nodeid}: {call.excinfo.exconly() if call.excinfo else report.outcome}".splitlines()[0]
        me = f"rank {self.place.rank} of {self.place.size}"
        blamed = self._what_of_the_others(text, call.excinfo.value if call.excinfo else None)
        report.sections += [("ranks", said) for said in blamed]
        item.session.shouldfail = (
            f"{'; '.join(blamed)}, so the job ends here [{me}, in {text}]"
            if blamed
            else f"{me} failed alone in {text}: the others would wait for it, so the job ends here"
        )
        return report

    def _what_of_the_others(self, text: str, error: BaseException | None) -> list[str]:
        """Leaves `text` as this rank's last word, and says which other ranks failed first, or left no word.

        Where communication failed, all that waited for the same rank leave word at about the same time. One that has
        not within two seconds is the one that they waited for.
        """
        try:
            others = dict(self.ask())
            self.tell(text)
            if others or not of_communication(error):
                return [f"rank {rank} failed first, in {what}" for rank, what in sorted(others.items())]
            until = time.monotonic() + GRACE_S
            while len(others) < self.place.size - 1 and time.monotonic() < until:
                time.sleep(0.05)
                others = dict(self.ask())
        except Exception as lost:  # the store is gone, with the rank that kept it
            return [f"the other ranks cannot be asked: {str(lost).splitlines()[0]}"]
        silent = [rank for rank in range(self.place.size) if rank not in others and rank != self.place.rank]
        return [f"rank {rank} left no word: it hangs, or was ended" for rank in silent]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._status = int(exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from prooflops.suite import report

        finished = terminalreporter.config.stash.get(report.KEY, None)
        benchmarks = [bench for bench in finished.benchmarks if "ranks" in bench["extra_info"]] if finished else []
        if benchmarks and not self.place.rank:
            terminalreporter.section(f"{self.place.size} ranks")
            for line in aligned(table(benchmarks)):
                terminalreporter.write_line(line)
            for line in stragglers(benchmarks):
                terminalreporter.write_line(line, yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        failed = self._status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if failed and self.place.rank:
            capture = self._config.pluginmanager.get_plugin("capturemanager")
            if capture:
                capture.suspend_global_capture(in_=True)
            for line in self._said.getvalue().splitlines():
                print(f"[rank {self.place.rank}] {line}", file=sys.stderr)
        if self.failed_alone:  # a collective that waits for this rank, or it for others, would keep the process
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status or 1)


def of_communication(error: BaseException | None) -> bool:
    """Whether an error is that of a rank that waited for others in vain: another rank's fault, as far as it can tell.

    >>> of_communication(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51"))
    True
    >>> of_communication(ValueError("3"))
    False
    """
    found = type(error).__name__.startswith("Dist") or any(word in str(error) for word in COMMUNICATION)
    return isinstance(error, RuntimeError) and found


# ---- what is printed of a job --------------------------------------------------------------------------------------


def table(benchmarks: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per benchmark of a job: its time on the slowest rank, its bandwidths, its efficiency, its bytes."""
    rows = [["benchmark", "time", "algorithm bandwidth", "bus bandwidth", "efficiency", "optimizer bytes per rank"]]
    for bench in benchmarks:
        extra = bench["extra_info"]
        held = [rank["optimizer_bytes"] for rank in extra["ranks"] if "optimizer_bytes" in rank]
        least, most = (f"{min(held):,}", f"{max(held):,}") if held else ("-", "-")
        rows.append([
            str(bench["name"]).removeprefix("test_"),
            engineering(extra["seconds"], "s"),
            engineering(extra["algbw_bytes_per_s"], "B/s") if "algbw_bytes_per_s" in extra else "-",
            engineering(extra["busbw_bytes_per_s"], "B/s") if "busbw_bytes_per_s" in extra else "-",
            f"{extra['efficiency']:.1%}" if "efficiency" in extra else "-",
            least if least == most else f"{least} to {most}",
        ])  # fmt: skip
    return rows


def stragglers(benchmarks: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each rank that was named a straggler, and in what."""
    return [
        f"straggler: {text} [{bench['name']}]" for bench in benchmarks for text in bench["extra_info"]["stragglers"]
    ]
