"""Writes the result of a comparison to files.

JSON, described by `gate.schema.json`, and Markdown for people.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate import __version__, run_state
from prooflops_gate.history.records import write_atomically
from prooflops_gate.options import Settings
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section
from prooflops_gate.report.result import FINISHED, INTERRUPTED, Result
from prooflops_gate.report.sentences import sentence
from prooflops_gate.report.terminal import details_of, lines_of_rows, rows_that_matter
from prooflops_gate.rows import SHOWN_LEVEL, Row, counts
from prooflops_gate.rows import table as table_of

# Whoever changes the form of the JSON raises it.
SCHEMA = 1
# A workflow finds the comment that it updates by this line.
MARK = "<!-- prooflops gate -->"
# GitHub allows 65,536 characters in a comment.
MOST_CHARACTERS, MOST_ROWS = 65_000, 100
SCHEMA_FILE = Path(__file__).parents[1] / "gate.schema.json"


def publish(result: Result, config: pytest.Config, settings: Settings) -> None:
    """Writes the files that the options name.

    Where one cannot be written, the run says so and fails.
    """
    try:
        write(result, settings)
    except OSError as error:
        config.stash[run_state.STORAGE_ERROR] = f"the gate's result could not be written: {error}"


def write(result: Result, settings: Settings) -> None:
    text = comment(result)
    if settings.markdown:
        write_atomically(settings.markdown, text)
    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and result.status != INTERRUPTED:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    if settings.json:
        write_atomically(
            settings.json, json.dumps(as_json(result, settings), indent=1, allow_nan=False) + "\n"
        )


def comment(result: Result) -> str:
    """A comment for a pull request: the verdict, what to do next, the rows that matter.

    The figures are folded.
    """
    page = page_of(result)
    text = markdown(page)
    if len(text) > MOST_CHARACTERS:
        text = markdown(page, largest_bytes=MOST_CHARACTERS)
    return f"{MARK}\n{text}"


def page_of(result: Result) -> Page:
    found = [line.text for line in lines_of_rows(result.rows, MOST_ROWS, result.reported_only)]
    rows = table_of(rows_that_matter(result.rows)[:MOST_ROWS])
    next_step = [f"Next: {result.next_step}."] if result.next_step else []
    return Page(
        title=result.verdict or "gate",
        kind="gate",
        sections=[
            Section("Noise", rows=result.table)
            if result.table
            else Section("Rows", remarks=found, absent="Nothing was compared."),
            Section("Notes", remarks=result.lines),
            Section("Figures", rows=rows, remarks=details_of(result), is_folded=True),
        ],
        lead=[result.title or result.reason, *next_step],
        warnings=[f"Warning: {result.warning}"] if result.warning else [],
    )


def as_json(result: Result, settings: Settings) -> dict[str, Any]:
    """The result as `gate.schema.json` describes it."""
    return {
        "schema": SCHEMA,
        "prooflops": __version__,
        "status": result.status,
        "reason": result.reason,
        "compared": result.title,
        "gates": settings.gate or bool(settings.bisect),
        "fails": bool(result.failing or result.failed_tests) or result.status != FINISHED,
        "min_effect": settings.min_effect,
        "counts": counts(result.rows),
        "rows": [_row(row, row in result.failing) for row in result.rows],
        "failed_tests": sorted(result.failed_tests),
        "warning": result.warning,
        "next": result.next_step,
        "lines": [*result.lines, *details_of(result)],
    }


def _row(row: Row, fails: bool) -> dict[str, Any]:
    known = {key: getattr(row, key) for key in ("name", "quantity", "verdict", "note", "where")}
    known |= {key: _plain(getattr(row, key)) for key in ("before", "after", "instructions")}
    known |= {key: _plain(getattr(row.effect, key, None)) for key in ("ratio", "pairs", "noise")}
    bounds = row.effect.bounds(SHOWN_LEVEL) if row.effect else (None, None, None)
    known |= dict(zip(("low", "high", "level"), bounds, strict=True))
    return {
        **known,
        "fails": fails,
        "decided_by": row.by or row.quantity,
        "sentence": sentence(row),
    }


def _plain(value: Any) -> Any:
    """A value that JSON has: None for an infinite or undefined number, text for what is no scalar.

    >>> _plain(2.5), _plain(math.inf), _plain((1, 2))
    (2.5, None, '(1, 2)')
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int | str) else str(value)
