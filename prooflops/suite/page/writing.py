"""Writes a run's record, and its report if there is a folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite.page.page import LARGEST_SHORT_PAGE_BYTES, page_of
from prooflops.suite.page.run_report import RunReport, verdicts_json
from prooflops_gate.history import records as history
from prooflops_gate.history import trend
from prooflops_gate.history.trend import Trend
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown


@dataclass(frozen=True)
class FinishedRun:
    """A run's results, and where they were written, or why not."""

    report: RunReport
    content: Mapping[str, Any]  # the record's
    folder: Path | None
    record: Path | None
    stopped: str = ""  # why the run ended early
    unwritten: str = ""
    resume: Path | None = None  # the file of a run that can go on


FINISHED = pytest.StashKey[FinishedRun]()


def publish(finished: FinishedRun, records: Path, exact: tuple[str, ...]) -> FinishedRun:
    """Writes the pages of a run into its folder, if it has one, with the trends over records."""
    folder = finished.folder
    if folder is None:
        return finished
    names = {bench["fullname"] for bench in finished.content["benchmarks"]}
    trends = trends_of(records, exact, finished.report, names)
    finished = replace(finished, report=replace(finished.report, trends=tuple(trends)))
    try:
        write_pages(finished.report, folder)
    except OSError as error:
        # The terminal still shows the results.
        why = f"the report could not be written to {folder}: {error}"
        return replace(finished, folder=None, unwritten=why)
    except Exception as error:
        # An invalid figure: the run and its record are complete.
        why = (
            f"the report could not be made of {finished.record}: {type(error).__name__}: {error}; "
            "this is a fault of the suite, please report it"
        )
        return replace(finished, folder=None, unwritten=why)
    return finished


def write_pages(report: RunReport, folder: Path) -> None:
    """Writes verdicts.json, report.md and report.html. Raises OSError."""
    page = page_of(report)
    short = markdown(page, largest_bytes=LARGEST_SHORT_PAGE_BYTES)
    history.write_atomically(folder / "verdicts.json", verdicts_json(report))
    history.write_atomically(folder / "report.md", short)
    history.write_atomically(folder / "report.html", html(page))


def trends_of(
    records: Path, exact: tuple[str, ...], report: RunReport, names: Collection[str]
) -> list[Trend]:
    """The trends of these benchmarks over this machine's records, if there are enough."""
    if not names:
        return []
    own = history.fingerprint_id(report.machine)
    listed = history.summaries(records, exact, only=own, newest=trend.LONGEST)
    return trend.long_enough([each for each in listed if isinstance(each, history.Summary)], names)
