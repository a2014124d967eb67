"""On which cards a training step fits: the allocator with the card's memory, without a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from accounting.devices import usable_bytes
from meta_tests.prooflops.memory.predicting import unless_torch_fakes_cuda
from prooflops.memory import TrainingStep
from prooflops.memory.caching_allocator import CachingAllocator, OutOfMemory
from prooflops.memory.fits import Predictions, cuda_card, known_cards

pytestmark = unless_torch_fakes_cuda


def step_of(batch, width=4096):
    net = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    inputs = torch.empty(batch, 1024, width, device="meta")
    return TrainingStep(net.to("meta"), inputs, torch.mean, optimizer=torch.optim.AdamW)


def gets_through(step):
    allocator = CachingAllocator(usable_bytes("RTX 4090"))
    cuda = replace(step, device="cuda")
    try:
        cuda.predict(compute_capability=(8, 9), allocator=allocator)
    except OutOfMemory:
        return False
    return True


def predictions_of(step, told):
    """The predictions of `step(batch)`; each one is told."""

    def predict(batch, capability):
        told.append((batch, capability))
        cuda = replace(step(batch), device="cuda")
        return cuda.predict(compute_capability=capability)

    return Predictions(predict)


def test_the_largest_batch_fits_and_its_successor_does_not():
    told = []
    predictions, card = predictions_of(step_of, told), cuda_card("NVIDIA GeForce RTX 4090")
    fit, largest = predictions.fit(card, 2), predictions.largest(card, 2)
    assert fit.card == "RTX 4090"
    assert fit.fits
    assert fit.unknown == []
    assert fit.spare_bytes == fit.usable_bytes - fit.reserved_bytes > 0
    assert gets_through(step_of(largest))
    assert not gets_through(step_of(largest + 1))
    assert len(told) == len(set(told)) <= 4, f"a batch was predicted twice, or too many: {told}"


def test_a_batch_that_is_twice_as_large_requests_what_was_estimated_of_it():
    """All but statistics of a few KiB."""
    once, twice = (replace(step_of(batch), device="cuda").predict() for batch in (2, 4))
    estimated, found = once.requests_if_doubled(), twice.requests()
    assert estimated.events == found.events
    pairs = zip(estimated.sizes, found.sizes, strict=True)
    assert all(abs(guess - size) < 4096 for guess, size in pairs)


def test_each_stage_of_zero_shares_one_more_class_of_the_state_among_devices():
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    step = TrainingStep(net, torch.empty(8, 64), torch.mean, optimizer=torch.optim.AdamW)
    held = step.predict()
    size = held.phases["second step"].live_by_class
    # Both updates need as much scratch as state; each step makes the gradients anew.
    made = [0, 3 * size["optimizer state"], 2 * size["gradients"], size["parameters"]]
    stages = [held.requests(4, stage).sizes for stage in range(4)]
    saved = [sum(stages[0]) - sum(each) for each in stages]
    assert saved == [sum(made[: stage + 1]) * 3 // 4 for stage in range(4)]
    for each, shard in zip(stages[0], held.requests(3, 3).sizes, strict=True):
        assert shard in (each, -(-each // 3))


class OneAtATime(nn.Module):
    """Holds one large tensor at a time, each too large for the memory of those before."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.sizes = [int(2**28 * gib) for gib in (1.0, 3.5, 5.0, 6.0)]

    def forward(self, batch):
        for size in self.sizes:
            large = batch.new_empty(len(batch), size)
            del large
        return batch.sum() * self.weight


def test_a_step_fits_that_gets_through_once_the_cache_is_emptied():
    def step(batch):
        return TrainingStep(OneAtATime().to("meta"), torch.empty(batch, 1), torch.sum)

    predictions, card = predictions_of(step, []), cuda_card("T4")
    fit = predictions.fit(card, 1)
    assert fit.spare_bytes < 0, "15.5 GiB stay reserved, and a T4 offers less"
    assert fit.fits
    # Two times 6 GiB fit, three times do not.
    assert predictions.largest(card, 1) == 2


def test_memory_is_what_torch_sees_less_the_context():
    # Read on one H200 by cudaMemGetInfo: all of it, and what was free with no tensor yet.
    total = 150_109_880_320
    free = 149_557_477_376
    assert usable_bytes("NVIDIA H200") == pytest.approx(free, rel=1e-4)
    assert usable_bytes("NVIDIA H200") < total
    assert known_cards().index("RTX 4090") < known_cards().index("H100 SXM5 80GB")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("RTX 9999", "RTX 9999"),
        ("V100 SXM2", "one size of memory on record, got 'V100 SXM2'"),
        ("MI300X", r"MI300X.*RTX 4090"),
    ],
)
def test_an_unknown_card_is_refused(name, why):
    with pytest.raises(ValueError, match=why):
        cuda_card(name)
