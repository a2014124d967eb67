"""The sentence on top, what is unusual, and what limits the machine."""

from dataclasses import replace

import pytest

from meta_tests.prooflops.suite.report.test_plots import report_of
from meta_tests.prooflops.suite.report.test_tables import PRODUCT, bench
from prooflops.suite.report import highlights
from prooflops.suite.report.plots import plots_of
from prooflops.suite.report.run_report import ClaimResult, RunReport

CLAIMS = {
    "holds": ClaimResult("a.x", "a", "", "holds", ""),
    "holds if": ClaimResult("a.i", "a", "", "holds if", "so"),
    "corrected": ClaimResult("a.c", "a", "", "corrected", "so"),
    "FAILS": ClaimResult("a.f", "a", "", "FAILS", "no"),
    "not checked": ClaimResult("a.n", "a", "", "not checked", "no GPU"),
}


SENTENCES = {
    "1 hold and none fails here": "holds",
    "1 hold, 1 is wrong as written and 1 fails here; 1 could not be checked": "holds, corrected, FAILS, not checked",
    "2 hold (1 of them under a condition) and 2 fail here": "holds, holds if, FAILS, FAILS",
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_sentence_counts_the_claims(sentence: str) -> None:
    claims = tuple(CLAIMS[each] for each in SENTENCES[sentence].split(", "))
    settled = sum(claim.verdict != "not checked" for claim in claims)
    found = highlights.sentence(RunReport({}, (), claims))
    assert found == f"Of {settled} claims checked on this machine, {sentence}."


def test_a_dtype_that_is_slower_than_a_wider_one_is_unusual() -> None:
    def product(dtype: str, rate: float) -> dict:
        return bench(f"test_matmul[{dtype}]", dtype=dtype, flop_per_s=rate, ceiling_flop_per_s=rate)

    lines = highlights.unusual(report_of(product("bf16", 1e9), product("fp32", 4e9), product("int8", 5e9)))
    assert lines == ["bf16 is multiplied slower than fp32: at 0.25 times its rate"]


def test_what_disturbed_the_run_and_its_settings_is_unusual() -> None:
    contended = {"conditions": {"labels": ["contended: load 4"]}}
    report = report_of({**PRODUCT, "extra_info": {**PRODUCT["extra_info"], **contended}})
    lines = highlights.unusual(replace(report, machine={"name": "m", "flags": {"deterministic": True}}))
    assert lines == [
        "1 of 1 benchmarks were contended",
        "faster than the own ceiling, which was measured too low: matmul[bf16-square-1024]",
        "deterministic is True, not False as usual",
        "no vendor peak is on record for m: shares are of the own ceiling",
    ]


def test_nothing_is_concluded_from_a_spread_that_is_too_wide(report: RunReport) -> None:
    assert highlights.limits(report)
    wide = [replace(each, iqr_s=each.median_s) for each in report.benchmarks]
    unsettled = replace(report, benchmarks=tuple(wide))
    assert highlights.limits(unsettled) == []
    answers = [each.answer for each in plots_of(unsettled) if each.name in ("roofline", "rates-by-size", "bandwidths")]
    assert answers == 3 * ["Each of them was contended, or its spread is too wide to say."]
