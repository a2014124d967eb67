"""The report of a whole run, gathered once from the evidence in results/."""

from dataclasses import replace

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import record_of, verdicts_of
from prooflops.suite.registry import load_registry
from prooflops.suite.report.html import html
from prooflops.suite.report.run_report import RunReport, run_report
from prooflops.suite.verdicts import RED


@pytest.fixture(scope="session")
def report() -> RunReport:
    """A whole run on a CPU without a GPU: all claims, of which one fails and one crashes, and benchmarks."""
    registry = load_registry(ROOT / "test_claims" / "registry")
    file = EvidenceFile(min((ROOT / "results").glob("*.jsonl")))
    verdicts = verdicts_of(file.plan["tests"], file.ended(), registry)
    made = run_report(record_of(file, verdicts), verdicts, registry, ["device: cpu", "torch 2.13.0"])
    red = [replace(each, verdict=verdict) for each, verdict in zip(made.claims, RED, strict=False)]
    caches = {"L1": 65_536, "L2": 2 * 2**20, "L3": 36 * 2**20}
    return replace(made, claims=(*red, *made.claims[len(red) :]), caches=caches)


@pytest.fixture(scope="session")
def page(report: RunReport) -> str:
    """Its report.html."""
    return html(report)
