"""What the runner prints: the machine, each red test, how much is left, and the summary."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prooflops.suite.evidence.file import RED_STATUSES
from prooflops_gate.console.progress import minutes
from prooflops_gate.page.terminal import width_of, wrapped

# Between two lines about the progress.
INTERVAL_S = 10.0
# Share of a folder's tests that must have ended before the time of the others is estimated.
LEAST_SHARE = 0.05
COLOURS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1}


class Screen:
    """Prints like pytest's terminal reporter, and keeps count of the tests."""

    def __init__(self) -> None:
        self.isatty = sys.stdout.isatty()
        self.verbosity = 0
        self._began = self._printed_at = time.monotonic()
        self._left: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._red = 0
        self._total = 0

    # ---- the part of pytest's terminal reporter that the summary uses --------------------------

    @property
    def config(self) -> Screen:
        return self

    def get_verbosity(self) -> int:
        return self.verbosity

    def write_line(self, text: str, **markup: bool) -> None:
        codes = [str(code) for name, code in COLOURS.items() if markup.get(name)]
        if codes and self.isatty:
            text = f"\033[{';'.join(codes)}m{text}\033[0m"
        print(text, flush=True)

    def section(self, title: str, **markup: bool) -> None:
        width = width_of(isatty=self.isatty) or 80
        self.write_line(f" {title} ".center(width, "="), **markup)

    # ---- the progress ---------------------------------------------------------------------------

    def begin(self, plan: Mapping[str, Any], left: Sequence[str]) -> None:
        for line in plan["headline"]:
            for part in wrapped(line, width_of(isatty=self.isatty)):
                self.write_line(part)
        self._left = Counter(map(folder_of, left))
        self._total = len(plan["tests"])
        before = self._total - len(left)
        ended = f", of which {before:,} have ended before" if before else ""
        self.write_line(f"pace: {plan['pace']}; {self._total:,} tests{ended}")
        self._began = self._printed_at = time.monotonic()

    def ended(self, row: Mapping[str, Any]) -> None:
        folder = folder_of(row["test"])
        self._ended[folder] += 1
        self._left[folder] -= 1
        if row["status"] in RED_STATUSES:
            self._red += 1
            self.write_line(f"  {row['status']}: {row['test']}: {row['reason']}", red=True)
        elif self.verbosity > 0:
            self.write_line(f"  {row['status']}: {row['test']}")

    def tick(self) -> None:
        """Prints a line about the progress every 10 s, later at every fifth of the elapsed time."""
        now = time.monotonic()
        interval_s = max(INTERVAL_S, 0.2 * (now - self._began))
        if self.verbosity >= 0 and self._total and now - self._printed_at >= interval_s:
            self._printed_at = now
            self.write_line(f"  run: {self.progress(now - self._began)}")

    def progress(self, elapsed_s: float) -> str:
        """ "40 of 100 tests, 1 red, about 75 s left, and bench"."""
        left = +self._left
        parts = [f"{self._total - left.total():,} of {self._total:,} tests"]
        if self._red:
            parts.append(f"{self._red} red")
        ended = self._ended.total()
        unknown = []
        for folder, number in left.items():
            if self._ended[folder] < LEAST_SHARE * (number + self._ended[folder]):
                unknown.append(folder)
        known = sum(number for folder, number in left.items() if folder not in unknown)
        if known and ended:
            parts.append(f"about {minutes(known * elapsed_s / ended)} left")
        if unknown:
            parts.append(f"and {', '.join(unknown)}")
        return ", ".join(parts)

    def failures(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The logs of the red tests."""
        for row in rows:
            self.section(f"{row['status']}: {row['test']}", red=True)
            self.write_line(str(row.get("log") or row["reason"]))


def folder_of(test: str) -> str:
    return test.partition("::")[0].rpartition("/")[0] or "."
