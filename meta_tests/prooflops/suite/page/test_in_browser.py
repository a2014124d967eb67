"""report.html in a real browser: nothing fetched, filters, search and folding by hand."""

from dataclasses import replace

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops.suite.verdicts import RED
from prooflops_gate.page.html import html

# Leaves a row of each table, and a claim of each verdict: an accessibility checker looks at every
# element for long.
ONE_OF_EACH = """() => {
    const seen = new Set();
    for (const claim of document.querySelectorAll("[data-mark]")) {
        if (seen.has(claim.dataset.mark)) claim.remove();
        seen.add(claim.dataset.mark);
    }
    const many = "#claims .folds > details:not(:has(details)), tbody tr:nth-child(n+3), "
        + "svg path:nth-of-type(n+3)";
    document.querySelectorAll(many).forEach((each) => each.remove());
}"""


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(browser, file):
    with browser.open(file) as opened:
        yield opened


def shown(page):
    marked = "[...document.querySelectorAll('[data-mark]')]"
    return int(page.evaluate(f"{marked}.filter((each) => each.checkVisibility()).length"))


def test_the_page_fits_and_is_accessible_and_fetches_nothing(browser, report, tmp_path):
    """That of a real card, with claims of each verdict and trends."""
    (path,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    evidence = EvidenceFile(path)
    made = report_of_file(evidence)
    red = [replace(each, verdict=verdict) for each, verdict in zip(made.claims, RED, strict=False)]
    claims = (*red, *made.claims[len(red) :])
    shown = replace(made, claims=claims, trends=report.trends)
    file = tmp_path / "h200.html"
    file.write_text(html(page_of_file(evidence, shown)), encoding="utf-8")
    with browser.open(file) as opened:
        opened.check(file, ONE_OF_EACH)
        rows = opened.page.locator(".bars li")
        assert rows.count() == 18
        assert rows.first.inner_text().startswith("bf16")


def test_claims_are_found_as_one_types_and_by_their_verdict(opened, report):
    page = opened.page
    assert shown(page) == 0, "claims are folded by topic"
    assert page.evaluate("document.documentElement.scrollHeight") <= 6000, "a page of a few screens"
    page.get_by_role("button", name="Open all shown").click()
    assert shown(page) == len(report.claims)
    page.get_by_label("Search claims").fill("bf16 RANGE")
    few = shown(page)
    assert 0 < few < 40
    assert page.locator("#shown").inner_text() == f"{few} of {len(report.claims)} claims"
    page.get_by_label("Search claims").fill("xyzzy")
    assert shown(page) == 0
    assert page.locator("#claims .folds > details:visible").count() == 0
    page.get_by_label("Search claims").fill("")
    page.locator("input[value=corrected]").check()
    assert shown(page) == report.counts["corrected"]
    # The arrow goes to the next verdict.
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "FAILS"
    assert shown(page) == 1
    page.locator("input[name=mark]").first.check()
