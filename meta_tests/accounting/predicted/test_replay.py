"""The bytes of a phase by class of storage, and the charges of CUDA's caching allocator."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from accounting import allocator, predicted
from accounting.models import DeepLinear
from accounting.predicted.ledger import Event, Ledger, Storage
from accounting.predicted.replay import replay
from meta_tests.accounting.predicted.predicting import OPTIMIZERS, built


def test_bytes_are_separated_by_class():
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
    step = predicted.TrainingStep(net, torch.empty(32, 64), torch.mean, optimizer=OPTIMIZERS["adamw fused"]).predict()
    parameters = 4 * sum(tensor.numel() for tensor in net.parameters())
    buffers = sum(tensor.nbytes for tensor in net.buffers())
    at_end = step.phases["second step"].live_by_class
    assert at_end == {
        "parameters": parameters,
        "buffers": buffers,
        "inputs": 32 * 64 * 4,
        "gradients": parameters,
        "optimizer state": 2 * parameters + 4 * 6,
    }, f"{at_end}"
    saved = 4 * 32 * 64 * 2 + 2 * 4 * 64 + 4  # outputs of the first two layers that matter, statistics, loss
    assert step.phases["second forward"].live_by_class["activations"] == saved
    for name, phase in step.phases.items():
        assert sum(phase.live_by_class.values()) == phase.live_bytes, name
        assert sum(phase.peak_by_class.values()) == phase.peak_bytes, name


def test_what_a_checkpoint_runs_again_is_a_class_of_its_own(workloads):
    model = DeepLinear(dim=64, layers=8)
    step = predicted.TrainingStep(partial(built, workloads, model, 4), torch.empty(256, 64), torch.mean).predict()
    peak = step.phases["second backward"].peak_by_class
    assert peak["recomputed"] >= 3 * 256 * 64 * 4, f"{peak}"


def test_a_block_of_ones_own_has_the_classes_that_its_marks_name():
    with predicted.memory() as held:
        kept = torch.ones(100)
        held.mark("first")
        passing = kept * 2
        del passing
        held.mark("second")
    assert held.phases["second"].peak_by_class == {"first": 400, "temporaries": 400}
    assert (held.allocated_bytes, held.freed_bytes, held.live_bytes, held.peak_bytes) == (800, 400, 400, 800)


@pytest.mark.parametrize(("freed", "size"), [(2, 400), (3, 800)])
def test_a_sum_written_into_its_first_term_is_one_storage_if_that_is_freed_at_once(freed, size):
    book = Ledger("cpu")
    book.storages += [Storage(400, recomputed=False), Storage(400, recomputed=False)]
    book.events += [Event(0, True, 1), Event(1, True, 2, successor_of=0), Event(0, False, freed), Event(1, False, 3)]
    book.mark(None)
    (block,) = replay(book, {})
    assert (block.allocated_bytes, block.freed_bytes, block.peak_by_class) == (size, size, {"temporaries": size})


def test_the_classes_of_a_peak_are_those_of_the_first_time_that_it_is_reached():
    book = Ledger("cpu")
    book.lend(100)()
    book.lend(100)
    book.mark(None)
    (block,) = replay(book, {})
    assert (block.peak_by_class, block.live_by_class) == ({"temporaries": 100}, {"rest": 100})


def test_the_scratch_of_a_kernel_comes_on_top_of_what_is_held_then(monkeypatch):
    book = Ledger("cpu")
    book.lend(100)()
    book.lend(30)
    book.mark(None)
    monkeypatch.setattr(book, "scratch_at", lambda phase, position: {1: 50, 3: 60}.get(position, 0))
    (block,) = replay(book, {})
    assert (block.peak_bytes, block.peak_bytes_with_scratch) == (100, 150)


def test_charges_of_a_cuda_device_lie_between_the_bounds_of_its_storages():
    book = Ledger("cuda")
    sizes = [100, 3 * 2**20, 512]
    ends = [book.lend(size) for size in sizes]
    book.mark("held")
    ends[1]()
    book.mark(None)
    held, rest = replay(book, {})
    bounds = [allocator.charge_bounds(size) for size in sizes]
    assert held.charged_live_bytes == tuple(map(sum, zip(*bounds, strict=True)))
    assert rest.charged_live_bytes == (1024, 1024)
    assert rest.charged_peak_bytes == held.charged_peak_bytes == held.charged_live_bytes
