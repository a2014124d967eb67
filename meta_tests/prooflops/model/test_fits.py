"""Cards that a step fits on: predicted without the card, and without memory for the model."""

import copy
import re
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

import prooflops
from accounting.devices import device_called
from accounting.units import with_unit
from meta_tests.prooflops.model.conftest import model_of
from prooflops.model.fits import USUAL_CARDS, fits_of, growing_argument
from prooflops.model.tables import fits_section
from prooflops.model.training import Training, trainings_of
from prooflops.model.user_model import UserModel

CPU = torch.device("cpu")
WIDTH = 40_000


def wide(batch=1):
    """A matrix of 6.4 GB, with its gradient and two buffers of AdamW."""
    return nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(batch, WIDTH)


def fits_on(factory, *cards, growing=()):
    """What is found for these cards, with the largest values of these arguments, or the batch."""
    model = UserModel("", factory, CPU)
    sizes = {name: growing_argument(model, name) for name in growing}
    return fits_of(model.build_without_values(), [*map(device_called, cards)], sizes)


def test_a_step_fits_where_its_bytes_are_offered_and_takes_none_here():
    fits = fits_on(wide, "RTX 4090", "A100 SXM4 40GB", growing=["batch"])
    assert fits.not_predicted == fits.notes == ()
    assert [row.fit.fits for row in fits.rows] == [False, True]
    state = 4 * 4 * WIDTH**2
    for row in fits.rows:
        assert state <= row.fit.reserved_bytes <= 1.3 * state, row


def layered(batch=2, length=512):
    """Four layers that keep much more than their input, in fp32."""
    layer = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256))
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(4))), torch.ones(batch, length, 256)


REMEDIES = {
    "layers recomputed": lambda: layered(batch=300),
    "in bf16": wide,
    "8-bit AdamW": lambda: (nn.Linear(WIDTH, 50_000, bias=False).bfloat16(), wide()[1].bfloat16()),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_cheapest_change_that_suffices_is_named_with_its_bytes(name):
    [row] = fits_on(REMEDIES[name], "T4").rows
    assert not row.fit.fits
    instance = UserModel("", REMEDIES[name], CPU).build_without_values()
    reserved = {}
    for training in trainings_of(instance):
        with suppress(ValueError):
            step = training.step(instance).predict(compute_capability=(7, 5))
            reserved[training.name] = step.reserved_peak_bytes
    before = [*reserved][: [*reserved].index(name)]
    assert min(reserved[each] for each in before) > row.fit.usable_bytes >= reserved[name]
    remedy = row.remedy
    assert (remedy.training, remedy.devices, remedy.reserved_bytes) == (name, 1, reserved[name])
    assert f"fits with {name}: " in row.answer


def test_cards_that_share_the_state_are_the_fewest_and_their_bytes_a_bound():
    width = 120_000
    [row] = fits_on(lambda: (nn.Linear(width, width, bias=False), torch.ones(1, width)), "T4").rows
    remedy, usable = row.remedy, row.fit.usable_bytes
    state = 16 * width**2
    assert remedy.zero_stage == 3, "of one matrix the parameters alone are too large"
    assert state / remedy.devices < remedy.reserved_bytes <= usable
    # AdamW's temporaries are another four bytes a parameter.
    assert (state + 4 * width**2) / (remedy.devices // 2) > usable
    assert row.answer.startswith("does not fit; may fit with ZeRO stage 3 on 32 cards: at least ")


def test_the_longest_sequence_fits_up_to_its_ceiling():
    [row] = fits_on(layered, "T4", growing=["batch", "length"]).rows
    # A row of the batch holds as much as its tokens.
    assert row.largest["length"] == pytest.approx(512 * row.largest["batch"] / 2, rel=0.01)
    model = UserModel("layered", layered, CPU)
    length = {"length": growing_argument(model, "length", ceiling=600)}
    [row] = fits_of(model.build_without_values(), [device_called("T4")], length).rows
    assert row.largest == {"length": 600}


def test_the_batch_grows_where_all_inputs_have_it_and_the_loss_holds_none():
    net, x = layered()
    [named] = fits_on(layered, "T4", growing=["batch"]).rows
    [row] = prooflops.model_report(net, x, device="T4").examination.fits.rows
    assert row.largest == named.largest
    bags = prooflops.model_report(
        nn.EmbeddingBag(9, 4), (torch.zeros(6).long(), torch.tensor([0, 2])), device="T4"
    )
    assert bags.examination.fits.rows[0].largest == {}
    assert "the inputs have no first dimension in common" in str(bags)
    targets = torch.ones(2, 512, 256)
    own = prooflops.model_report(net, x, loss=lambda y: (y - targets).mean(), device="T4")
    assert own.examination.fits.rows[0].answer == "fits"
    assert "a loss of your own may hold targets" in str(own)


def test_a_peak_says_its_phase_and_depends_on_no_unknown_of_a_named_card():
    net = nn.Linear(4096, 4096, device="meta")
    batch = torch.empty(1, 4096, device="meta")
    assert prooflops.model_report(net, batch).examination.memory.unknown
    memory = prooflops.model_report(net, batch, device="T4").examination.memory
    # The optimizer's temporaries are beside the gradient.
    assert (memory.unknown, memory.peak_phase) == ((), "step")


class LeavesATensor(nn.Linear):
    """Adds a tensor of the CPU to its input, wherever that is."""

    def forward(self, x):
        return super().forward(x + torch.ones(64))


# Modules on the CPU, and why a step on a card is not predicted.
ON_CPU = {
    "predicted": (partial(nn.Linear, 64, 64), None),
    "cuDNN": (partial(nn.GRU, 64, 64), "only cuDNN knows its reserve space"),
    "mixed": (partial(LeavesATensor, 64, 64), "a card refuses to mix them"),
}


@pytest.mark.parametrize("name", ON_CPU)
def test_a_report_is_about_the_card_or_says_why_it_is_not(name):
    make, why_not = ON_CPU[name]
    report = prooflops.model_report(make(), torch.ones(2, 8, 64), device="T4")
    device, fits = report.examination.user_model.device.type, report.examination.fits
    assert device == ("cpu" if why_not else "cuda")
    assert len(fits.rows) == (why_not is None)
    assert why_not is None or re.match(f"T4: not predicted: .*{why_not}", fits.not_predicted[0])


def test_an_image_without_a_batch_has_no_larger_one():
    report = prooflops.model_report(nn.Conv2d(3, 4, 3), torch.ones(3, 8, 8), device="T4")
    [row] = report.examination.fits.rows
    left = with_unit(row.fit.usable_bytes - row.fit.reserved_bytes, "B")
    assert row.answer == f"fits if unknown workspace takes at most {left}"
    assert "the largest batch is not predicted: " in str(report)
    assert report.examination.unanswered == []


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


SURE = {
    "exact": (nn.Linear(64, 4), torch.ones(2, 64), r"[\d.]+ MiB"),
    "a lower bound": (nn.Conv2d(3, 4, 3), torch.ones(2, 3, 8, 8), r"at least [\d.]+ MiB"),
}


@pytest.mark.parametrize("name", SURE)
def test_a_row_says_how_sure_it_is(name):
    net, inputs, reserves = SURE[name]
    instance = UserModel(name, lambda: (net, inputs), CPU).build()
    section = fits_section(fits_of(instance, [device_called("RTX 4090")], {}))
    assert re.fullmatch(reserves, section.rows[1][2]), section
    if name == "a lower bound":
        assert "at least: the workspace of aten.convolution.default" in str(section)


def test_a_model_that_reads_values_is_not_predicted():
    fits = fits_of(model_of("own:looking").build(), USUAL_CARDS, {})
    assert fits.rows == ()
    assert fits.not_predicted[0].startswith("not predicted: ")
