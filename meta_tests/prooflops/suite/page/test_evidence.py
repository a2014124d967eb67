"""The kept evidence of a real H200, replayed: what its page says, what the checker notices."""

import re

import pytest

from meta_tests import picture
from meta_tests.conftest import ROOT
from meta_tests.contradictions import Page, contradictions
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.evidence.page import page_of_file, report_of_file
from prooflops_gate.page.markdown import markdown

KEPT = sorted((ROOT / "results").glob("*.jsonl"))
# From here on a page repeats the registry, as it was when the page was written.
OF_THE_REGISTRY = "## Wrong as it circulates"


@pytest.fixture(scope="module")
def h200():
    return picture.page().replace("\N{NO-BREAK SPACE}", " ")


def test_a_healthy_h200_delivers_and_nothing_false_is_said_of_it(h200):
    page = Page(h200)
    answer = "DELIVERS: 17 of 17 figures with a known floor are reached"
    assert page.conclusions[0].endswith(answer)
    assert contradictions(h200) == []
    assert "throttled" not in h200
    assert "FAILS here" not in h200
    assert "fails" not in page.tables
    assert {bar["mark"] for bar in page.bars} == {"✓delivers", "?not known"}
    (unusual,) = (text for text in page.conclusions if text.startswith("15 of 196"))
    assert "spread too widely" in unusual


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_page_says_what_its_evidence_says(path):
    file = EvidenceFile(path)
    fresh = markdown(page_of_file(file, report_of_file(file))).partition(OF_THE_REGISTRY)[0]
    kept = path.with_suffix(".md").read_text(encoding="utf-8").partition(OF_THE_REGISTRY)[0]
    assert kept == fresh, "write it anew: make evidence ARGS=--index"


def test_its_six_red_tests_stand_apart_as_errors_of_the_suite(h200):
    errors = Page(h200).tables["errors"]
    assert len(errors) == 6
    assert all("whose fault: the suite" in row["why"] for row in errors)
    assert any("test_step[deep-linear-fp16-eager]" in row["test"] for row in errors)


def test_power_limited_work_is_a_fact_of_its_row(h200):
    rows = {row["benchmark"]: row["notes"] for row in Page(h200).tables["benchmarks"]}
    clock = re.search(r"power-limited: (1\.\d\d) of 1\.98 GHz", rows["matmul[bf16-square-8192]"])
    assert clock
    assert 1.4 < float(clock[1]) < 1.7
    assert "power-limited" not in rows["stream[memory-copy]"]


L2_ROW = re.compile(r'(stream\[L2-copy\]</th><td class="number">6.27 µs</td><td[^-]*<td[^>]*>)-')
L2_RATE = r"\g<1>5.02 TB/s"
# What stands on the page, what is planted in its place, and what the checker says of it.
PLANTED = {
    "throttled by its power limit": (
        "15 of 196 benchmarks spread too widely to conclude anything from them",
        "101 of 196 benchmarks were throttled",
        "so many rows say it: 0",
    ),
    "below its floor": (
        '<span class="share">71 % of the dense peak</span>',
        '<span class="share">58 % of the dense peak</span>',
        "bf16 has 58 %, its floor is 68 %",
    ),
    "a share of another peak": (
        '<span class="share">71 % of the dense peak</span>',
        '<span class="share">74 % of the dense peak</span>',
        "bf16 is at 74 % of its peak, its row 71.4 %",
    ),
    "the best rate with the floor of another row": (
        "<strong>706 TFLOP/s</strong>",
        "<strong>738 TFLOP/s</strong>",
        "bf16 is 738 TFLOP/s, but its row matmul[bf16-square-8192] has",
    ),
    "a product above the ceiling": (
        '<td class="number">738 TFLOP/s</td><td class="number">74.6%</td><td class="number">100.0%',
        '<td class="number">738 TFLOP/s</td><td class="number">74.6%</td><td class="number">118.9%',
        "matmul[bf16-square-4096] is at 118.9 % of the own ceiling",
    ),
    "two ceilings": (
        '<td class="number">706 TFLOP/s</td><td class="number">71.4%</td><td class="number">95.7%',
        '<td class="number">706 TFLOP/s</td><td class="number">71.4%</td><td class="number">85.9%',
        "the own ceiling of bf16 has several values",
    ),
    "held back by a roof that is far": (
        '<td class="number">17.7%</td><td class="number">2.1%</td><td>neither roof',
        '<td class="number">17.7%</td><td class="number">2.1%</td><td>memory-bound',
        "layer[fp32-batch-16] is held back by memory-bound at 17.7 %",
    ),
    "slower, as the peaks say": (
        "15 of 196 benchmarks spread too widely to conclude anything from them",
        "fp32 is multiplied slower than fp64: at 0.83 times its rate",
        "unusual, but the peaks say the same",
    ),
    "a launch with a bandwidth": (L2_ROW, L2_RATE, "stream[L2-copy] takes 6.27 µs, few launches"),
    "a verdict that hides a figure": (
        '</span>delivers</span><span class="note">at least 82 %',
        '</span>BELOW FLOOR</span><span class="note">at least 82 %',
        "but below their floors are memory copy",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_contradiction_is_found(h200, fault):
    before, after, said = PLANTED[fault]
    pattern = before if isinstance(before, re.Pattern) else re.escape(before)
    planted, number = re.subn(pattern, after, h200, count=1)
    assert number == 1, f"{before} does not stand on the page"
    assert any(said in each for each in contradictions(planted)), contradictions(planted)
