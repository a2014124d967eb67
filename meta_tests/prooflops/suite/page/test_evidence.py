"""The kept evidence of a real H200, replayed: what is concluded, and what its page says."""

from functools import cache

import pytest

from meta_tests.conftest import ROOT
from prooflops.suite.evidence.__main__ import main
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.gallery import gallery, why_refused
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.page import headline
from prooflops.suite.page.run_report import RunReport
from prooflops.timing import METHOD
from prooflops_gate.page.escape import markdown_text
from prooflops_gate.page.markdown import markdown

SENT = sorted((ROOT / "results").glob("*.jsonl"))
GALLERY = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
# One that was just sent has no page yet.
KEPT = [path for path in SENT if f"({path.stem}.md)" in GALLERY]
# A page repeats the registry below this heading, as it was when the page was written.
OF_THE_REGISTRY = "## Claims"
(H200,) = (ROOT / "results").glob("NVIDIA-H200*.jsonl")


@cache
def run_of(path):
    """A file of evidence and its report."""
    file = EvidenceFile(path)
    return file, report_of_file(file)


def test_a_healthy_h200_delivers():
    _, report = run_of(H200)
    assert headline(report).mark.word == "DELIVERS"


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.stem)
def kept(request):
    """A file of evidence, its report, and the page that is made of it today."""
    file, report = run_of(request.param)
    return file, report, page_of_file(report)


def test_a_kept_page_says_what_its_evidence_says(kept):
    file, _, page = kept
    written = file.path.with_suffix(".md").read_text(encoding="utf-8")
    before, _, _ = markdown(page).partition(OF_THE_REGISTRY)
    assert written.partition(OF_THE_REGISTRY)[0] == before, (
        "write it anew: make evidence ARGS=--index"
    )


def test_the_gallery_says_what_its_evidence_says_and_takes_what_was_just_sent():
    stale = "write it anew: make evidence ARGS=--index"
    assert gallery([run_of(path) for path in KEPT]) == GALLERY, stale
    refused = {path.name: why_refused(run_of(path)[1]) for path in SENT if path not in KEPT}
    assert not any(refused.values()), refused


OLDER = f"it was measured by method {METHOD - 1}, and today's method is {METHOD}"


@pytest.mark.parametrize(
    ("method", "partial", "why"),
    [
        (METHOD, "", ""),
        (METHOD - 1, "", OLDER),
        (METHOD, "only bench", "the run is partial: only bench"),
    ],
)
def test_the_gallery_takes_a_whole_run_by_todays_method(method, partial, why):
    measured = Measurement("x", "x", 1.0, 0.0, {"method": method})
    assert why_refused(RunReport({}, benchmarks=(measured,), partial=partial)) == why


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("sent.jsonl", "", "this file has no run; run make evidence again"),
        ("sent.jsonl", '[1]\n{"event": "slice"}\n', "this file has no run"),
        ("sent.md", "# NVIDIA H200", "this is not a record (.jsonl) of make evidence"),
    ],
)
def test_the_check_of_a_file_without_a_run_says_so(tmp_path, capsys, name, text, why):
    if text:
        (tmp_path / name).write_text(text)
    assert main(["--check", str(tmp_path / name)]) == 1
    assert f"{name}: {why}" in capsys.readouterr().out


def test_a_page_has_the_whole_text_of_each_claim(kept):
    _, report, page = kept
    whole = markdown(page)
    for each in report.claims:
        for text in (each.claim.condition, each.claim.correction, each.claim.note):
            assert markdown_text(text) in whole


def test_each_chosen_benchmark_has_a_figure_or_a_reason(kept):
    file, report, page = kept
    unmet = {test for test, row in file.ended().items() if row["status"] == "unmet"}
    chosen = {test for test, claims in file.plan["tests"].items() if not claims} - unmet
    shown = {bench.fullname for bench in report.benchmarks} | {*report.unmeasured}
    assert chosen - shown <= {red.test for red in report.red_tests}
    (section,) = [each for each in page.sections if each.anchor == "unmeasured"]
    assert sum(int(row[1]) for row in section.rows[1:]) == len(report.unmeasured) > 0
