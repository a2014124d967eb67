"""The report of a whole run, gathered once from the evidence in results/."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.evidence import results
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.page.page import page_of
from prooflops.suite.page.run_report import RedTest, run_report
from prooflops.suite.verdicts import RED
from prooflops_gate.page.html import html


@pytest.fixture(scope="session")
def report_of():
    """Makes the report of the evidence's record, each benchmark of which a function may change."""
    registry = results.registry_here()
    file = EvidenceFile(next((ROOT / "results").glob("Intel-*.jsonl")))
    verdicts = results.verdicts(file, registry)
    kept = results.record(file, verdicts)

    def made(change=lambda name, info, stats: None, peaks=None):
        record = copy.deepcopy(kept)
        record["prooflops"]["peaks"] |= peaks or {}
        for bench in record["benchmarks"]:
            change(bench["name"].removeprefix("test_"), bench["extra_info"], bench["stats"])
        return run_report(record, verdicts, registry)

    return made


def with_red(made):
    """A report whose first claims are red, each in another way."""
    red = [replace(each, verdict=verdict) for each, verdict in zip(made.claims, RED, strict=False)]
    return replace(made, claims=(*red, *made.claims[len(red) :]))


@pytest.fixture(scope="session")
def report(report_of):
    """A whole run without a GPU: benchmarks, and all claims: one fails and one crashes."""
    made = with_red(report_of())
    caches = {"L1": 65_536, "L2": 2 * 2**20, "L3": 36 * 2**20}
    error = RedTest("test_x.py::test_x", "error", "it crashed", claims=(made.claims[1].id,))
    slow = [RedTest(f"test_y.py::test_{n}", "failed", "BELOW FLOOR") for n in range(2)]
    return replace(made, red_tests=(error, *slow), caches=caches)


@pytest.fixture(scope="session")
def page(report):
    """Its report.html."""
    return html(page_of(report))
