"""Draws docs/report.png, the first screen of the kept evidence of a GPU.

    python -m meta_tests.picture

It needs Debian's Chromium. A digest of what the picture shows is kept beside the other records, by
which a test notices that the page says or looks otherwise by now.
"""

import hashlib
import shutil
from functools import cache
from pathlib import Path

from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops_gate.page.html import html

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.png"
DIGEST = ROOT / "meta_tests" / "recorded" / "picture.txt"
WIDTH = 1120
HEIGHT = 1180


@cache
def page():
    """The page about the kept evidence of a GPU."""
    (path,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    file = EvidenceFile(path)
    return html(page_of_file(file, report_of_file(file)))


def digest(text):
    """The digest of the page's style, its verdict and its bars.

    The counts of claims are left out: they change with every new claim.
    """
    style = text.partition("<style>")[2].partition("</style>")[0]
    verdict = text.partition('<div class="headline')[2].partition("</div>")[0]
    bars = text.partition('<section id="delivers"')[2].partition("</section>")[0]
    return hashlib.sha256(f"{style}{verdict}{bars}".encode()).hexdigest()


def draw(text):
    """The first screen as a PNG."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        opened.set_content(text)
        return bytes(opened.screenshot())


if __name__ == "__main__":
    text = page()
    PICTURE.write_bytes(draw(text))
    DIGEST.write_text(digest(text) + "\n", encoding="utf-8")
