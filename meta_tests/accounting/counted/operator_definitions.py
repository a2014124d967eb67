"""What operators do, written so that the definition counts its own operations.

Products are counted one by one in multiplications and additions (`scalars.Operations`). Elementwise functions and
reductions are one FLOP for each element computed, or that a reduction reads (`Numbers`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from test_claims.oracles import scalars

# --- products ---------------------------------------------------------------------------------------------------------


def multiply_adds(a: Tensor, b: Tensor) -> int:
    """FLOPs of a @ b, number by number; a complex number is two of them."""
    operations = scalars.Operations()
    if not a.is_complex():
        scalars.matmul(operations.array(a.detach().double()), operations.array(b.detach().double()))
        return operations.flops
    left, right = (operations.array(torch.view_as_real(x.resolve_conj()).double()) for x in (a, b))
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        real, imaginary = operations.zero(), operations.zero()
        for k in range(a.shape[1]):
            (x, y), (u, v) = left[i, k], right[k, j]
            real, imaginary = real + (x * u - y * v), imaginary + (x * v + y * u)
    return operations.flops


def outer_multiply_adds(u: Tensor, v: Tensor, onto: Tensor) -> int:
    operations = scalars.Operations()
    rows, columns, sums = operations.array(u), operations.array(v), operations.array(onto)
    for i, j in np.ndindex(sums.shape):
        sums[i, j] = sums[i, j] + rows[i] * columns[j]
    return operations.flops


def bilinear(x: Tensor, weight: Tensor, y: Tensor, grad: Tensor) -> tuple[int, int]:
    """FLOPs of Σ x·w·y, and of its three gradients, each by contracting the first operand with the others in turn."""
    xs, ws, ys, gs = ("bi", x), ("oij", weight), ("bj", y), ("bo", grad)

    def chain(*operands: tuple[str, Tensor], results: Sequence[str]) -> int:
        operations = scalars.Operations()
        (first, *others) = ((indices, operations.array(values.detach())) for indices, values in operands)
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
    """FLOPs of the products of a recurrent layer over (token, batch, feature), step by step, and of their gradients."""
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


def convolution(layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor, wanted: int = 2) -> tuple[int, int]:
    """FLOPs of a convolution, each term of each group, and of as many of its two gradients as are wanted.

    A window slides over the wide side and meets one element of the narrow side at each place: the output of a plain
    convolution, the input of a transposed one. The three products pair the same three factors.
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
    """FLOPs of the products of fused attention over (head, position, width), forward and backward, pair by pair."""
    operations = scalars.Operations()
    numbers = [operations.array(each.detach()) for each in (query, key, value)]
    ones = torch.ones(*query.shape[:2], value.shape[-1])
    _, forward, backward = scalars.attention(*numbers, causal=causal, output_gradient=ones, flash=True)
    return forward.flops, backward.flops


# --- elementwise functions and reductions -----------------------------------------------------------------------------


class Numbers:
    """An array that counts the operations done with it into a tally."""

    def __init__(self, values: Any, tally: list[int]) -> None:
        self.values, self.tally = np.asarray(values, dtype=float), tally

    def each(self, function: Callable[..., Any], *others: Any) -> Numbers:
        """The function of each element, one FLOP an element."""
        out = function(self.values, *(getattr(each, "values", each) for each in others))
        self.tally[0] += out.size
        return Numbers(out, self.tally)

    def over(self, function: np.ufunc, axis: int = 1) -> Numbers:
        """A reduction along one dimension, one FLOP for each element read."""
        self.tally[0] += self.values.size
        return Numbers(function.reduce(self.values, axis=axis, keepdims=True), self.tally)

    def sum(self, axis: int = 1) -> Numbers:
        return self.over(np.add, axis)

    def mean(self, axis: int = 1) -> Numbers:
        """The sum; its division by the number of elements is no operation of its own, as it is none of torch's."""
        return Numbers(self.sum(axis).values / self.values.shape[axis], self.tally)

    def exp(self) -> Numbers:
        return self.each(np.exp)

    def __add__(self, other: Any) -> Numbers:
        return self.each(operator.add, other)

    def __sub__(self, other: Any) -> Numbers:
        return self.each(operator.sub, other)

    def __rsub__(self, other: float) -> Numbers:
        return self.each(lambda x: other - x)

    def __mul__(self, other: Any) -> Numbers:
        return self.each(operator.mul, other)

    def __truediv__(self, other: Any) -> Numbers:
        return self.each(operator.truediv, other)


def softmax(x: Numbers) -> Numbers:
    grown = (x - x.over(np.maximum)).exp()
    return grown / grown.sum()


def softmax_backward(grad: Numbers, out: Numbers) -> Numbers:
    return out * (grad - (grad * out).sum())


def log_softmax(x: Numbers) -> Numbers:
    shifted = x - x.over(np.maximum)
    return shifted - shifted.exp().sum().each(np.log)


def log_softmax_backward(grad: Numbers, out: Numbers) -> Numbers:
    return grad - out.exp() * grad.sum()


def norm(x: Numbers, weight: Numbers | None = None, bias: Numbers | None = None, axis: int = 1) -> Numbers:
    centred = x - x.mean(axis)
    out = centred * ((centred * centred).mean(axis) + 1e-5).each(lambda v: 1 / np.sqrt(v))
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def norm_backward(grad: Numbers, x: Numbers, mean: Numbers, rstd: Numbers, weight: Numbers) -> list[Numbers]:
    normal, inner = (x - mean) * rstd, grad * weight
    along = normal * (inner * normal).mean()
    return [(inner - inner.mean() - along) * rstd, (grad * normal).sum(0), grad.sum(0)]


def rms_norm_backward(grad: Numbers, x: Numbers, rstd: Numbers, weight: Numbers) -> list[Numbers]:
    normal, inner = x * rstd, grad * weight
    along = normal * (inner * normal).mean()
    return [(inner - along) * rstd, (grad * normal).sum(0)]


def _twice_share(x: Numbers) -> Numbers:
    return (x / math.sqrt(2)).each(special.erf) + 1


def gelu(x: Numbers) -> Numbers:
    return x * _twice_share(x) * 0.5


def gelu_backward(grad: Numbers, x: Numbers) -> Numbers:
    density = (x * x * -0.5).exp() / math.sqrt(2 * math.pi)
    return grad * (_twice_share(x) * 0.5 + x * density)


def _inner_tanh(x: Numbers, square: Numbers) -> Numbers:
    return ((x + square * x * 0.044715) * math.sqrt(2 / math.pi)).each(np.tanh)


def gelu_tanh(x: Numbers) -> Numbers:
    return x * (_inner_tanh(x, x * x) + 1) * 0.5


def gelu_tanh_backward(grad: Numbers, x: Numbers) -> Numbers:
    square = x * x
    inner = _inner_tanh(x, square)
    slope = x * 0.5 * (1 - inner * inner)
    return grad * ((inner + 1) * 0.5 + slope * ((square * (3 * 0.044715) + 1) * math.sqrt(2 / math.pi)))


def silu(x: Numbers) -> Numbers:
    return x / (x.each(np.negative).exp() + 1)


def silu_backward(grad: Numbers, x: Numbers) -> Numbers:
    gate = (x.each(np.negative).exp() + 1).each(np.reciprocal)
    return grad * (gate * (x * (1 - gate) + 1))


def mean_squared_error(x: Numbers, y: Numbers) -> Numbers:
    difference = Numbers((x - y).values.reshape(1, -1), x.tally)
    return (difference * difference).mean()


# --- optimizers: the second of two steps with equal gradients; the first only sets up the state -----------------------


def adam(p: Numbers, g: Numbers, lr: float, weight_decay: float, decoupled: bool) -> Numbers:
    """One operation a line, as torch's loop over tensors has them."""
    b1, b2 = 0.9, 0.999
    m = v = Numbers(0 * p.values, p.tally)
    for step in (1, 2):
        p.tally[0] = 1  # the step's number, which torch keeps as a tensor
        grad = g
        if weight_decay and decoupled:
            p = p * (1 - lr * weight_decay)
        elif weight_decay:
            grad = g.each(lambda x, y: x + weight_decay * y, p)
        m = m.each(lambda x, y: x + (1 - b1) * (y - x), grad)
        v = v * b2
        v = v.each(lambda x, y: x + (1 - b2) * y * y, grad)
        root = v.each(np.sqrt)
        root = root / math.sqrt(1 - b2**step)
        root = root + 1e-8
        p = p.each(lambda x, y, z, n=step: x - lr / (1 - b1**n) * y / z, m, root)
    return p


def sgd(p: Numbers, g: Numbers, lr: float, momentum: float, weight_decay: float) -> Numbers:
    buffer = None
    for _ in range(2):
        p.tally[0] = 0
        grad = g.each(lambda x, y: x + weight_decay * y, p) if weight_decay else g
        if momentum:
            grad = buffer = grad if buffer is None else buffer * momentum + grad
        p = p.each(lambda x, y: x - lr * y, grad)
    return p
