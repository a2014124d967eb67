"""One file with all that a run learns: JSON lines, each on the disk before the next test begins.

slice       a call of the runner begins: its number and commit
over        that call ended by itself; missing after a kill
plan        the machine, the arguments, and each test with the claims that it settles
fault       a red test whose cause was found in the suite afterwards, and why
start, end  of a test; its end holds outcomes, figures and the log of a failure
verdicts    one per claim, once all tests have ended
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from prooflops_gate.run_state import plain_figure

SUITE = "the suite"
RED_STATUSES = ("failed", "error", "timed out", "crashed")


@dataclass(frozen=True)
class EvidenceFile:
    """Reads and writes the file of one run. Only the runner writes to it."""

    path: Path

    def append(self, event: str, **row: Any) -> None:
        """Appends one line and flushes it to the disk."""
        content = {"event": event, **row, "at": round(time.time(), 3)}
        self.append_lines([json.dumps(content, default=plain_figure).encode()])

    def append_lines(self, lines: list[bytes]) -> None:
        """Appends lines as they are and flushes them to the disk."""
        with open(self.path, "ab+") as file:
            file.seek(max(file.tell() - 1, 0))
            # A kill may have cut off the last line.
            whole = file.read(1) in (b"", b"\n")
            file.write((b"" if whole else b"\n") + b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines() if self.path.exists() else []

    def rows(self, event: str = "") -> list[dict[str, Any]]:
        """The rows of one event, or all, without one that a kill cut off."""
        found: list[dict[str, Any]] = []
        for line in self.lines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [row for row in found if event in ("", row["event"])]

    @property
    def plan(self) -> dict[str, Any]:
        """The machine, the arguments and the tests; empty until the first process has collected."""
        return next(iter(self.rows("plan")), {})

    def ended(self) -> dict[str, dict[str, Any]]:
        """The end of each test, by test id.

        A red test with a row `fault` becomes an error of the suite: it contradicts no claim.
        """
        ended = {row["test"]: row for row in self.rows("end")}
        for row in self.rows("fault"):
            faulty = {"status": "error", "reason": row["why"], "outcomes": [], "fault": SUITE}
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

    def end_without_report(self, test: str, status: str, reason: str, log: str = "") -> None:
        """Records the end of a test whose own process did not."""
        self.append("end", test=test, status=status, reason=reason, outcomes=[], log=log)


def new_file(folder: Path, name: str = "") -> Path:
    """The path of a new file in a folder, named after the moment, or as given."""
    name = name or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}"
    paths = (folder / f"{name}-{number}.jsonl" for number in count(1))
    return next(path for path in paths if not path.exists())


def machine_of(plan: Mapping[str, Any]) -> str:
    """The machine of a plan in words, as refusals name it.

    >>> machine_of({"fingerprint": {"name": "NVIDIA H200", "device": "cuda", "torch": "2.11.0"}})
    'NVIDIA H200 (cuda, torch 2.11.0)'
    """
    facts = plan["fingerprint"]
    software = [f"{key} {facts[key]}" for key in ("driver", "torch") if facts.get(key)]
    return f"{facts.get('name')} ({', '.join([str(facts.get('device')), *software])})"
