"""What products do, counted one by one in multiplications and additions (`scalars.Operations`)."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

from test_claims.oracles import scalars


def multiply_adds(a, b):
    """FLOPs of a @ b, number by number; a complex number is two of them."""
    if a.is_complex():
        return complex_multiply_adds(a, b)
    operations = scalars.Operations()
    scalars.matmul(operations.array(a.detach().double()), operations.array(b.detach().double()))
    return operations.flops


def complex_multiply_adds(a, b):
    operations = scalars.Operations()
    left = operations.array(torch.view_as_real(a.resolve_conj()).double())
    right = operations.array(torch.view_as_real(b.resolve_conj()).double())
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        real = operations.zero()
        imaginary = operations.zero()
        for k in range(a.shape[1]):
            x, y = left[i, k]
            u, v = right[k, j]
            real += x * u - y * v
            imaginary += x * v + y * u
    return operations.flops


def stored_multiply_adds(sparse, dense):
    """FLOPs of sparse @ dense if zeros are skipped."""
    flops = 0
    for row in sparse:
        stored = row != 0
        flops += multiply_adds(row[stored][None], dense[stored])
    return flops


def outer_multiply_adds(u, v, onto):
    """FLOPs of onto + u vᵀ."""
    operations = scalars.Operations()
    rows = operations.array(u)
    columns = operations.array(v)
    sums = operations.array(onto)
    for i, j in np.ndindex(sums.shape):
        sums[i, j] = sums[i, j] + rows[i] * columns[j]
    return operations.flops


def bilinear(x, weight, y, grad):
    """FLOPs of Σ x·w·y, and of its three gradients together.

    Each contracts the first operand with the others in turn.
    """
    xs = ("bi", x)
    ws = ("oij", weight)
    ys = ("bj", y)
    gs = ("bo", grad)
    forward = contraction_flops(xs, ws, ys, results=("boj", "bo"))
    to_x = contraction_flops(gs, ws, ys, results=("bij", "bi"))
    to_weight = contraction_flops(xs, gs, ys, results=("bio", "oij"))
    to_y = contraction_flops(xs, ws, gs, results=("boj", "bj"))
    return forward, to_x + to_weight + to_y


def contraction_flops(*operands, results):
    """FLOPs of contracting the first operand with the others in turn.

    An operand has its indices and values; `results` has the indices of each intermediate result.
    """
    operations = scalars.Operations()
    counted = [(indices, operations.array(values.detach())) for indices, values in operands]
    product = counted[0]
    for other, result in zip(counted[1:], results, strict=True):
        product = scalars.contract(product, other, result)
    return operations.flops


def recurrent(layer, x, initial_state_gradient):
    """FLOPs of the products of a recurrent layer, step by step, and of their gradients.

    `x` has the dimensions (token, batch, feature).
    """
    forward = backward = 0
    state = torch.ones(x.shape[1], layer.hidden_size)
    for step, token in enumerate(x.detach()):
        for given, weight in ((token, layer.weight_ih_l0), (state, layer.weight_hh_l0)):
            gates = torch.ones(x.shape[1], weight.shape[0])
            forward += multiply_adds(given, weight.T)
            backward += multiply_adds(gates.T, given)
            # The first state is given, and may need no gradient.
            if given is token or step > 0 or initial_state_gradient:
                backward += multiply_adds(gates, weight)
    return forward, backward


def convolution(layer, x, wanted=2):
    """FLOPs of a convolution, each term of each group, and of `wanted` of its two gradients.

    A window slides over the wide side and meets one element of the narrow side at each place. The
    narrow side is the output of a plain convolution, and the input of a transposed one. A gradient
    pairs the same factors as the convolution, and so costs as much.
    """
    narrow = x if isinstance(layer, nn.ConvTranspose1d) else layer(x)
    windows = torch.ones(len(x) * narrow.shape[2], layer.weight[0].numel())
    channels_per_group = narrow.shape[1] // layer.groups
    groups = layer.weight.split(channels_per_group)
    forward = sum(multiply_adds(windows, weight.flatten(1).T) for weight in groups)
    return forward, wanted * forward


def attention(query, key, value, causal=False):
    """FLOPs of the products of fused attention, forward and backward, pair by pair.

    The operands have the dimensions (head, position, width).
    """
    operations = scalars.Operations()
    numbers = [operations.array(each.detach()) for each in (query, key, value)]
    ones = torch.ones(*query.shape[:2], value.shape[-1])
    _, forward, backward = scalars.attention(
        *numbers, causal=causal, output_gradient=ones, flash=True
    )
    return forward.flops, backward.flops
