"""Where prediction ends: values, real tensors, other devices; and what is said of CUDA."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accounting import allocator, predicted
from accounting.models import LLAMA3_8B
from accounting.predicted import ledger
from meta_tests.accounting.predicted.predicting import OPTIMIZERS, built

# ---- where prediction ends -------------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Goes on with as many rows as are above zero, which depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = int((self.linear(x) > 0).sum().item())
        return x[:rows]


def test_a_block_that_asks_for_values_is_told_so():
    with pytest.raises(RuntimeError, match="the block asks for values, and fake tensors have none: aten"):
        predicted.TrainingStep(Counted, torch.empty(8, 4), loss=torch.mean).predict()


def test_a_real_tensor_in_the_block_is_told_so():
    real = torch.ones(3)
    with pytest.raises(RuntimeError, match="a real tensor met the fake ones"), predicted.memory():
        torch.ones(3) + real


def test_bad_input_is_named():
    net = partial(nn.Linear, 4, 4)
    with pytest.raises(ValueError, match="got 'meta', whose kernels are others"), predicted.memory("meta"):
        pass
    with pytest.raises(ValueError, match="device must be one of cpu, cuda"), predicted.memory("mps"):
        pass
    with pytest.raises(RuntimeError, match="modes do not mix"), FakeTensorMode(), predicted.memory():
        pass
    with pytest.raises(ValueError, match="micro_batches=5"):
        predicted.TrainingStep(net, torch.empty(4, 4), loss=torch.mean, micro_batches=5).predict()
    with pytest.raises(TypeError, match="plain strided tensors, got a UninitializedParameter"):
        predicted.TrainingStep(nn.LazyLinear(3), torch.empty(4, 4), loss=torch.mean).predict()


def test_marks_are_kept_in_order():
    with predicted.memory() as held:
        held.mark("one")
        with pytest.raises(ValueError, match="name must be new, got 'one'; marked already: one"):
            held.mark("one")
        with pytest.raises(RuntimeError, match="known only after the predicted block"):
            _ = held.live_bytes
    with pytest.raises(RuntimeError, match="after the predicted block had ended"):
        held.mark("two")


@pytest.mark.skipif(ledger.can_fake_cuda(), reason="this torch can fake a CUDA device")
def test_a_cuda_tensor_in_a_block_for_the_cpu_is_refused_before_torch_aborts():
    with pytest.raises(RuntimeError, match="makes a tensor on 'cuda:0'"), predicted.memory("cpu"):
        torch.empty(3, device="cuda")


def test_charges_of_a_cuda_device_lie_between_the_bounds_of_its_storages():
    book = ledger.Ledger("cuda")
    sizes = [100, 3 * 2**20, 512]
    ends = [book.lend(size) for size in sizes]
    book.mark("held")
    ends[1]()
    book.mark(None)
    held, rest = ledger.replay(book, {})
    bounds = [allocator.charge_bounds(size) for size in sizes]
    assert held.charged_live_bytes == tuple(map(sum, zip(*bounds, strict=True)))
    assert rest.charged_live_bytes == (1024, 1024)
    assert rest.charged_peak_bytes == held.charged_live_bytes


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_requested_bytes_on_cuda_are_exact_and_charges_within_their_bounds(workloads, optimizer):
    given = {
        "loss": lambda logits: logits.float().mean(),
        "optimizer": OPTIMIZERS[optimizer],
        "device": "cuda",
    }
    build, batch = partial(built, workloads, workloads.reduced(LLAMA3_8B)), torch.zeros(2, 32, dtype=torch.long)
    step = predicted.TrainingStep(build, batch, **given)
    step.measure()  # cuBLAS takes its workspace
    guess = step.predict(scratch=True)
    held = step.measure()
    assert guess.cublas_workspace_bytes
    for name, real in held.phases.items():
        ours = guess.phases[name]
        assert ours.live_bytes == real.live_bytes, f"{name}: {ours.live_bytes=}, but should be {real}"
        low, high = ours.charged_live_bytes
        assert low <= real.charged_live_bytes <= high, f"{name}: {real} is not within {low} and {high}"
