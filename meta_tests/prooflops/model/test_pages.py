"""Pages of examined models: one transcript a kind, and what the page decides."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import prooflops
from accounting.devices import device_called
from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.conftest import SILENT, model_of
from prooflops.model.breakdown import OperatorRow
from prooflops.model.examination import examine
from prooflops.model.fits import growing_argument
from prooflops.model.page import page_of, write_pages
from prooflops.model.step_memory import tried
from prooflops.model.tables import STEP_TITLE, sections_of
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.terminal import section_lines

# A step at 12 MFLOP/s, far longer than its launches, at half of this machine's ceiling.
RATE = 12e6
QUIET = {"spread": 0.02, "rounds": 20, "bytes_per_s": 1e15}


def with_times(examination, **figures):
    """The same facts with the times of a quiet machine, or with other figures."""
    breakdown = examination.breakdown
    seconds = examination.flops.executed / RATE
    # Other operators differ among releases of torch.
    products = sorted(
        (row for row in breakdown.operators if row.flops), key=lambda row: (row.name, row.phase)
    )
    timed = replace(
        examination,
        breakdown=replace(
            breakdown,
            operators=tuple(replace(row, seconds=row.flops / 1e6) for row in products),
            modules=tuple(
                replace(row, forward_s=1e-3, backward_s=2e-3) for row in breakdown.modules
            ),
        ),
    )
    quiet = {
        **QUIET,
        "seconds": seconds,
        "peak_flop_per_s": {"fp32": 4 * RATE},
        "ceiling_flop_per_s": {"fp32": 2 * RATE},
    }
    timed.record_step(**{**quiet, **figures})
    timed.step = replace(timed.step, overhead_s=1e-9)
    return timed


def text_of(examination):
    return markdown(page_of(examination, ["device: cpu"]))


def test_a_page_has_every_fact(golden, examined):
    golden("model_page", text_of(with_times(examined("own:checkpointed"))))


def test_a_page_without_a_prediction_or_a_conclusion_says_why(golden, examined):
    examination = with_times(examined("own:looking"), spread=1.08)
    golden("model_unknown", text_of(examination))


def test_a_page_has_the_largest_sizes_and_the_cards_that_fit(golden):
    trial, cards = tried(model_of("own:sized")), (device_called("T4"),)
    growing = {"batch": growing_argument(trial.user_model, "batch")}
    examination = examine(trial, SILENT, growing=growing, cards=cards)
    sections = [each for each in sections_of(examination) if "fit" in each.title]
    lines = [line for each in sections for line in [each.title, *section_lines(each, None)]]
    golden("model_fits", "\n".join(lines))


def test_a_report_prints_its_modules_and_its_card(golden):
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    report = prooflops.model_report(net, torch.randn(4, 8), device="NVIDIA H100 80GB HBM3")
    golden("model_report", str(report))


CASES = {
    # Figures of the step, and the reason why nothing is concluded.
    "quiet": ({}, ""),
    "contended": (
        {"labels": ("contended: others used 0.9 of 2 cores",)},
        "others used 0.9 of 2 cores",
    ),
    "spread": ({"spread": 1.08}, "its times spread by 108%"),
    "ceiling": (
        {"ceiling_flop_per_s": {"fp32": RATE / 3.24}},
        "at 324% of this machine's best",
    ),
    "memory": ({"bytes_per_s": 1e3}, "of the bandwidth of copies"),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_that_contradict_each_other_conclude_nothing(examined, case):
    figures, reason = CASES[case]
    examination = with_times(examined("own:Factories.factory"), **figures)
    assert reason in examination.unknown
    assert bool(examination.unknown) == bool(reason)
    [step] = [each for each in sections_of(examination) if each.title == STEP_TITLE]
    figures = {row[0]: row[1] for row in step.rows[1:]}
    for name in ("throughput", "MFU of the best rate", "memory alone"):
        assert figures[name].startswith("~ ") is bool(reason), name


def test_an_operator_above_the_ceiling_contradicts_it(examined):
    examination = with_times(examined("own:Factories.factory"))
    fast = OperatorRow("aten.mm", "forward", 1, 1.0, int(183e9))
    examination.breakdown = replace(examination.breakdown, operators=(fast,))
    assert "aten.mm runs at 183 GFLOP/s, above this machine's best measured" in examination.unknown


def test_the_page_in_the_docs_is_the_real_one(examined):
    excerpt = (ROOT / "docs" / "explanation" / "model.md").read_text().split("```")[1].splitlines()
    lines = []
    for section in sections_of(examined("gpt:factory")):
        lines += [section.title, *(f"  {line}" for line in section_lines(section, None))]
    missing = [line for line in excerpt if line and line not in lines]
    assert len(excerpt) > 15
    assert not missing, f"not on the page of gpt.py: {missing}"


def test_the_facts_are_there_for_programs(tmp_path, examined):
    write_pages([with_times(examined("own:checkpointed"))], tmp_path, [], {"device": "cpu"})
    (file,) = tmp_path.glob("*.json")
    facts = json.loads(file.read_text())
    assert facts["step"]["mfu"] == pytest.approx(
        facts["flops"]["model"] / facts["flops"]["executed"] / 4
    )
    assert facts["step"]["bound"] == "compute"
