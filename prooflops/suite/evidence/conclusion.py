"""The end of a run: the record and the pages, made of its rows. It imports no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import EvidenceFile, Rows, saved
from prooflops.suite.page.run_report import run_report
from prooflops.suite.page.writing import FINISHED, FinishedRun, publish
from prooflops.suite.registry import Registry
from prooflops.suite.verdicts import LOST
from prooflops_gate.history import run_record
from prooflops_gate.options import history_folder
from prooflops_gate.run_state import PARTIAL, RECORD_PATH, is_replicate


def conclude(session: pytest.Session, rows: Rows, registry: Registry) -> None:
    """Writes record and pages of a run, and sets the exit status by all of its processes."""
    config = session.config
    if rows.stopped.startswith(LOST) and not isinstance(rows, EvidenceFile):
        rows = saved(rows, config.rootpath / ".prooflops" / "runs")
    plan = rows.plan
    # A run of only the user's model has its own page and keeps the last validation's report; so
    # does a gate run.
    is_only_model = config.getoption("model", None) and not any(plan["tests"].values())
    folder = Path(config.option.report, "partial" if rows.partial or plan["selection"] else "")
    without_pages = is_replicate() or is_only_model
    finished = finish(config, rows, registry, folder=None if without_pages else folder)
    config.stash[FINISHED] = finished
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (
        finished.report.claims or plan["tests"]
    ):
        # All that was selected is on record, or has ended in other processes.
        session.exitstatus = pytest.ExitCode.OK
    report = finished.report
    is_red = finished.unwritten or report.red_tests or report.failing_floors
    if is_red and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def finish(
    config: pytest.Config, rows: Rows, registry: Registry, *, folder: Path | None
) -> FinishedRun:
    """Writes the record of a run that has any result, and the report if there is a folder."""
    found = results.verdicts(rows, registry)
    partial = config.stash[PARTIAL] = rows.partial
    content = run_record.record_of(config, **results.facts_of(rows, found))
    if isinstance(rows, EvidenceFile):
        # Benchmarks of other processes count too; their single rounds are not kept.
        content["benchmarks"] = results.benchmarks_of(rows)
    report = run_report(content, found, registry, rows.resume)
    if not found and not content["benchmarks"]:
        return FinishedRun(report, content, None, None)
    # The record of a run in slices is written at the end of the last one.
    if not (partial and isinstance(rows, EvidenceFile)):
        run_record.save(config, content, history_folder(config))
    if not partial and not rows.rows("verdicts"):
        rows.append("verdicts", verdicts={each.id: [each.verdict, each.reason] for each in found})
    return publish(FinishedRun(report, content, folder, config.stash.get(RECORD_PATH, None)))
