"""The report of a whole run, gathered once from the evidence in results/."""

from dataclasses import replace
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import record_of
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.report.html import html
from prooflops.suite.report.run_report import RunReport, run_report
from prooflops.suite.verdicts import RED


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry(ROOT / "test_claims" / "registry")


@pytest.fixture(scope="session")
def record(registry: Registry) -> dict[str, Any]:
    record = record_of(EvidenceFile(min((ROOT / "results").glob("*.jsonl"))), registry)
    record["prooflops"]["caches"] = {"L1": 65_536, "L2": 2 * 2**20, "L3": 36 * 2**20}
    return record


@pytest.fixture(scope="session")
def report(record: dict[str, Any], registry: Registry) -> RunReport:
    """A whole run on a CPU without a GPU: all claims, of which one fails and one crashes, and benchmarks."""
    made = run_report(record, registry, ["device: cpu", "torch 2.13.0"])
    red = [replace(each, verdict=verdict) for each, verdict in zip(made.claims, RED, strict=False)]
    return replace(made, claims=(*red, *made.claims[len(red) :]))


@pytest.fixture(scope="session")
def page(report: RunReport) -> str:
    """Its report.html."""
    return html(report)
