"""Writes the result of a comparison where other programs read it: as JSON, described by `gate.schema.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prooflops import __version__
from prooflops.gate.options import Settings
from prooflops.gate.report import sentence
from prooflops.history.records import write_atomically
from prooflops.history.rows import SHOWN_LEVEL, VERDICTS, Row

SCHEMA = 1  # of the JSON; whoever changes the form raises it
SCHEMA_FILE = Path(__file__).with_name("gate.schema.json")
FINISHED, INTERRUPTED, BROKEN = "finished", "interrupted", "broken"


@dataclass(frozen=True)
class Result:
    """What a comparison found, or why it did not end."""

    title: str
    rows: Sequence[Row] = ()
    failing: Sequence[Row] = ()
    lines: Sequence[str] = ()  # below the rows, as printed
    status: str = FINISHED
    reason: str = ""  # why it is not FINISHED
    failed_tests: Sequence[str] = ()  # that failed by themselves


def publish(result: Result, settings: Settings) -> None:
    """Writes the files that the options ask for. Raises OSError where one cannot be written."""
    if settings.json:
        write_atomically(settings.json, json.dumps(as_json(result, settings), indent=1, allow_nan=False) + "\n")


def as_json(result: Result, settings: Settings) -> dict[str, Any]:
    """The result as `gate.schema.json` describes it."""
    found = [row.verdict for row in result.rows]
    return {
        "schema": SCHEMA,
        "prooflops": __version__,
        "status": result.status,
        "reason": result.reason,
        "compared": result.title,
        "gates": settings.gate or bool(settings.bisect),
        "fails": bool(result.failing or result.failed_tests) or result.status != FINISHED,
        "min_effect": settings.min_effect,
        "counts": {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found},
        "rows": [_row(row, row in result.failing) for row in result.rows],
        "failed_tests": sorted(result.failed_tests),
        "lines": list(result.lines),
    }


def _row(row: Row, fails: bool) -> dict[str, Any]:
    effect = row.effect
    low, high, level = effect.bounds(SHOWN_LEVEL) if effect else (None, None, None)
    return {
        "name": row.name,
        "quantity": row.quantity,
        "verdict": row.verdict,
        "fails": fails,
        "before": _plain(row.before),
        "after": _plain(row.after),
        "ratio": effect.ratio if effect else None,
        "low": low,
        "high": high,
        "level": level,
        "noise": _plain(effect.noise) if effect else None,
        "pairs": effect.pairs if effect else None,
        "decided_by": row.by or row.quantity,
        "note": row.note,
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
