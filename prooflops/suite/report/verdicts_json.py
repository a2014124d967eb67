"""verdicts.json: a run's results for programs. Its format is public: `verdicts.schema.json`, docs/validate.md."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prooflops.suite.report.run_report import RunReport

SCHEMA = 2  # raised for incompatible changes; 1 was a list without a head
SCHEMA_FILE = Path(__file__).with_name("verdicts.schema.json")
VERSIONS = ("torch", "python", "driver", "cuda", "hip")


def verdicts(report: RunReport) -> dict[str, Any]:
    """The content of verdicts.json."""
    return {
        "schema": SCHEMA,
        "prooflops": report.version,
        "date": report.date,
        "duration_s": report.duration_s,
        "command": report.command,
        "revision": report.revision,
        "pace": report.pace,
        "whole": not report.partial,
        "partial": report.partial,
        "machine": dict(report.machine),
        "versions": {key: report.machine.get(key) for key in VERSIONS},
        "counts": report.counts,
        "claims": [asdict(claim) for claim in report.claims],
    }


def text(report: RunReport) -> str:
    """The text of verdicts.json."""
    return json.dumps(verdicts(report), indent=1, default=str) + "\n"
