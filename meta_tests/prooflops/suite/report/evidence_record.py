"""A record of a whole run, made of the evidence that lies in results/."""

from __future__ import annotations

from typing import Any

from meta_tests.conftest import ROOT
from prooflops.suite.evidence import page
from prooflops.suite.evidence.folder import Folder
from prooflops.suite.registry import Registry


def evidence_folder() -> Folder:
    """The first evidence."""
    return Folder(min(path for path in (ROOT / "results").iterdir() if path.is_dir()))


def evidence_record(registry: Registry) -> dict[str, Any]:
    """It as a record of one run, with the verdicts that its tests give today."""
    folder = evidence_folder()
    plan, ended = folder.plan, folder.ended()
    return {
        "datetime": "2026-11-22T03:30:00+00:00",
        "commit_info": {"id": plan["commit"], "dirty": False},
        "benchmarks": [bench for row in ended.values() for bench in row.get("benchmarks", ())],
        "prooflops": {
            **{key: plan[key] for key in ("fingerprint", "arguments", "pace", "peaks")},
            "version": "0.1.0",
            "verdicts": [verdict.as_dict() for verdict in page.verdicts_of(folder, registry)],
            "partial": "",
            "duration_s": 412.0,
            "caches": {"L1": 65_536, "L2": 2 * 2**20, "L3": 36 * 2**20},
        },
    }
