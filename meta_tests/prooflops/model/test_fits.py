"""Cards that a step fits on: predicted without the card, and without memory for the model."""

import copy
import re

import pytest
import torch
from torch import nn

import prooflops
from accounting.devices import device_called
from meta_tests.prooflops.memory.predicting import Grouped
from meta_tests.prooflops.model.conftest import model_of
from prooflops.model.fits import USUAL_CARDS, fits_of
from prooflops.model.tables import fits_section
from prooflops.model.training import Training
from prooflops.model.user_model import UserModel

CPU = torch.device("cpu")
WIDTH = 40_000


def wide(batch=1):
    """A matrix of 6.4 GB, with its gradient and two buffers of AdamW."""
    return nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(batch, WIDTH)


def test_a_step_fits_where_its_bytes_are_offered_and_takes_none_here():
    model = UserModel("wide", wide, CPU)
    fits = fits_of(model, model.build_without_values(), (), USUAL_CARDS)
    found = {row.fit.card: row.fit.fits for row in fits.rows}
    assert fits.remarks == ()
    assert not found["RTX 4090"]
    assert found["A100 SXM4 40GB"]
    state = 4 * 4 * WIDTH**2
    for row in fits.rows:
        assert state <= row.fit.reserved_bytes <= 1.3 * state, row


def layered(batch=2, length=512):
    """Four layers that keep much more than their input, in fp32."""
    layer = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256))
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(4))), torch.ones(batch, length, 256)


def test_layers_recomputed_another_dtype_and_8_bit_states_fit_more():
    model = UserModel("layered", layered, CPU)
    card = (device_called("T4"),)
    fits = fits_of(model, model.build(), ("batch",), card, choices=True)
    assert fits.remarks == ()
    rows = {row.training: row for row in fits.rows}
    assert list(rows) == [
        "as it is",
        "layers recomputed",
        "in bf16",
        "8-bit AdamW",
        "bf16, 8-bit AdamW, layers recomputed",
    ]
    batch = {name: row.largest["batch"] for name, row in rows.items()}
    # A layer keeps two hidden tensors, 16 times as wide as its input: those of one remain.
    assert batch["layers recomputed"] > 1.5 * batch["as it is"]
    assert batch["in bf16"] == pytest.approx(2 * batch["as it is"], rel=0.02)
    assert batch["8-bit AdamW"] >= batch["as it is"]
    assert batch["bf16, 8-bit AdamW, layers recomputed"] > 3 * batch["as it is"]


REMEDIES = {
    "layers recomputed": lambda: layered(batch=300),
    "in bf16": wide,
    "8-bit AdamW": lambda: (nn.Linear(WIDTH, 50_000, bias=False).bfloat16(), wide()[1].bfloat16()),
}


@pytest.mark.parametrize("training", REMEDIES)
def test_the_cheapest_change_that_suffices_is_named_with_its_bytes(training):
    model, card = UserModel("", REMEDIES[training], CPU), [device_called("T4")]
    instance = model.build_without_values()
    [row] = fits_of(model, instance, (), card).rows
    assert not row.fit.fits
    assert (row.remedy.training, row.remedy.devices) == (training, 1)
    every = fits_of(model, instance, (), card, choices=True).rows
    [chosen] = [each.fit for each in every if each.training == training]
    assert chosen.fits
    assert chosen.reserved_bytes == row.remedy.reserved_bytes
    assert f"does not fit; fits with {training}: " in row.answer


def test_cards_that_share_the_state_are_the_fewest_and_their_bytes_a_bound():
    width = 120_000
    model = UserModel("", lambda: (nn.Linear(width, width, bias=False), torch.ones(1, width)), CPU)
    [row] = fits_of(model, model.build_without_values(), (), [device_called("T4")]).rows
    remedy, usable = row.remedy, row.fit.usable_bytes
    state = 16 * width**2
    assert remedy.zero_stage == 3, "of one matrix the parameters alone are too large"
    assert state / remedy.devices < remedy.reserved_bytes <= usable
    # AdamW's temporaries are another four bytes a parameter.
    assert (state + 4 * width**2) / (remedy.devices // 2) > usable
    assert row.answer.startswith("does not fit; fits with ZeRO stage 3 on 32 cards: at least ")


def test_the_longest_sequence_fits_up_to_its_ceiling():
    model = UserModel("layered", layered, CPU)
    card = (device_called("T4"),)
    sizes = ("batch", "length")
    [row] = fits_of(model, model.build(), sizes, card).rows
    # A row of the batch holds as much as its tokens.
    assert row.largest["length"] == pytest.approx(512 * row.largest["batch"] / 2, rel=0.01)
    [row] = fits_of(model, model.build(), ("length",), card, ceilings={"length": 600}).rows
    assert row.largest == {"length": 600}


def test_a_state_of_8_bits_takes_a_byte_an_element_and_a_scale_for_each_256():
    net = nn.Linear(1000, 512)
    instance = UserModel("", lambda: (net, torch.ones(4, 1000)), CPU).build()
    step = Training(is_8bit=True).step(instance).predict(compute_capability=(9, 0))
    held = step.phases["second step"].live_by_class["optimizer state"]
    # The bias is too small for 8 bits; two maps of 256 codes are shared.
    assert held == 2 * 512_000 + 2 * 4 * 2000 + 2 * 4 * 512 + 2 * 4 * 256


def test_the_groups_of_the_users_optimizer_stay():
    net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    groups = [{"params": net[0].parameters(), "momentum": 0.9}, {"params": net[1].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    instance = UserModel("", lambda: (net, torch.ones(4, 64), optimizer), CPU).build()
    step = Training().step(instance).predict(compute_capability=(9, 0))
    held = step.phases["second step"].live_by_class["optimizer state"]
    assert held == 4 * 64 * 64, "one of two groups has a momentum"


def test_what_cannot_be_changed_is_said_and_the_others_are_predicted():
    model = UserModel("wide", wide, CPU)
    fits = fits_of(model, model.build_without_values(), (), (device_called("T4"),), choices=True)
    assert [row.training for row in fits.rows] == ["as it is", "in bf16", "8-bit AdamW"]
    assert all("no layers to recompute" in remark for remark in fits.remarks)
    assert len(fits.remarks) == 2


def test_a_report_asks_about_one_card_by_its_name():
    net = nn.Linear(8, 8)
    report = prooflops.model_report(net, torch.ones(2, 8), device="NVIDIA H100 80GB HBM3")
    assert "H100 SXM5 80GB" in str(report)
    with pytest.raises(ValueError, match=r"device must be one of H100 SXM5 80GB, .*, got 'H100'"):
        prooflops.model_report(net, torch.ones(2, 8), device="H100")


SURE = {
    "exact": (nn.Linear(64, 4), torch.ones(2, 64), r"[\d.]+ MiB"),
    "a lower bound": (nn.Conv2d(3, 4, 3), torch.ones(2, 3, 8, 8), r"at least [\d.]+ MiB"),
    "two torches": (Grouped(64, 12 * 16), torch.ones(2, 512, 64), r"[\d.]+ MiB to [\d.]+ MiB"),
}


@pytest.mark.parametrize("name", SURE)
def test_a_row_says_how_sure_it_is(name):
    net, inputs, reserves = SURE[name]
    model = UserModel(name, lambda: (net, inputs), CPU)
    section = fits_section(fits_of(model, model.build(), (), [device_called("RTX 4090")]))
    assert re.fullmatch(reserves, section.rows[1][2]), section
    if name == "a lower bound":
        assert "at least: the workspace is not known of aten.convolution.default" in str(section)


def test_a_model_that_reads_values_is_not_predicted():
    model = model_of("own:looking")
    fits = fits_of(model, model.build(), (), USUAL_CARDS)
    assert fits.rows == ()
    assert fits.remarks[0].startswith("not predicted: ")
