"""Writes a run's record, and its report if there is a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from prooflops.suite.page.page import LARGEST_SHORT_PAGE_BYTES, page_of
from prooflops.suite.page.run_report import RunReport, verdicts_json
from prooflops_gate.history.records import write_atomically
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown


@dataclass(frozen=True)
class FinishedRun:
    """A run's results, and where they were written, or why not."""

    report: RunReport
    content: Mapping[str, Any]  # the record's
    folder: Path | None
    record: Path | None
    unwritten: str = ""


FINISHED = pytest.StashKey[FinishedRun]()


def publish(finished: FinishedRun) -> FinishedRun:
    """Writes the pages of a run into its folder, if it has one."""
    folder = finished.folder
    if folder is None:
        return finished
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
    write_atomically(folder / "verdicts.json", verdicts_json(report))
    write_atomically(folder / "report.md", short)
    write_atomically(folder / "report.html", html(page))
