"""One call of the runner: runs the tests that are left, and replaces each process that is lost."""

from __future__ import annotations

import selectors
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prooflops.suite.evidence.file import EvidenceFile, machine_of
from prooflops.suite.runner.process import TestProcess
from prooflops.suite.runner.queue import Queue
from prooflops.suite.runner.screen import Screen
from prooflops.suite.verdicts import LOST

# Of a test that never ends.
MOST_STARTS = 3
# What must be equal in all slices of one run.
MACHINE = ("device", "name", "driver", "torch")


class Refused(Exception):
    """The run cannot begin, or not go on; the message says why."""


@dataclass
class Slice:
    """Runs tests until none is left, the time is over, or the run is stopped."""

    file: EvidenceFile
    task: Mapping[str, Any]
    processes: int
    lock: int
    register: Callable[..., None]
    screen: Screen
    introduction: dict[str, Any] = field(default_factory=dict)
    stopped: str = ""
    _live: list[TestProcess] = field(default_factory=list)
    _started: int = 0
    _queue: Queue | None = None

    def run(self) -> None:
        """Raises Refused where pytest does not begin; ends all processes whatever happens."""
        with tempfile.TemporaryDirectory() as folder, selectors.DefaultSelector() as selector:
            try:
                for _ in range(self.processes):
                    self._start(Path(folder), selector)
                # What draws the pages takes as long to import as torch does in the processes.
                from prooflops.suite.runner import ending  # noqa: F401

                while self._live:
                    heard = {key.fileobj for key, _ in selector.select(timeout=1.0)}
                    for process in [*self._live]:
                        if process in heard or process.has_exited():
                            self._hear(process, Path(folder), selector)
                    self.screen.tick()
            finally:
                for process in self._live:
                    process.kill()

    def _start(self, folder: Path, selector: selectors.BaseSelector) -> None:
        self._started += 1
        task = {**self.task, "leads": self._started == 1}
        output = folder / f"{self._started}.txt"
        process = TestProcess(task, output, self.lock, self.register)
        self._live.append(process)
        selector.register(process, selectors.EVENT_READ)

    def _hear(self, process: TestProcess, folder: Path, selector: selectors.BaseSelector) -> None:
        reports = process.reports()
        for report in reports or ():
            self._take(process, report)
        if reports is not None:
            return
        selector.unregister(process)
        self._live.remove(process)
        self._ended(process)
        if self._needs_another(process):
            self._start(folder, selector)
        for other in self._live:
            self._advance(other)

    def _needs_another(self, lost: TestProcess) -> bool:
        """Whether tests are left that the living processes will not run, or not soon."""
        if self._queue is None or self.over or not len(self._queue):
            return False
        beside = len(self._queue) > len(self._queue.alone)
        return not self._live or (beside and lost.ready)

    @property
    def over(self) -> bool:
        return bool(self.stopped) or time.time() > float(self.task["ends_at"])

    # ---- what a process reports --------------------------------------------------------------

    def _take(self, process: TestProcess, report: dict[str, Any]) -> None:
        event = report.pop("event")
        if event == "uncollected":
            if report["test"] not in self.file.ended():
                self.file.end_without_report(
                    report["test"], "error", "it could not be collected", report["log"]
                )
        elif event == "ready":
            self._begin(report)
            process.ready = True
            self._advance(process)
            if process.announced:
                self._advance(process)
        else:
            stop = report.pop("stop")
            self.file.append("end", **report)
            self.screen.ended(report)
            process.running = ""
            process.leaving = bool(stop)
            if not stop:
                self._advance(process)
            elif not stop.startswith(LOST):
                self.stopped = stop
                assert self._queue is not None
                self._queue.clear()

    def _begin(self, introduction: dict[str, Any]) -> None:
        """Notes the plan of the first process, and compares those of the others with it."""
        plan = self.file.plan
        if not plan:
            plan = introduction["plan"]
            self.file.append("plan", **plan)
        theirs = plan["fingerprint"]
        ours = introduction["plan"]["fingerprint"]
        if any(theirs.get(key) != ours.get(key) for key in MACHINE):
            raise Refused(
                f"{self.file.path} is a run of {machine_of(plan)}, and this machine is "
                f"{machine_of(introduction['plan'])}: give another --out"
            )
        # One process alone has looked up what goes into the head of a record.
        if introduction["head"] or not self.introduction:
            self.introduction = introduction
        if self._queue is None:
            for test, starts in self.file.unended().items():
                if starts >= MOST_STARTS:
                    reason = f"started {starts} times, and never ended"
                    self.file.end_without_report(test, "crashed", reason)
            once_cut_off = self.file.unended()
            left = sorted(self.file.remaining(), key=lambda test: test in once_cut_off)
            self._queue = Queue(left, introduction["alone"])
            self.screen.begin(plan, left)

    # ---- what a process is told --------------------------------------------------------------

    def _advance(self, process: TestProcess) -> None:
        """Lets the announced test begin and announces the one behind it, unless it has to wait."""
        assert self._queue is not None
        if not process.ready or process.leaving or process.running or process.announced == "":
            return
        announced = process.announced
        if announced in self._queue.kept_apart and len(self._live) > 1:
            return
        following = self._next(process)
        if announced:
            limit_s = min(self.task["limit_s"], self.task["ends_at"] - time.time())
            self.file.append("start", test=announced, limit_s=round(limit_s, 3))
        process.announce(following)

    def _next(self, process: TestProcess) -> str:
        assert self._queue is not None
        if self.over:
            return ""
        others = [each.announced or each.running for each in self._live if each is not process]
        if test := self._queue.side_by_side(process.announced or "", others):
            return test
        if process is self._live[0] and self._queue.alone:
            return self._queue.alone.popleft()
        return ""

    # ---- a process ends ----------------------------------------------------------------------

    def _ended(self, process: TestProcess) -> None:
        how, output = process.end()
        if not process.ready:
            if self._queue is None or not self._live:
                raise Refused(f"pytest did not begin: {how}\n{output[-3000:]}")
            return
        assert self._queue is not None
        if process.announced:
            self._queue.put_back(process.announced)
        if process.running:
            self._note_lost(process.running, how, output[-20_000:])

    def _note_lost(self, test: str, how: str, log: str) -> None:
        """Ends a test that timed out, or crashed, with its process.

        One that the slice cut off runs again.
        """
        if "Timeout (" not in log:
            found = ("crashed", f"its process ended with {how}")
        elif time.time() < self.task["ends_at"]:
            found = ("timed out", f"it took longer than its limit of {self.task['limit_s']:g} s")
        else:
            return
        self.file.end_without_report(test, *found, log)
        self.screen.ended({"test": test, "status": found[0], "reason": found[1]})
