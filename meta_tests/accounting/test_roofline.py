"""Work, roofs and utilisation against numbers that count their operations and arrays that count their bytes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import roofline
from accounting.attention import Attention
from accounting.roofline import Work, hfu, mfu
from test_claims.oracles import scalars
from test_claims.oracles.scalars import Number, Operations

few = st.integers(1, 4)


def random(tally: Operations, *shape: int) -> np.ndarray:
    return tally.array(torch.rand(shape))


def softmax_of(row: list[Number]) -> list[Number]:
    tally = row[0].operations
    largest = Number(-math.inf, tally)
    for x in row:
        largest = x.through(lambda value, least=float(largest): max(value, least))
    exponentials = [(x - largest).through(math.exp) for x in row]
    total = scalars.total(np.array(exponentials), 0).item()
    return [each.through(lambda value: value / float(total)) for each in exponentials]


@given(batch=few, m=few, k=few, n=few)
def test_matmul_work_is_what_a_naive_product_does_and_touches(batch, m, k, n):
    tally = Operations()
    operands = random(tally, batch, m, k), random(tally, batch, k, n)
    product = scalars.matmul(*operands)
    counted = Work(tally.flops, 2 * sum(array.size for array in (*operands, product)))
    formula = roofline.matmul_work(m, k, n, "bf16", batch)
    assert formula == counted, f"{formula=}, but should be {counted} [{batch=}, {m=}, {k=}, {n=}]"


def gelu(x):
    return (x * 0.5) * ((x * 2**-0.5).through(math.erf) + 1)


def gelu_tanh(x):
    return x * 0.5 * (((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)).through(math.tanh) + 1)


def silu(x):
    return ((x * -1).through(math.exp) + 1).through(lambda value: float(x) / value)


FUNCTIONS = {
    "silu": silu,
    "relu": lambda x: x.through(lambda value: max(value, 0.0)),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
FUNCTIONS |= {"add": lambda x: x + x, "multiply": lambda x: x * x}


def gelu_gradient(x, dy):
    share = ((x * 2**-0.5).through(math.erf) + 1) * 0.5
    return (x * ((x * x * -0.5).through(math.exp) * (1 / math.sqrt(2 * math.pi))) + share) * dy


def gelu_tanh_gradient(x, dy):
    factor, square, one = math.sqrt(2 / math.pi), x * x, Number(1.0, x.operations)
    t = ((square * x * 0.044715 + x) * factor).through(math.tanh)
    slope = (one - t * t) * ((square * (3 * 0.044715) + 1) * factor)
    return (x * 0.5 * slope + (t + 1) * 0.5) * dy


def silu_gradient(x, dy):
    one = Number(1.0, x.operations)
    share = ((x * -1).through(math.exp) + 1).through(lambda value: 1 / value)
    return ((one - share) * x + 1) * share * dy


GRADIENTS = {"gelu": (gelu, gelu_gradient), "gelu_tanh": (gelu_tanh, gelu_tanh_gradient), "silu": (silu, silu_gradient)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_work_is_what_the_formula_of_the_function_does(name):
    tally = Operations()
    for x in random(tally, 6):
        FUNCTIONS[name](x)
    assert roofline.elementwise_work((2, 3), name, "fp32") == Work(tally.flops, 2 * 6 * 4)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_a_function_costs_what_its_formula_does(name):
    (function, gradient), tally, other = GRADIENTS[name], Operations(), Operations()
    got = float(gradient(Number(0.7, tally), Number(2.0, tally)))
    above, below = (float(function(Number(0.7 + step, other))) for step in (1e-6, -1e-6))
    assert got == pytest.approx(2 * (above - below) / 2e-6, rel=1e-6), f"{name} has another gradient"
    assert tally.flops == roofline.GRADIENT_FLOPS_PER_ELEMENT[name], name


@given(rows=few, length=st.integers(1, 40))
def test_softmax_and_layer_norm_cost_what_they_do_to_each_row(rows, length):
    tally = Operations()
    for row in random(tally, rows, length):
        softmax_of(list(row))
    assert roofline.softmax_work((rows, length), "bf16") == Work(tally.flops, 2 * 2 * rows * length)

    tally = Operations()
    weight, bias = random(tally, 2, length)
    for row in random(tally, rows, length):
        mean = scalars.total(row, 0).item() * (1 / length)
        centred = [x - mean for x in row]
        squares = scalars.inner_product(centred, centred, tally.zero())
        scale = (squares * (1 / length) + 1e-5).through(lambda value: value**-0.5)
        _ = [x * scale * w + b for x, w, b in zip(centred, weight, bias, strict=True)]
    formula = roofline.layer_norm_work((rows, length), "fp32")
    assert formula.bytes == 4 * (2 * rows * length + 2 * length)
    assert tally.flops - formula.flops == 4 * rows, "its two divisions, ε and root in each row"


@pytest.mark.parametrize("fused", [True, False])
@given(batch=st.integers(1, 2), groups=st.integers(1, 2), kv_heads=st.integers(1, 2), queries=few, keys=few, size=few)
def test_attention_work_is_what_attention_does(fused, batch, groups, kv_heads, queries, keys, size):
    tally, heads = Operations(), groups * kv_heads
    q, k, v = random(tally, batch, heads, queries, size), *random(tally, 2, batch, kv_heads, keys, size)
    scores = scalars.matmul(q, k.repeat(groups, 1).swapaxes(-1, -2))
    weights = np.array([softmax_of(list(row)) for row in scores.reshape(-1, keys)]).reshape(scores.shape)
    output = scalars.matmul(weights, v.repeat(groups, 1))
    moved = sum(array.size for array in (q, k, v, output)) + (0 if fused else 2 * (scores.size + weights.size))
    attention = Attention(batch, heads, queries, size, key_length=keys, kv_heads=kv_heads)
    formula, counted = roofline.attention_work(attention, fused=fused), Work(tally.flops, 2 * moved)
    assert formula == counted, f"{formula=}, but should be {counted}"


@given(work=st.integers(1, 10**15), extra=st.integers(0, 10**15), seconds=st.floats(1e-6, 1e6), devices=few)
def test_utilisation_of_a_device_that_is_busy_all_the_time_is_one(work, extra, seconds, devices):
    peak = (work + extra) / seconds / devices
    assert hfu(work, extra, seconds, peak, devices) == pytest.approx(1)
    assert mfu(work, seconds, peak, devices) == pytest.approx(work / (work + extra))
    assert mfu(work, seconds, None) is None
    assert mfu(2 * work, seconds, work / seconds) == pytest.approx(2), "a share above 1 must not be clipped"
