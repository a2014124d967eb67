"""compare.html in a real browser: it fits, reads well in both themes, and fetches nothing."""

from pathlib import Path

import pytest

from meta_tests.browser import WIDTHS, Browser
from meta_tests.conftest import ROOT
from meta_tests.prooflops.suite.fleet.simulated import write_records
from meta_tests.prooflops.suite.fleet.test_command import config
from meta_tests.prooflops.suite.report.evidence_record import evidence_record
from prooflops.suite.fleet import command
from prooflops.suite.registry import load_registry


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight machines, each a column, of which one is slower."""
    folder = tmp_path_factory.mktemp("fleet")
    record = evidence_record(load_registry(ROOT / "test_claims" / "registry"))
    write_records(folder / "records", record, 8, 1, 0.2)
    command.run(config(folder, folder / "records"), lambda line: None)
    return folder / "out" / "compare.html"


def test_the_page_of_many_machines_fits_and_is_accessible(browser: Browser, file: Path) -> None:
    with browser.open(file) as opened:
        page = opened.page
        assert "node-0" in page.locator("article.finding").inner_text()
        for name, width in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 900})
            assert opened.overflowing() == [], name
        page.evaluate("document.querySelectorAll('tbody tr:nth-child(n+3)').forEach((row) => row.remove())")
        for name, theme in (("phone", "dark"), ("desktop", "light")):
            page.set_viewport_size({"width": WIDTHS[name], "height": 900})
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            assert opened.violations() == [], f"{name}, {theme}"
        assert opened.complaints == []
        assert opened.fetched == [file.as_uri()]
