"""The limits of prediction: values, real tensors, other devices; and requested bytes on CUDA."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accounting import predicted
from accounting.models import LLAMA3_8B
from meta_tests.accounting.predicted.predicting import OPTIMIZERS, built

# ---- where prediction ends -------------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Keeps as many rows as are above zero, which depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = int((self.linear(x) > 0).sum().item())
        return x[:rows]


def test_a_block_that_reads_values_is_refused():
    with pytest.raises(RuntimeError, match="the block reads values, and fake tensors have none: aten"):
        predicted.TrainingStep(Counted, torch.empty(8, 4), loss=torch.mean).predict()


def test_a_real_tensor_in_the_block_is_refused():
    real = torch.ones(3)
    with pytest.raises(RuntimeError, match="the block mixes a real tensor with fake ones"), predicted.memory():
        torch.ones(3) + real


def test_an_assertion_of_the_block_itself_is_raised_as_it_is():
    with pytest.raises(AssertionError, match=r"^too few$"), predicted.memory():
        raise AssertionError("too few")


def test_bad_input_is_named():
    net = partial(nn.Linear, 4, 4)
    with pytest.raises(ValueError, match="got 'meta', whose kernels are others"), predicted.memory("meta"):
        pass
    with pytest.raises(ValueError, match="device must be one of cpu, cuda"), predicted.memory("mps"):
        pass
    with pytest.raises(RuntimeError, match="two do not mix"), FakeTensorMode(), predicted.memory():
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


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_requested_bytes_on_cuda_are_exact_and_charges_within_their_bounds(workloads, optimizer):
    given = {"loss": lambda logits: logits.float().mean(), "optimizer": OPTIMIZERS[optimizer], "device": "cuda"}
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
