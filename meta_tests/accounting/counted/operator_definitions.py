"""What operators do, number by number: each definition counts the operations that it really carries out.

Products are counted in multiplications and additions (`scalars.Operations`). Elementwise functions and reductions are
counted in calls: one for each element of a result, one for each element that a reduction reads.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from test_claims.oracles import scalars

# --- products ---------------------------------------------------------------------------------------------------------


def multiply_adds(a: Tensor, b: Tensor) -> int:
    """FLOPs of a @ b, number by number; a complex number is two of them."""
    if a.is_complex():
        return complex_multiply_adds(a, b)
    operations = scalars.Operations()
    scalars.matmul(operations.array(a.double()), operations.array(b.double()))
    return operations.flops


def complex_multiply_adds(a: Tensor, b: Tensor) -> int:
    operations = scalars.Operations()
    pairs = [operations.array(torch.view_as_real(x.resolve_conj()).double()) for x in (a, b)]
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        real, imaginary = operations.zero(), operations.zero()
        for k in range(a.shape[1]):
            (x, y), (u, v) = pairs[0][i, k], pairs[1][k, j]
            real = real + (x * u - y * v)
            imaginary = imaginary + (x * v + y * u)
    return operations.flops


def outer_multiply_adds(u: Tensor, v: Tensor, onto: Tensor) -> int:
    operations = scalars.Operations()
    rows, columns, sums = operations.array(u), operations.array(v), operations.array(onto)
    for i, j in np.ndindex(sums.shape):
        sums[i, j] = sums[i, j] + rows[i] * columns[j]
    return operations.flops


def chain(*operands: tuple[str, Tensor], results: Sequence[str]) -> int:
    """FLOPs of contracting the first operand with each of the others in turn."""
    operations = scalars.Operations()
    (first, *others) = ((indices, operations.array(values.detach())) for indices, values in operands)
    for other, result in zip(others, results, strict=True):
        first = scalars.contract(first, other, result)
    return operations.flops


def bilinear(x: Tensor, weight: Tensor, y: Tensor, grad: Tensor) -> tuple[int, int]:
    """FLOPs of Σ x·w·y, and of its three gradients."""
    xs, ws, ys, gs = ("bi", x), ("oij", weight), ("bj", y), ("bo", grad)
    forward = chain(xs, ws, ys, results=("boj", "bo"))
    backward = (
        chain(gs, ws, ys, results=("bij", "bi")),
        chain(xs, gs, ys, results=("bio", "oij")),
        chain(xs, ws, gs, results=("boj", "bj")),
    )
    return forward, sum(backward)


def recurrent(layer: nn.RNNBase, x: Tensor, initial_state_gradient: bool) -> tuple[int, int]:
    """FLOPs of the products of a recurrent layer over (token, batch, feature), step by step, and of their gradients."""
    forward = backward = 0
    state = torch.ones(x.shape[1], layer.hidden_size)
    for step, token in enumerate(x.detach()):
        for given, weight in ((token, layer.weight_ih_l0), (state, layer.weight_hh_l0)):
            gates = torch.ones(x.shape[1], weight.shape[0])
            forward += multiply_adds(given, weight.detach().T)
            backward += multiply_adds(gates.T, given)
            if given is token or step > 0 or initial_state_gradient:
                backward += multiply_adds(gates, weight.detach())
    return forward, backward


def convolution(layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor) -> tuple[Tensor, int]:
    """A convolution, term by term, and its FLOPs, products with padding included."""
    transposed, (padding,), (stride,) = isinstance(layer, nn.ConvTranspose1d), layer.padding, layer.stride
    operations = scalars.Operations()
    weight = operations.array(layer.weight.detach())
    padded = operations.array(x if transposed else F.pad(x, (padding, padding)))
    per_group = (layer.in_channels // layer.groups, layer.out_channels // layer.groups)
    reach = padding if transposed else 0
    out = operations.array(F.pad(torch.zeros_like(layer(x)), (reach, reach)))
    for n, group, i, o, tap in np.ndindex(x.shape[0], layer.groups, *per_group, weight.shape[2]):
        into, of = group * per_group[1] + o, group * per_group[0] + i
        factor = weight[of, o, tap] if transposed else weight[into, i, tap]
        for place in range(x.shape[2] if transposed else out.shape[2]):
            to, seen = (place * stride + tap, place) if transposed else (place, place * stride + tap)
            out[n, into, to] = out[n, into, to] + padded[n, of, seen] * factor
    return scalars.tensor(out)[..., reach : out.shape[2] - reach], operations.flops


def convolution_gradients(
    layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor, grad: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor, int]:
    """Gradients of the input and the weight, term by term, and the FLOPs of those that are wanted.

    A window slides over the padded `wide` side and meets one `narrow` element at each place: the input is the wide
    side of a plain convolution, the narrow one of a transposed one.
    """
    transposed, (padding,) = isinstance(layer, nn.ConvTranspose1d), layer.padding
    operations = scalars.Operations()
    wide, narrow = (grad, x) if transposed else (x, grad)
    wide, narrow = operations.array(F.pad(wide, (padding, padding))), operations.array(narrow)
    weight = operations.array(layer.weight.detach())
    input_gradient = operations.array(torch.zeros((narrow if transposed else wide).shape))
    weight_gradient = operations.array(torch.zeros(weight.shape))
    narrow_channels, wide_channels = narrow.shape[1] // layer.groups, wide.shape[1] // layer.groups
    for n, c, place in np.ndindex(narrow.shape):
        for i, tap in np.ndindex(wide_channels, weight.shape[2]):
            point = (n, c, place)
            seen = (n, c // narrow_channels * wide_channels + i, place * layer.stride[0] + tap)
            if wanted[0]:
                to, output_gradient = (point, wide[seen]) if transposed else (seen, narrow[point])
                input_gradient[to] = input_gradient[to] + weight[c, i, tap] * output_gradient
            if wanted[1]:
                weight_gradient[c, i, tap] = weight_gradient[c, i, tap] + wide[seen] * narrow[point]
    inside = slice(None) if transposed else slice(padding, padding + x.shape[2])
    return scalars.tensor(input_gradient)[..., inside], scalars.tensor(weight_gradient), operations.flops


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> tuple[int, int]:
    """FLOPs of the products of fused attention over (head, position, width), forward and backward, pair by pair."""
    operations = scalars.Operations()
    numbers = [operations.array(each.detach()) for each in (query, key, value)]
    ones = torch.ones(*query.shape[:2], value.shape[-1])
    _, forward, backward = scalars.attention(*numbers, causal=causal, output_gradient=ones, flash=True)
    return forward.flops, backward.flops


# --- elementwise functions and reductions -----------------------------------------------------------------------------

Array = Any


class Calls:
    """Elementwise functions and reductions over arrays, which count every call of the function of numbers."""

    def __init__(self) -> None:
        self.flops = 0

    def _counting(self, function: Callable[..., float], arguments: int) -> np.ufunc:
        def once(*numbers: float) -> float:
            self.flops += 1
            return function(*numbers)

        return np.frompyfunc(once, arguments, 1)

    def each(self, function: Callable[..., float], *arrays: Array) -> Array:
        """The function of each element."""
        return np.asarray(self._counting(function, len(arrays))(*arrays), dtype=float)

    def over(self, axis: int, function: Callable[[float, float], float], x: Array, start: float = 0.0) -> Array:
        """All elements along one dimension, taken up one after the other."""
        kept = self._counting(function, 2).reduce(x.astype(object), axis, None, None, True, start)
        return np.asarray(kept, dtype=float)

    def total(self, x: Array, axis: int = 1) -> Array:
        return self.over(axis, operator.add, x)

    def mean(self, x: Array, axis: int = 1) -> Array:
        """The sum; its division by the number of elements is no call of its own, as it is none of torch's."""
        return self.total(x, axis) / x.shape[axis]


def gelu(calls: Calls, x: Array) -> Array:
    twice = calls.each(lambda v: v + 1, calls.each(math.erf, calls.each(lambda v: v / math.sqrt(2), x)))
    return calls.each(operator.mul, calls.each(operator.mul, x, twice), np.array(0.5))


def gelu_backward(calls: Calls, grad: Array, x: Array) -> Array:
    twice = calls.each(lambda v: v + 1, calls.each(math.erf, calls.each(lambda v: v / math.sqrt(2), x)))
    share = calls.each(lambda v: v * 0.5, twice)
    exponent = calls.each(lambda v: v * -0.5, calls.each(operator.mul, x, x))
    density = calls.each(lambda v: v / math.sqrt(2 * math.pi), calls.each(math.exp, exponent))
    return calls.each(operator.mul, grad, calls.each(operator.add, share, calls.each(operator.mul, x, density)))


def _inner_tanh(calls: Calls, x: Array, square: Array) -> Array:
    cube = calls.each(lambda v: v * 0.044715, calls.each(operator.mul, square, x))
    return calls.each(math.tanh, calls.each(lambda v: v * math.sqrt(2 / math.pi), calls.each(operator.add, x, cube)))


def gelu_tanh(calls: Calls, x: Array) -> Array:
    twice = calls.each(lambda v: v + 1, _inner_tanh(calls, x, calls.each(operator.mul, x, x)))
    return calls.each(operator.mul, calls.each(operator.mul, x, twice), np.array(0.5))


def gelu_tanh_backward(calls: Calls, grad: Array, x: Array) -> Array:
    square = calls.each(operator.mul, x, x)
    inner = _inner_tanh(calls, x, square)
    half, share = calls.each(lambda v: v * 0.5, x), calls.each(lambda v: v * 0.5, calls.each(lambda v: v + 1, inner))
    slope = calls.each(lambda v: 1 - v, calls.each(operator.mul, inner, inner))
    within = calls.each(lambda v: v + 1, calls.each(lambda v: v * 3 * 0.044715, square))
    within = calls.each(lambda v: v * math.sqrt(2 / math.pi), within)
    rest = calls.each(operator.mul, calls.each(operator.mul, half, slope), within)
    return calls.each(operator.mul, grad, calls.each(operator.add, share, rest))


def sigmoid(calls: Calls, x: Array) -> Array:
    return calls.each(lambda v: 1 / v, calls.each(lambda v: v + 1, calls.each(math.exp, calls.each(operator.neg, x))))


def silu(calls: Calls, x: Array) -> Array:
    below = calls.each(lambda v: v + 1, calls.each(math.exp, calls.each(operator.neg, x)))
    return calls.each(operator.truediv, x, below)


def silu_backward(calls: Calls, grad: Array, x: Array) -> Array:
    gate = sigmoid(calls, x)
    slope = calls.each(lambda v: v + 1, calls.each(operator.mul, x, calls.each(lambda v: 1 - v, gate)))
    return calls.each(operator.mul, grad, calls.each(operator.mul, gate, slope))


def softmax(calls: Calls, x: Array) -> Array:
    grown = calls.each(math.exp, calls.each(operator.sub, x, calls.over(1, max, x, -math.inf)))
    return calls.each(operator.truediv, grown, calls.total(grown))


def softmax_backward(calls: Calls, grad: Array, out: Array) -> Array:
    inner = calls.total(calls.each(operator.mul, grad, out))
    return calls.each(operator.mul, out, calls.each(operator.sub, grad, inner))


def log_softmax(calls: Calls, x: Array) -> Array:
    shifted = calls.each(operator.sub, x, calls.over(1, max, x, -math.inf))
    return calls.each(operator.sub, shifted, calls.each(math.log, calls.total(calls.each(math.exp, shifted))))


def log_softmax_backward(calls: Calls, grad: Array, out: Array) -> Array:
    grown = calls.each(operator.mul, calls.each(math.exp, out), calls.total(grad))
    return calls.each(operator.sub, grad, grown)


def reciprocal_root(calls: Calls, variance: Array) -> Array:
    return calls.each(lambda x: 1 / math.sqrt(x), calls.each(lambda x: x + 1e-5, variance))


def norm(calls: Calls, x: Array, weight: Array | None = None, bias: Array | None = None, axis: int = 1) -> Array:
    centred = calls.each(operator.sub, x, calls.mean(x, axis))
    variance = calls.mean(calls.each(lambda each: each * each, centred), axis)
    out = calls.each(operator.mul, centred, reciprocal_root(calls, variance))
    out = out if weight is None else calls.each(operator.mul, out, weight)
    return out if bias is None else calls.each(operator.add, out, bias)


def norm_backward(calls: Calls, grad: Array, x: Array, mean: Array, rstd: Array, weight: Array) -> list[Array]:
    mul, sub = operator.mul, operator.sub
    normal = calls.each(mul, calls.each(sub, x, mean), rstd)
    inner = calls.each(mul, grad, weight)
    along = calls.each(mul, normal, calls.mean(calls.each(mul, inner, normal)))
    less = calls.each(sub, calls.each(sub, inner, calls.mean(inner)), along)
    of_weight = calls.total(calls.each(mul, grad, normal), 0)
    return [calls.each(mul, less, rstd), of_weight[0], calls.total(grad, 0)[0]]


def rms_norm_backward(calls: Calls, grad: Array, x: Array, rstd: Array, weight: Array) -> list[Array]:
    mul = operator.mul
    normal = calls.each(mul, x, rstd)
    inner = calls.each(mul, grad, weight)
    along = calls.each(mul, normal, calls.mean(calls.each(mul, inner, normal)))
    of_weight = calls.total(calls.each(mul, grad, normal), 0)
    return [calls.each(mul, calls.each(operator.sub, inner, along), rstd), of_weight[0]]


def mean_squared_error(calls: Calls, x: Array, y: Array) -> Array:
    difference = calls.each(operator.sub, x, y).reshape(1, -1)
    return calls.mean(calls.each(lambda each: each * each, difference))


def added_rows(calls: Calls, table: Array, rows: Sequence[int], added: Array) -> Array:
    """Each row of `added` onto a row of the table."""
    for row, values in zip(rows, added, strict=True):
        table[row] = calls.each(operator.add, table[row], values)
    return table


# --- optimizers: the second step, from the state that the first has left ----------------------------------------------


def adam(calls: Calls, p: Array, g: Array, *, lr: float, weight_decay: float, decoupled: bool) -> Array:
    """Two equal gradients; the first step only sets up m and v. torch's loop over tensors, one call a line."""
    b1, b2, eps = 0.9, 0.999, 1e-8
    m, v, calls_of_step = 0 * p, 0 * p, Calls()
    for step in (1, 2):
        calls_of_step = Calls()
        each = calls_of_step.each
        calls_of_step.flops += 1  # the step's number, which torch keeps as a tensor
        grad = g
        if weight_decay and decoupled:
            p = each(lambda x: x * (1 - lr * weight_decay), p)
        elif weight_decay:
            grad = each(lambda x, y: x + weight_decay * y, g, p)
        m = each(lambda x, y: x + (1 - b1) * (y - x), m, grad)
        v = each(lambda x: b2 * x, v)
        v = each(lambda x, y: x + (1 - b2) * y * y, v, grad)
        root = each(math.sqrt, v)
        root = each(lambda x, n=step: x / math.sqrt(1 - b2**n), root)
        root = each(lambda x: x + eps, root)
        p = each(lambda x, y, z, n=step: x - lr / (1 - b1**n) * y / z, p, m, root)
    calls.flops += calls_of_step.flops
    return p


def sgd(calls: Calls, p: Array, g: Array, *, lr: float, momentum: float, weight_decay: float) -> Array:
    buffer, calls_of_step = 0 * p, Calls()
    for step in (1, 2):
        calls_of_step = Calls()
        each = calls_of_step.each
        grad = each(lambda x, y: x + weight_decay * y, g, p) if weight_decay else g
        if momentum and step == 1:
            buffer = grad
        elif momentum:
            buffer = each(lambda x: momentum * x, buffer)
            buffer = each(operator.add, buffer, grad)
        p = each(lambda x, y: x - lr * y, p, buffer if momentum else grad)
    calls.flops += calls_of_step.flops
    return p
