"""Which modules run while an operator is dispatched."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from meta_tests.accounting.counted.counting import flops_of, net, products, square


def test_flops_are_separated_by_module_pass_and_operator() -> None:
    count = flops_of(lambda: net()(torch.randn(2, 3)).sum().backward())
    assert products(count.by_operator()) == {"aten.addmm": 48, "aten.mm": 80 + 160 + 48}, f"{count.by_operator()}"
    assert products(count.by_operator("forward")) == {"aten.addmm": 48, "aten.mm": 80}
    assert products(count.by_operator("backward")) == {"aten.mm": 160 + 48}
    assert products(count.by_operator("backward", "Sequential.2.0")) == {"aten.mm": 160}
    forward, backward = (products(count.by_module(phase)) for phase in ("forward", "backward"))
    assert forward["Sequential.0"] == 48, f"{forward}"
    assert forward["Sequential.2"] == forward["Sequential.2.0"] == 80, f"{forward}"
    assert backward["Sequential.2.0"] == 160, f"{backward}"
    assert backward["Sequential.0"] == 48, f"{backward}"
    assert count.by_module()["Global"] == count.totals(), f"{count.by_module()}"
    assert count.totals().products == count.total == count.forward + count.backward, f"{count}"
    assert count.by_module()["Sequential.1"].elementwise == 8 + 8, f"{count.by_module()}"


def test_a_module_whose_input_is_a_leaf_can_be_differentiated_by_it() -> None:
    data = torch.randn(2, 3, requires_grad=True)
    layers = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 5, bias=False))
    count = flops_of(lambda: torch.autograd.grad(layers(data).sum(), data))
    backward = products(count.by_module("backward"))
    assert backward == {"Global": 128, "Sequential": 128, "Sequential.0": 48, "Sequential.1": 80}, f"{backward}"


class TwoProducts(nn.Module):
    def forward(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return (x @ square) * scale + y @ square


def test_a_module_is_left_when_the_last_of_its_inputs_has_its_gradient() -> None:
    """Autograd goes back first to what is numbered higher, here to an input that another thread has made."""
    leaf = torch.randn(3, 4, requires_grad=True)
    x, y = [leaf * 2 for _ in range(20)][-2:]
    with ThreadPoolExecutor() as thread:
        step = thread.submit(flops_of, lambda: TwoProducts()(x, y, torch.ones(())).sum().backward())
    forward, backward = (products(step.result().by_module(phase)) for phase in ("forward", "backward"))
    assert backward == forward, f"{backward} backward, but each product has one gradient, forward {forward}"


def test_what_has_several_inputs_can_be_differentiated_by_one_that_is_a_leaf() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    count = flops_of(lambda: torch.autograd.grad(TwoProducts()(leaf, leaf * 2, torch.ones(())).sum(), leaf))
    assert count.backward == count.forward, f"{count}, but each product has one gradient"


def test_bytes_are_separated_by_module_and_pass() -> None:
    layers = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 5, bias=False))
    data = torch.randn(2, 3)
    count = flops_of(lambda: layers(data).backward(torch.ones(2, 5)))
    forward = {name: (each.read_bytes, each.written_bytes) for name, each in count.by_module("forward").items()}
    assert forward["Sequential.0"] == (4 * (6 + 12), 4 * 8), f"{forward}"
    assert forward["Sequential.1"] == (4 * (8 + 20), 4 * 10), f"{forward}"
    products = count.by_operator("backward")["aten.mm"]
    read = 4 * ((10 + 8) + (10 + 20) + (8 + 6))  # dw and dx of the second layer, dw of the first
    assert products.read_bytes == read, f"the backward pass reads {products.read_bytes}, but should read {read}"
    assert products.written_bytes == 4 * (20 + 8 + 12), f"{products}"
