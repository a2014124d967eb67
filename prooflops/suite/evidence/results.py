"""The results of a run's file: verdicts, the run record, and the report of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prooflops import __version__
from prooflops.suite.evidence.file import BENCHMARKS, RED_STATUSES, EvidenceFile, Rows
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.verdicts import RED, Outcome, Verdict, verdicts_of
from prooflops_gate.history.records import SCHEMA

ROOT = Path(__file__).resolve().parents[3]


def registry_here() -> Registry:
    return load_registry(ROOT / "test_claims" / "registry")


def outcomes_of(test: str, row: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes of a test that has ended; one without a report is an error."""
    found = [Outcome(**{**each, "figures": tuple(each["figures"])}) for each in row["outcomes"]]
    return found or [Outcome(test, "error", row["reason"], cases=0)]


def verdicts(rows: Rows, registry: Registry) -> list[Verdict]:
    """A verdict for each claim all of whose tests the run has, or one of whose tests is red.

    Where tests are left it is not checked.
    """
    plan, ended = rows.plan, rows.ended()
    why_unrun = rows.stopped or "not run yet"
    outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
    for test, claims in plan["tests"].items():
        unrun = [Outcome(test, "unrun", why_unrun, cases=0)]
        for claim in claims:
            outcomes[claim] += outcomes_of(test, ended[test]) if test in ended else unrun
    found = verdicts_of(registry, outcomes, plan.get("selected"))
    in_part = plan.get("in_part", ())
    return [each for each in found if each.id not in in_part or each.verdict in RED]


def red_tests(rows: Rows) -> list[dict[str, Any]]:
    """Each test that failed or crashed, with its claims."""
    tests = rows.plan["tests"]
    return [
        {**{key: row[key] for key in ("test", "status", "reason")}, "claims": tests.get(test, [])}
        for test, row in rows.ended().items()
        if row["status"] in RED_STATUSES
    ]


def unmeasured(rows: Rows) -> list[dict[str, str]]:
    """Each benchmark that was chosen and has no figure, with the reason.

    One for hardware that is not here was not chosen.
    """
    return [
        {"test": test, "reason": row["reason"]}
        for test, row in rows.ended().items()
        if row["status"] == "skipped" and test.startswith(BENCHMARKS)
    ]


def benchmarks_of(rows: Rows) -> list[dict[str, Any]]:
    """The benchmarks of all tests, in pytest-benchmark's form."""
    return [bench for row in rows.ended().values() for bench in row.get("benchmarks", ())]


def seconds_of(rows: Rows) -> float:
    """The time that the calls took, as far as their rows say."""
    total, began, last = 0.0, 0.0, 0.0
    for row in rows.rows():
        if row["event"] == "slice":
            total += last - began
            began = row["at"]
        last = row["at"]
    return round(total + last - began, 1)


def facts_of(rows: Rows, found: Sequence[Verdict]) -> dict[str, Any]:
    """The part of a run's record that pytest-benchmark does not write."""
    plan = rows.plan
    return {
        **{key: plan[key] for key in ("fingerprint", "arguments", "pace", "peaks", "caches")},
        "command": rows.command,
        # Evidence of before has none.
        "floors": plan.get("floors", []),
        "undecided_fails": plan.get("undecided_fails", False),
        "selection": plan.get("selection", ""),
        "partial": rows.partial,
        "verdicts": [verdict.as_dict() for verdict in found],
        "in_part": sorted({*plan.get("in_part", ())} - {each.id for each in found}),
        "red_tests": red_tests(rows),
        "unmeasured": unmeasured(rows),
        "duration_s": seconds_of(rows),
    }


def record(file: EvidenceFile, found: Sequence[Verdict]) -> dict[str, Any]:
    """The file as the record of one run, in pytest-benchmark's form; it names no host."""
    slices = file.rows("slice")
    commits = dict.fromkeys(row["commit"] or "commit unknown" for row in slices)
    began = datetime.fromtimestamp(slices[0]["at"], timezone.utc)
    return {
        "datetime": began.isoformat(),
        "commit_info": {"id": ", ".join(commits)},
        "machine_info": {"node": file.path.stem},
        "version": version("pytest-benchmark"),
        "benchmarks": benchmarks_of(file),
        "prooflops": {"schema": SCHEMA, "version": __version__, **facts_of(file, found)},
    }


def record_of(path: Path) -> dict[str, Any]:
    """The record of one run that a file amounts to."""
    file = EvidenceFile(path)
    return record(file, verdicts(file, registry_here()))
