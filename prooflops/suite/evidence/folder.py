"""A folder of evidence, written one JSON line at a time, so a kill loses only the running test.

    plan.json      the machine, the arguments, all tests and the claims that each settles; written by the first process
    tests.jsonl    a line when a test starts, a line with all that is known of it when it ends
    slices.jsonl   a line when a slice starts and one when it ends
    README.md      the page, made of these; output-*.txt and stacks-*.txt: the output of each process

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prooflops.history.plain import plain_figure

MOST_LOSSES = 3  # kills of its process before a test is given up
RAN = ("passed", "failed", "error", "timed out", "crashed")


class Folder:
    """Reads and writes one folder of evidence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plan(self) -> dict[str, Any]:
        """The tests to run, with machine and arguments; empty until the first process writes it."""
        try:
            return dict(json.loads((self.path / "plan.json").read_text(encoding="utf-8")))
        except OSError:
            return {}

    def append(self, file: str, **row: Any) -> None:
        """Appends one line to a file and flushes it to disk."""
        self.path.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**row, "at": round(time.time(), 3)}, default=plain_figure) + "\n"
        with open(self.path / file, "ab+") as lines:
            if lines.tell():
                lines.seek(-1, os.SEEK_END)
                line = line if lines.read(1) == b"\n" else "\n" + line  # a process was killed within its last line
            lines.write(line.encode())
            lines.flush()
            os.fsync(lines.fileno())

    def rows(self, file: str) -> list[dict[str, Any]]:
        """The parsed lines of a file, without one that a kill cut off."""
        found = []
        try:
            text = (self.path / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def ended(self) -> dict[str, dict[str, Any]]:
        """The end line of each ended test, by test id."""
        return {row["test"]: row for row in self.rows("tests.jsonl") if row["event"] == "end"}

    def unended(self) -> dict[str, list[dict[str, Any]]]:
        """The start lines of each unended test; the latest start comes last."""
        ended = self.ended()
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows("tests.jsonl"):
            if row["event"] == "start" and row["test"] not in ended:
                found[row["test"]] = [*found.pop(row["test"], []), row]
        return found

    def remaining(self) -> list[str]:
        """The tests that have not ended, in the order of the plan."""
        ended = self.ended()
        return [test for test in self.plan.get("tests", []) if test not in ended]

    def end_without_a_report(self, test: str, status: str, reason: str, log: str = "") -> None:
        """Records the end of a test whose own process did not."""
        self.append("tests.jsonl", event="end", test=test, status=status, reason=reason, outcomes=[], log=log)

    def give_up_what_kills(self) -> None:
        """Marks a test crashed after MOST_LOSSES lost processes."""
        for test, starts in self.unended().items():
            if len(starts) >= MOST_LOSSES:
                self.end_without_a_report(test, "crashed", f"{len(starts)} processes ended while it ran")


def ran_before(results: Path, own: Path) -> dict[str, set[str]]:
    """The tests that ran in the other folders of `results`, by the type of device."""
    found: dict[str, set[str]] = {}
    for plan in results.glob("*/plan.json"):
        other = Folder(plan.parent)
        if other.path != own:
            ran = {test for test, row in other.ended().items() if row["status"] in RAN}
            found.setdefault(str(other.plan.get("fingerprint", {}).get("device")), set()).update(ran)
    return found


def in_order(tests: Sequence[str], device: str, before: Mapping[str, set[str]], started: Sequence[str]) -> list[str]:
    """Orders tests: cut-off tests first, then tests new to all devices, then new to this kind of device.

    >>> in_order(["a", "b", "c", "d"], "cuda", {"cpu": {"a"}, "cuda": {"b"}}, ["d"])
    ['d', 'c', 'a', 'b']
    """
    anywhere = set().union(*before.values())
    here = before.get(device, set())
    return sorted(tests, key=lambda test: (test not in started, test in here, test in anywhere))


def chosen(results: Path, facts: Mapping[str, Any], arguments: Sequence[str], fresh: bool) -> Folder:
    """The unfinished folder for this machine and these arguments; else a new folder."""
    stem = f"{slug(facts['name'])}-{slug(facts['driver'] or 'no-driver')}-torch{slug(facts['torch'])}"
    for path in [] if fresh else sorted(results.glob(f"{stem}-*"), reverse=True):
        folder = Folder(path)
        if folder.plan.get("arguments") == list(arguments) and folder.remaining():
            return folder
    name = f"{stem}-{datetime.now(timezone.utc):%Y-%m-%d}"
    taken = Counter(path.name for path in results.glob(f"{name}*"))
    return Folder(results / next(each for each in [name, *(f"{name}-{n}" for n in range(2, 99))] if each not in taken))


def slug(text: object) -> str:
    """Makes a text safe for file names.

    >>> slug("Intel(R) Xeon(R) Processor @ 2.50GHz"), slug("2.11.0+cu130")
    ('Intel-Xeon-Processor-2.50GHz', '2.11.0+cu130')
    """
    return re.sub(r"[^A-Za-z0-9.+]+", "-", re.sub(r"\((R|TM|C)\)", "", str(text))).strip("-")
