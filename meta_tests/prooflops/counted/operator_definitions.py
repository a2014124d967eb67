"""What products do, counted one by one in multiplications and additions (`scalars.Operations`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from test_claims.oracles import scalars


def multiply_adds(a: Tensor, b: Tensor) -> int:
    """FLOPs of a @ b, number by number; a complex number is two of them."""
    operations = scalars.Operations()
    if not a.is_complex():
        scalars.matmul(operations.array(a.detach().double()), operations.array(b.detach().double()))
        return operations.flops
    left, right = (operations.array(torch.view_as_real(x.resolve_conj()).double()) for x in (a, b))
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        real = operations.zero()
        imaginary = operations.zero()
        for k in range(a.shape[1]):
            x, y = left[i, k]
            u, v = right[k, j]
            real += x * u - y * v
            imaginary += x * v + y * u
    return operations.flops


def stored_multiply_adds(sparse: Tensor, dense: Tensor) -> int:
    """FLOPs of sparse @ dense if zeros are skipped."""
    return sum(multiply_adds(row[row != 0][None], dense[row != 0]) for row in sparse)


def outer_multiply_adds(u: Tensor, v: Tensor, onto: Tensor) -> int:
    operations = scalars.Operations()
    rows = operations.array(u)
    columns = operations.array(v)
    sums = operations.array(onto)
    for i, j in np.ndindex(sums.shape):
        sums[i, j] = sums[i, j] + rows[i] * columns[j]
    return operations.flops


def bilinear(x: Tensor, weight: Tensor, y: Tensor, grad: Tensor) -> tuple[int, int]:
    """FLOPs of Σ x·w·y and of its three gradients: the first operand meets the others in turn."""
    xs = ("bi", x)
    ws = ("oij", weight)
    ys = ("bj", y)
    gs = ("bo", grad)

    def chain(*operands: tuple[str, Tensor], results: Sequence[str]) -> int:
        operations = scalars.Operations()
        (first, *others) = (
            (indices, operations.array(values.detach())) for indices, values in operands
        )
        for other, result in zip(others, results, strict=True):
            first = scalars.contract(first, other, result)
        return operations.flops

    backward = (
        chain(gs, ws, ys, results=("bij", "bi")),
        chain(xs, gs, ys, results=("bio", "oij")),
        chain(xs, ws, gs, results=("boj", "bj")),
    )
    return chain(xs, ws, ys, results=("boj", "bo")), sum(backward)


def recurrent(layer: nn.RNNBase, x: Tensor, initial_state_gradient: bool) -> tuple[int, int]:
    """FLOPs of a recurrent layer's products and their gradients, step by step.

    The data is (token, batch, feature).
    """
    forward = backward = 0
    state = torch.ones(x.shape[1], layer.hidden_size)
    for step, token in enumerate(x.detach()):
        for given, weight in ((token, layer.weight_ih_l0), (state, layer.weight_hh_l0)):
            gates = torch.ones(x.shape[1], weight.shape[0])
            forward += multiply_adds(given, weight.T)
            backward += multiply_adds(gates.T, given)
            if given is token or step > 0 or initial_state_gradient:
                backward += multiply_adds(gates, weight)
    return forward, backward


def convolution(
    layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor, wanted: int = 2
) -> tuple[int, int]:
    """FLOPs of a convolution, term by term, and of those of its two gradients that are wanted.

    A window slides over the wide side and meets one element of the narrow side at each place: the
    output of a plain convolution, the input of a transposed one. The three products pair the same
    three factors.
    """
    narrow = x if isinstance(layer, nn.ConvTranspose1d) else layer(x)
    windows = torch.ones(len(x) * narrow.shape[2], layer.weight[0].numel())
    of_group = narrow.shape[1] // layer.groups
    forward = sum(
        multiply_adds(windows, layer.weight[group * of_group :][:of_group].flatten(1).T)
        for group in range(layer.groups)
    )
    return forward, wanted * forward


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> tuple[int, int]:
    """FLOPs of the products of fused attention, forward and backward, pair by pair.

    The data is (head, position, width).
    """
    operations = scalars.Operations()
    numbers = [operations.array(each.detach()) for each in (query, key, value)]
    ones = torch.ones(*query.shape[:2], value.shape[-1])
    _, forward, backward = scalars.attention(
        *numbers, causal=causal, output_gradient=ones, flash=True
    )
    return forward.flops, backward.flops
