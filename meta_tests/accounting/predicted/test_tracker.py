"""Operations whose storages differ on fake tensors: written in place by autograd, boxed numbers, other devices."""

from __future__ import annotations

import pytest
import torch

from accounting import measured, predicted
from accounting.predicted.fake_cuda import can_fake_cuda
from accounting.predicted.ledger import Ledger
from accounting.predicted.tracker import Tracker
from meta_tests.accounting.predicted.predicting import Gathering, assert_alike, both


def test_backward_passes_that_work_in_place_are_predicted_as_such():
    guess, held = both(Gathering, torch.randn(256, 64))
    assert_alike(guess, held, without_scratch=True)
    for name in ("backward", "second backward"):
        ours, real = guess.phases[name].allocated_bytes, held.phases[name].allocated_bytes
        assert real - 100 < ours <= real, f"{name}: allocates {ours}, but should {real}, boxed numbers aside"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient.clone() + gradient


@pytest.mark.parametrize("instrument", [predicted, measured])
def test_a_sum_in_a_backward_pass_of_ones_own_is_not_written_in_place(instrument):
    with instrument.memory() as held:
        x = torch.ones(100, requires_grad=True)
        out = Doubled.apply(x)
        held.mark("forward")
        out.backward(out.detach())
    assert held.allocated_bytes - held.phases["forward"].allocated_bytes == 2 * x.nbytes


@pytest.mark.parametrize(("number", "size"), [(2, 8), (0.5, 8), (2j, 16), (True, 1)])
def test_a_number_that_a_product_saves_is_held_until_its_backward_pass(number, size):
    with predicted.memory() as held:
        x = torch.ones(10, requires_grad=True, dtype=torch.complex64 if isinstance(number, complex) else None)
        held.mark("leaf")
        product = x * number
        held.mark("product")
        product.sum().real.backward()
        held.mark("backward")
        dropped = x * number
        torch.ones(1)
        del dropped
        held.mark("no backward pass")
    phases = held.phases
    assert phases["no backward pass"].live_bytes == phases["backward"].live_bytes, "freed with its node"
    assert phases["product"].allocated_bytes == product.nbytes + size, f"{phases['product']}"
    assert phases["backward"].live_bytes == x.nbytes + product.nbytes + x.grad.nbytes, f"{phases['backward']}"


def test_what_a_forward_pass_makes_is_not_recomputed():
    book = Ledger("cpu")
    with Tracker(book, measures=False):
        torch.ones(3)
    assert not book.storages[0].recomputed


@pytest.mark.skipif(can_fake_cuda(), reason="this torch can fake a CUDA device")
def test_a_cuda_tensor_in_a_block_for_the_cpu_is_refused_before_torch_aborts():
    with pytest.raises(RuntimeError, match="makes a tensor on 'cuda:0'"), predicted.memory("cpu"):
        torch.empty(3, device="cuda")
