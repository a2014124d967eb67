"""A step whose figures contradict each other leads to no conclusion on its page."""

import json
from dataclasses import replace

import pytest
import torch

from meta_tests.conftest import ROOT
from prooflops.model.breakdown import OperatorRow
from prooflops.model.examination import Examination
from prooflops.model.page import write_pages
from prooflops.model.tables import NOT_KNOWN
from prooflops.model.user_model import load_user_model
from prooflops_gate.page.section import ABSENT

# A step at 12 MFLOP/s, far longer than its launches.
QUIET = {"spread": 0.02, "rounds": 20, "peak_flop_per_s": {"fp32": None}}


@pytest.fixture(scope="module")
def examination():
    examination = Examination(
        load_user_model("meta_tests.user_models.own:Factories.factory", ROOT, torch.device("cpu"))
    )
    assert examination.flops.executed
    assert examination.breakdown.operators
    return examination


def test_the_page_has_the_same_sections_whatever_was_computed(examination, tmp_path):
    few = Examination(examination.user_model)
    assert few.inventory.parameters
    pages = []
    for name, each in {"few": few, "many": examination}.items():
        write_pages([each], tmp_path / name, ["device: cpu"], {})
        (file,) = (tmp_path / name).glob("*.html")
        pages.append(file.read_text(encoding="utf-8"))
    assert pages[0].count("<section") == pages[1].count("<section")
    assert pages[0].count(ABSENT) > pages[1].count(ABSENT)


def page_of(examination, folder):
    write_pages([examination], folder, ["device: cpu"], {})
    (html,) = folder.glob("*.html")
    (facts,) = folder.glob("*.json")
    return html.read_text(encoding="utf-8"), json.loads(facts.read_text())["step"]


CASES = {
    # figures of the step, its share of the ceiling, the reason
    "quiet": ({}, 0.5, ""),
    "contended": (
        {"labels": ("contended: others used 0.9 of 2 cores",)},
        0.5,
        "others used 0.9 of 2 cores",
    ),
    "spread": ({"spread": 1.08}, 0.5, "its times spread by 108%"),
    "ceiling": ({}, 3.24, "it would be at 324% of its own ceiling"),
    "memory": ({"bytes_per_s": 1e3}, 0.5, "of the bandwidth of copies"),
    "phases": ({}, 0.5, "but its phases"),
    "operator": ({}, 0.5, "aten.mm runs at 183 GFLOP/s, above the ceiling of"),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_that_contradict_each_other_are_not_known(examination, tmp_path, case):
    figures, share, reason = CASES[case]
    executed = examination.flops.executed
    seconds = executed / 12e6
    ceiling = executed / seconds / share
    examination.record_step(
        **{
            **QUIET,
            "seconds": seconds,
            "ceiling_flop_per_s": {"fp32": ceiling},
            "bytes_per_s": 1e15,
            **figures,
        }
    )
    rate = 183e9 if case == "operator" else 1e6
    operators = (OperatorRow("aten.mm", "forward", 1, 1.0, int(rate)),)
    phases = {"forward": 0.3 * seconds, "backward": 0.6 * seconds, "update": 0.1 * seconds}
    if case == "phases":
        phases = dict.fromkeys(phases, seconds / 240)
    examination.__dict__["breakdown"] = replace(
        examination.breakdown, operators=operators, phases_s=phases
    )
    page, step = page_of(examination, tmp_path)
    lead = page.partition('<p class="lead">')[2].partition("</p>")[0]
    assert (NOT_KNOWN in lead) is bool(reason), lead
    assert reason in lead
    assert reason in step["unknown"]
    assert ("compute-bound" in page) is not bool(reason)
    assert f"{share:.1%}" not in page or not reason
