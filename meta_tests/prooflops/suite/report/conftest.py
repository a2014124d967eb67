"""The report of a whole run, gathered once from the evidence in results/."""

from dataclasses import replace
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.history.test_trend import summary
from meta_tests.prooflops.statistics.simulated import times
from meta_tests.prooflops.suite.report.evidence_record import evidence_record
from prooflops.history import trend
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.report.html import html
from prooflops.suite.report.run_report import RunReport, run_report
from prooflops.suite.verdicts import RED


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry(ROOT / "test_claims" / "registry")


@pytest.fixture(scope="session")
def record(registry: Registry) -> dict[str, Any]:
    return evidence_record(registry)


@pytest.fixture(scope="session")
def report(record: dict[str, Any], registry: Registry) -> RunReport:
    """A whole run on a CPU without a GPU: all claims, of which one fails and one crashes, benchmarks, a history."""
    level = enumerate(times((1.0, 12), (1.3, 12)))
    trends = trend.trends([summary(index, time_s) for index, time_s in level])
    made = run_report(record, registry, ["device: cpu", "torch 2.13.0"], trends=trends)
    red = [replace(each, verdict=verdict) for each, verdict in zip(made.claims, RED, strict=False)]
    return replace(made, claims=(*red, *made.claims[len(red) :]))


@pytest.fixture(scope="session")
def page(report: RunReport) -> str:
    """Its report.html."""
    return html(report)
