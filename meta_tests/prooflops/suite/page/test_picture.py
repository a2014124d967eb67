"""The README's first picture is the first screen of the kept evidence, as it is drawn today."""

import hashlib
import re

from meta_tests.conftest import ROOT
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops_gate.page.html import html

DIGEST = ROOT / "meta_tests" / "recorded" / "picture.txt"
# The style, the verdict and the bars; the counts of claims change with every new claim.
SHOWN = '<style>.*?</style>|<div class="headline.*?</div>|<section id="delivers".*?</section>'


def test_the_picture_shows_the_page_of_the_evidence(pytestconfig, request):
    (path,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")
    file = EvidenceFile(path)
    text = html(page_of_file(report_of_file(file)))
    shown = "".join(re.findall(SHOWN, text, re.DOTALL))
    digest = hashlib.sha256(shown.encode()).hexdigest()
    if pytestconfig.getoption("--update-golden"):
        page = request.getfixturevalue("chromium").new_page(
            viewport={"width": 1120, "height": 1180}
        )
        page.set_content(text)
        page.screenshot(path=ROOT / "docs" / "report.png")
        DIGEST.write_text(f"{digest}\n", encoding="utf-8")
    assert DIGEST.read_text("utf-8") == f"{digest}\n", "stale: --update-golden draws it anew"
