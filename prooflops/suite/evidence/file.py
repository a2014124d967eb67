"""All that a run learns, row by row: in memory, or as JSON lines that are on the disk at once.

slice       a call of the runner begins: its number and commit
over        that call ended by itself; missing after a kill
plan        the machine, the arguments, and each test with the claims that it settles
fault       a red test whose cause was found in the suite afterwards, and why
start, end  of a test; its end has outcomes, figures and the log of a failure
verdicts    one per claim, once all tests have ended
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from prooflops.suite.commands import MAKE, command_of, resuming
from prooflops_gate.console.tables import many
from prooflops_gate.run_state import plain_figure

RED_STATUSES = ("failed", "error", "timed out", "crashed")
HALF_A_LOG_CHARACTERS = 60_000
BENCHMARKS = "bench/"


class Rows:
    """The rows of one run, in memory."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def append(self, event: str, **row: Any) -> None:
        self._rows.append({"event": event, **row, "at": round(time.time(), 3)})

    def rows(self, event: str = "") -> list[dict[str, Any]]:
        """The rows of one event, or all."""
        return [row for row in self._rows if event in ("", row["event"])]

    @property
    def plan(self) -> dict[str, Any]:
        """The machine, the arguments and the tests; empty until the first process has collected."""
        return next(iter(self.rows("plan")), {})

    @property
    def command(self) -> str:
        """The command that began the run; evidence of before names none."""
        first, *_ = self.rows("slice")
        return first.get("command") or command_of(MAKE, self.plan["arguments"])

    def ended(self) -> dict[str, dict[str, Any]]:
        """The end of each test, by test id.

        A red test with a row `fault` settles nothing, as if it were skipped.
        """
        ended = {row["test"]: row for row in self.rows("end")}
        for row in self.rows("fault"):
            why = f"a fault of the suite, mended since: {row['why']}"
            outcome = {"test": row["test"], "status": "skipped", "reason": why, "figures": []}
            faulty = {"status": "skipped", "reason": why, "outcomes": [outcome]}
            ended[row["test"]] = {**ended[row["test"]], **faulty}
        return ended

    def unended(self) -> dict[str, int]:
        """The tests that started and did not end, with the number of their starts."""
        ended = self.ended()
        return dict(Counter(row["test"] for row in self.rows("start") if row["test"] not in ended))

    def remaining(self) -> list[str]:
        """The tests that have not ended, in the order of the plan."""
        ended = self.ended()
        return [test for test in self.plan.get("tests", {}) if test not in ended]

    @property
    def is_over(self) -> bool:
        """True if there was a call, and the last one ended by itself."""
        began = [row["slice"] for row in self.rows("slice")]
        return bool(began) and [row["slice"] for row in self.rows("over")][-1:] == began[-1:]

    @property
    def stopped(self) -> str:
        """Why the last call stopped before its end; empty where it didn't."""
        return str([{}, *self.rows("over")][-1].get("stopped") or "")

    @property
    def partial(self) -> str:
        """The remaining part of the run, and why it remains; empty for a complete run."""
        left, planned = self.remaining(), len(self.plan.get("tests", ()))
        if not left:
            return ""
        found = f"{len(left)} of {many(planned, 'test')} not run yet"
        if reason := self.stopped:
            found = f"{reason}, after {planned - len(left)} of {many(planned, 'test')}"
        benchmarks = sum(test.startswith(BENCHMARKS) for test in left)
        return found + f", {many(benchmarks, 'benchmark')} left" * bool(benchmarks)

    @property
    def resume(self) -> str:
        """The command that runs what remains; empty if nothing remains, or no file keeps it."""
        return ""

    def end(self, stopped: str) -> None:
        """Records that the last call ended by itself."""
        self.append("over", slice=self.rows("slice")[-1]["slice"], stopped=stopped)

    def end_without_report(self, test: str, status: str, reason: str, log: str = "") -> None:
        """Records the end of a test whose own process did not."""
        self.append("end", test=test, status=status, reason=reason, outcomes=[], log=log)

    def end_lost(self, test: str, task: Mapping[str, Any]) -> str:
        """Records the end of a test that its process did not survive, with all stacks.

        Returns the reason; empty where the end of the slice cut the test off, which runs again.
        """
        stacks = Path(task["stacks"])
        text = stacks.read_text(encoding="utf-8", errors="replace") if stacks.exists() else ""
        log = shortened(text)
        stacks.unlink(missing_ok=True)
        if "Timeout (" not in log:
            error = re.search("Fatal Python error: (.*)", log)
            status, reason = "crashed", f"its process ended: {error[1] if error else 'killed'}"
        elif time.time() < task["ends_at"]:
            status, reason = "timed out", f"it took longer than its limit of {task['limit_s']:g} s"
        else:
            return ""
        self.end_without_report(test, status, reason, log)
        return reason


class EvidenceFile(Rows):
    """The rows of one run in a file, to which each of its processes appends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def resume(self) -> str:
        if not self.remaining():
            return ""
        last = self.rows("slice")[-1]
        return str(last["command"]) if last.get("finds_file") else resuming(self.path)

    def append(self, event: str, **row: Any) -> None:
        self.extend([{"event": event, **row, "at": round(time.time(), 3)}])

    def extend(self, rows: list[dict[str, Any]]) -> None:
        """Appends rows and flushes them to the disk."""
        lines = [json.dumps(row, default=plain_figure).encode() + b"\n" for row in rows]
        with open(self.path, "ab+", buffering=0) as file:
            file.seek(max(file.tell() - 1, 0))
            # A kill may have cut off the last line.
            is_whole = file.read(1) in (b"", b"\n")
            # One write, as other processes append to the same file.
            file.write((b"" if is_whole else b"\n") + b"".join(lines))
            os.fsync(file.fileno())

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines() if self.path.exists() else []

    def rows(self, event: str = "") -> list[dict[str, Any]]:
        """The rows of one event, or all, without one that a kill cut off."""
        found: list[dict[str, Any]] = []
        for line in self.lines():
            with suppress(ValueError):
                row = json.loads(line)
                # A file of something else may have lines of JSON, too.
                if isinstance(row, dict) and "event" in row:
                    found.append(row)
        return [row for row in found if event in ("", row["event"])]


def new_file(folder: Path, name: str = "") -> EvidenceFile:
    """Creates a file in a folder, named after the moment, or as given, that no other run has.

    The folder is made where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}"
    for number in count(1):
        path = folder / f"{name}-{number}.jsonl"
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            break
    return EvidenceFile(path)


def saved(rows: Rows, folder: Path) -> EvidenceFile:
    """Writes these rows to a new file in a folder."""
    file = new_file(folder)
    file.extend(rows.rows())
    return file


def machine_of(plan: Mapping[str, Any]) -> str:
    """The machine of a plan in words, as refusals name it.

    >>> machine_of({"fingerprint": {"name": "NVIDIA H200", "device": "cuda", "torch": "2.11.0"}})
    'NVIDIA H200 (cuda, torch 2.11.0)'
    """
    facts = plan["fingerprint"]
    software = [f"{key} {facts[key]}" for key in ("driver", "torch") if facts.get(key)]
    return f"{facts.get('name')} ({', '.join([str(facts.get('device')), *software])})"


def shortened(text: str) -> str:
    """A log without this machine's folder names; the middle of a very long log is omitted."""
    names = {os.getcwd(): ".", sys.prefix: "<python>", str(Path.home()): "~"}  # noqa: PTH109
    for folder, name in names.items():
        text = text.replace(folder, name) if len(folder) > 1 else text
    left_out = len(text) - 2 * HALF_A_LOG_CHARACTERS
    if left_out <= 0:
        return text
    begin, end = text[:HALF_A_LOG_CHARACTERS], text[-HALF_A_LOG_CHARACTERS:]
    return f"{begin}\n... {left_out:,} characters ...\n{end}"
