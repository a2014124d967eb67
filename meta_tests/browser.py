"""A real browser for the pages of the reports.

Debian's Chromium without a window, driven by playwright.
"""

import shutil
from contextlib import contextmanager

import pytest

WIDTHS = {"phone": 360, "desktop": 1440}
OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth;
    const isWide = (each) =>
        each.getBoundingClientRect().right > width + 1 && !each.closest(".scroll, .unseen, svg");
    const shown = (each) =>
        `${each.tagName} ${each.className} ${each.textContent.slice(0, 60)}`;
    return [...document.querySelectorAll("body *")].filter(isWide).map(shown);
}"""


class Opened:
    """A page in the browser, with what its console said and what it tried to fetch."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        self.fetched = []
        page.on(
            "console", lambda message: self.complaints.append(f"{message.type}: {message.text}")
        )
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.fetched.append(request.url))

    def overflowing(self):
        """What is wider than the window and does not scroll by itself."""
        return list(self.page.evaluate(OVERFLOWING))

    def violations(self):
        """What axe-core finds wrong with the page for those who do not see it, or not well."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        first = [(each["id"], each["nodes"][0]) for each in found]
        return [f"{name}: {node['html'][:200]} {node['failureSummary']}" for name, node in first]

    def check(self, file, fewer):
        """The page fits and is accessible, folded and unfolded, and fetches nothing.

        `fewer` leaves less to look at.
        """
        page = self.page
        for unfold in ("false", "true"):
            page.evaluate(
                f"document.querySelectorAll('details').forEach((each) => each.open = {unfold})"
            )
            for name, width in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": 900})
                assert self.overflowing() == [], f"{name}, {unfold=}"
        page.evaluate(fewer)
        for name, theme in (("phone", "dark"), ("desktop", "light")):
            page.set_viewport_size({"width": WIDTHS[name], "height": 900})
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(251, 251, 249)") is (theme == "light"), background
            assert self.violations() == [], f"{name}, {theme}: {self.violations()}"
        assert self.complaints == []
        assert self.fetched == [file.as_uri()]


class Browser:
    """Opens pages in one Chromium."""

    def __init__(self, chromium):
        self._chromium = chromium

    @contextmanager
    def open(self, file, width=1440, theme="light", **options):
        """The page of a file, in a window of its own."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce",
            **options,
        )
        try:
            opened = Opened(context.new_page())
            opened.page.set_default_timeout(20_000)
            opened.page.goto(file.as_uri())
            yield opened
        finally:
            context.close()


@pytest.fixture(scope="session")
def browser():
    """One Chromium without a window for all tests of pages.

    They are skipped where there is none.
    """
    executable = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not executable:
        pytest.skip("needs Chromium: apt-get install chromium")
    reason = "needs playwright and axe-playwright-python, of the [dev] packages"
    driver = pytest.importorskip("playwright.sync_api", reason=reason)
    pytest.importorskip("axe_playwright_python", reason=reason)
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield Browser(started)
        finally:
            started.close()
