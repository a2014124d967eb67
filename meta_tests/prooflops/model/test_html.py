"""The page about a model as HTML: it fits, nothing is fetched, hostile names are text, and it folds by keyboard."""

from pathlib import Path

import pytest
import torch

from meta_tests.browser import Browser
from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.model_house import Examined
from prooflops.model.examination import Examination
from prooflops.model.pages import sections, write
from prooflops.model.user_model import load_user_model


@pytest.fixture(scope="module")
def file(examined_house: Path, examined: dict[str, Examined]) -> Path:
    assert examined
    return examined_house / "gpt" / "model-zoo.gpt-factory.html"


def test_the_page_fits_and_is_accessible_and_fetches_nothing(browser: Browser, file: Path) -> None:
    with browser.open(file) as opened:
        opened.check(file, "document.querySelectorAll('tbody tr:nth-child(n+3)').forEach((each) => each.remove())")


def test_the_tree_has_every_module_and_opens_by_keyboard(browser: Browser, file: Path) -> None:
    with browser.open(file) as opened:
        page = opened.page
        assert page.locator(".module:not(.heads)").count() == 23, "2 blocks of 8 and 6 more, and what is outside"
        block = page.locator("details.node", has_text="Block").last
        assert not page.get_by_text("c_fc").last.is_visible()
        page.locator("summary.module", has_text="ModuleList").press("Enter")
        block.locator("summary").first.press("Enter")
        assert page.get_by_text("c_fc").last.is_visible()


def test_hostile_names_are_text(tmp_path: Path) -> None:
    examination = Examination(load_user_model("meta_tests.user_models.own:hostile", ROOT, torch.device("cpu")))
    assert examination.breakdown.modules
    write(examination, [examination], tmp_path, ["device: <b>cpu</b>"], {})
    (file,) = tmp_path.glob("*.html")
    page = file.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;U+202E&gt;b" in page
    assert not any(text in page for text in ("<script", "<img", "<b>", "\u202e"))
    assert len(list(sections(examination))) == 3
