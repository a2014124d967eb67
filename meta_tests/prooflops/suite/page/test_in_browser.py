"""report.html in a real browser: fits, accessible, nothing fetched; searched by hand.

Debian's Chromium without a window, driven by playwright.
"""

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.suite.page.conftest import with_red
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops_gate.page.html import html

WIDTHS = {"phone": 360, "desktop": 1440}
# What is wider than the window and does not scroll by itself.
OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth;
    const isWide = (each) =>
        each.getBoundingClientRect().right > width + 1 && !each.closest(".scroll, .unseen, svg");
    const shown = (each) =>
        `${each.tagName} ${each.className} ${each.textContent.slice(0, 60)}`;
    return [...document.querySelectorAll("body *")].filter(isWide).map(shown);
}"""
UNFOLD = "(open) => document.querySelectorAll('details').forEach((each) => each.open = open)"
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
SHOWN = "[...document.querySelectorAll('[data-mark]')].filter((x) => x.checkVisibility()).length"


@pytest.fixture(scope="module")
def shown():
    """The report of a real card, with claims of each verdict."""
    (path,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    return with_red(report_of_file(EvidenceFile(path)))


def violations(page):
    """What axe-core finds wrong with the page for those who do not see it, or not well."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found]


def search(page, report):
    """Finds claims as one types and by their verdict."""
    assert page.evaluate(SHOWN) == 0, "claims are folded by topic"
    page.get_by_role("button", name="Open all shown").click()
    assert page.evaluate(SHOWN) == len(report.claims)
    page.get_by_label("Search claims").fill("bf16 RANGE")
    few = page.evaluate(SHOWN)
    assert 0 < few < 40
    assert page.locator("#shown").inner_text() == f"{few} of {len(report.claims)} claims"
    page.get_by_label("Search claims").fill("xyzzy")
    assert page.evaluate(SHOWN) == 0
    assert page.locator("#claims .folds > details:visible").count() == 0
    page.get_by_label("Search claims").fill("")
    page.locator("input[value=corrected]").check()
    assert page.evaluate(SHOWN) == report.counts["corrected"]
    # The arrow goes to the next verdict.
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "FAILS"
    assert page.evaluate(SHOWN) == report.counts["FAILS"]
    page.locator("input[name=mark]").first.check()


def test_the_page_is_searched_fits_and_is_accessible_and_fetches_nothing(chromium, shown, tmp_path):
    file = tmp_path / "h200.html"
    file.write_text(html(page_of_file(shown)), encoding="utf-8")
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    complaints = []
    fetched = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.set_default_timeout(20_000)
    page.goto(file.as_uri())
    assert page.locator(".bars li").count() == 14
    search(page, shown)
    for is_open in (False, True):
        page.evaluate(UNFOLD, is_open)
        for name, width in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(OVERFLOWING) == [], f"{name}, {is_open=}"
    page.evaluate(ONE_OF_EACH)
    for name, theme in (("phone", "dark"), ("desktop", "light")):
        page.set_viewport_size({"width": WIDTHS[name], "height": 900})
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(251, 251, 249)") is (theme == "light"), background
        assert violations(page) == [], f"{name}, {theme}"
    assert complaints == []
    assert fetched == [file.as_uri()]
    context.close()
