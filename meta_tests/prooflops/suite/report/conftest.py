"""The report of a whole run, gathered once from the evidence in results/."""

from typing import Any

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.suite.report.evidence_record import evidence_record
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.report.html import html
from prooflops.suite.report.run_report import RunReport, run_report


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry(ROOT / "test_claims" / "registry")


@pytest.fixture(scope="session")
def record(registry: Registry) -> dict[str, Any]:
    return evidence_record(registry)


@pytest.fixture(scope="session")
def report(record: dict[str, Any], registry: Registry) -> RunReport:
    """A whole run on a CPU without a GPU: 303 claims, 88 benchmarks."""
    return run_report(record, registry, ["device: cpu", "torch 2.13.0"])


@pytest.fixture(scope="session")
def page(report: RunReport) -> str:
    """Its report.html."""
    return html(report)
