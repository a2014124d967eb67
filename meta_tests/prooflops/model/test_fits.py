"""Cards that a step fits on: predicted without the card, and without memory for the model."""

from pathlib import Path

import pytest
import torch
from torch import nn

import prooflops
from accounting.devices import device_called, usable_bytes
from meta_tests.conftest import ROOT
from prooflops.model.examination import Examination
from prooflops.model.fits import fits_of, without_values
from prooflops.model.page import write_pages
from prooflops.model.user_model import UserModel, load_user_model

CPU = torch.device("cpu")
WIDTH = 40_000


def wide(batch: int = 1):
    """A matrix of 6.4 GB, with its gradient and two buffers of AdamW."""
    return nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(batch, WIDTH)


def test_a_step_fits_where_its_bytes_are_offered_and_takes_none_here() -> None:
    model = UserModel("wide", wide, CPU)
    fits = fits_of(model, without_values(model))
    found = {each.card: each.fits for each in fits.cards}
    assert fits.remark == ""
    assert not found["RTX 4090"]
    assert found["A100 SXM4 40GB"]
    state = 4 * 4 * WIDTH**2
    for each in fits.cards:
        assert state <= each.reserved_bytes <= 1.3 * state, each


def test_the_largest_size_fits_and_one_a_hundredth_larger_does_not() -> None:
    model = UserModel("wide", wide, CPU)
    card = device_called("A100 SXM4 40GB")
    [row] = fits_of(model, without_values(model), "batch", (card,)).cards
    assert row.largest
    # Input, output and their gradient, in fp32, and what AdamW needs for its step.
    a_row = 4 * WIDTH
    peak_of_update = 5 * 4 * WIDTH**2
    most = (usable_bytes(card) - 4 * 4 * WIDTH**2) / a_row
    least = (usable_bytes(card) - peak_of_update) / (4 * a_row)
    assert least < row.largest < most


def test_a_report_asks_about_one_card_by_its_name() -> None:
    net = nn.Linear(8, 8)
    report = prooflops.model_report(net, torch.ones(2, 8), device="NVIDIA H100 80GB HBM3")
    assert "H100 SXM5 80GB" in str(report)
    with pytest.raises(ValueError, match=r"device must be one of H100 SXM5 80GB, .*, got 'H100'"):
        prooflops.model_report(net, torch.ones(2, 8), device="H100")
    for name, said in (
        ("MI300X", "device must be a CUDA card .*, got 'MI300X'"),
        ("V100 SXM2", "one size"),
    ):
        with pytest.raises(ValueError, match=said):
            prooflops.model_report(net, torch.ones(2, 8), device=name)


def test_a_page_has_the_cards_and_says_why_there_are_none(tmp_path: Path) -> None:
    for factory, said in (("gpt:factory", "RTX 4090"), ("own:looking", "not predicted: ")):
        user_model = load_user_model(f"meta_tests.user_models.{factory}", ROOT, CPU)
        examination = Examination(user_model)
        assert examination.fits
        write_pages([examination], tmp_path / factory, ["device: cpu"], {})
        (page,) = (tmp_path / factory).glob("*.md")
        assert "cards that it fits on" in page.read_text()
        assert said in page.read_text()
