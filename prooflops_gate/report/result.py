"""The result of a run of the gate: which rows fail it, and the last line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prooflops_gate.comparison import Comparison
from prooflops_gate.instruments.time_rule import OPEN, excludes
from prooflops_gate.options import REPORT_ONLY, Settings
from prooflops_gate.report.sentences import next_step, summary
from prooflops_gate.rows import Row, joined, worst_first

FINISHED, INTERRUPTED, BROKEN = "finished", "interrupted", "broken"
DECIDED = ("SAME", "SLOWER", "FASTER")


@dataclass(frozen=True)
class Result:
    """A comparison with its consequences, or why it did not end.

    `rows` are the worst first. `warning`: what a run that passes left undecided.
    `verdict` is the whole run in one line, `next_step` what to do. `reason`: why the status is not
    FINISHED. `failed_tests` failed by themselves.
    """

    title: str
    rows: Sequence[Row] = ()
    failing: Sequence[Row] = ()
    warning: str = ""
    lines: Sequence[str] = ()
    details: Sequence[str] = ()
    verdict: str = ""
    next_step: str = ""
    table: Sequence[Sequence[str]] = ()
    status: str = FINISHED
    reason: str = ""
    failed_tests: Sequence[str] = ()

    @property
    def reported_only(self) -> set[str]:
        """The verdicts on more resources that do not fail this run."""
        return {"MORE MEMORY", "MORE INSTRUCTIONS"} - {row.verdict for row in self.failing}


@dataclass(frozen=True)
class Judge:
    """Decides which rows fail a run, by its settings."""

    settings: Settings

    def failing(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that fail the gate, the worst first."""
        rows = worst_first(rows)
        if self.settings.bisect:
            return [row for row in rows if row.is_time and row.verdict == "SLOWER"]
        if not self.settings.gate:
            return []
        return [row for row in rows if self.fails(row, self.settings.allowed_open)]

    def fails(self, row: Row, allowed_open: float) -> bool:
        """True if a row fails the gate.

        Undecided benchmarks pass where a larger change is excluded.
        """
        if row.verdict == "INCONCLUSIVE":
            # A skipped test has no time.
            return row.is_open and not excludes(row.effect, allowed_open)
        return row.verdict in failing_verdicts(self.settings)

    def result(
        self,
        found: Comparison,
        failed_tests: Sequence[str],
        status: str = FINISHED,
        reason: str = "",
    ) -> Result:
        """The results so far, and their meaning."""
        rows = worst_first(found.rows)
        failing = self.failing(rows)
        warning, passing = self.open_ones(rows)
        if failing or failed_tests:
            warning = ""
        return Result(
            title=found.title,
            rows=rows,
            failing=failing,
            warning=warning,
            lines=[*filter(None, [passing]), *found.notes],
            details=found.details,
            verdict=self.verdict(found, rows, failing, failed_tests, status),
            next_step=next_step(rows, failing, failed_tests) if self.settings.gate else "",
            table=found.table,
            status=status,
            reason=reason,
            failed_tests=sorted(failed_tests),
        )

    def verdict(
        self,
        found: Comparison,
        rows: Sequence[Row],
        failing: Sequence[Row],
        failed_tests: Sequence[str],
        status: str,
    ) -> str:
        """The whole run in one line: a benchmark that failed by itself fails it, too."""
        said = summary(failed_tests, rows)
        if status != FINISHED:
            said = f"gate: {status}: {said}"
        elif self.settings.gate or self.settings.bisect:
            said = f"gate: {'fails' if failing or failed_tests else 'passes'}: {said}"
        report_only = REPORT_ONLY if self.settings.reports_only and status == FINISHED else ""
        return joined(said, found.effort, report_only)

    def open_ones(self, rows: Sequence[Row]) -> tuple[str, str]:
        """A warning of undecided benchmarks, or a line on the ones that pass.

        The warning is of those that pass only because `gate_undecided` is pass. Each may be empty.
        """
        settings = self.settings
        is_open = [row for row in rows if row.is_open]
        if not (settings.gate and is_open):
            return "", ""
        hiding = sum(self.fails(row, OPEN) for row in is_open)
        if math.isinf(settings.allowed_open) and hiding:
            warning = (
                f"{len(is_open)} undecided, of which {hiding} could hide a slowdown of {OPEN:.0%}"
            )
            if not any(row.verdict in DECIDED for row in rows if row.is_time):
                warning = f"this run decided nothing: {warning}"
            return f"{warning}; gate_undecided = fail makes this red", ""
        allowed = min(settings.allowed_open, OPEN)
        passing = sum(not self.fails(row, settings.allowed_open) for row in is_open)
        line = (
            f"{passing} INCONCLUSIVE passed: more than {allowed:.0%} is excluded (gate_undecided)"
        )
        return "", line if passing else ""


def failing_verdicts(settings: Settings) -> set[str]:
    """The verdicts that fail a gate of these settings."""
    found = {"CHANGED", "SLOWER"}
    if settings.missing_fails:
        found.add("MISSING")
    if settings.memory == "fail":
        found.add("MORE MEMORY")
    return found
