"""Claims about forward FLOPs: formulas against numbers that count their operations, and against
torch's dispatch.
"""

import importlib
import inspect
import itertools
import math
import operator
import pkgutil
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import accounting
from accounting.attention import Attention, attention_backward_flops, attention_flops
from accounting.convolution import Convolution, convolution_flops
from accounting.flops import broadcast_matmul_flops, elementwise_flops, linear_flops, matmul_flops
from accounting.models import Transformer, step_flops
from prooflops import counted
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import forward_and_backward, linear_net, product_flops
from test_claims.oracles.kernels import OPERATIONS, Operands, product
from test_claims.oracles.scalars import Operations, integers
from test_claims.oracles.tensors import assert_same
from test_claims.strategies import (
    fewer,
    shapes,
    sizes,
    stretched,
)


@pytest.mark.claim("flops.matmul-2mnk", "flops.reason-per-output", "flops.add-mul-misconception")
@given(m=sizes(), k=sizes(), n=sizes())
def test_matmul_costs_a_multiplication_and_an_addition_per_term(m, k, n):
    operations = Operations()
    a = integers(m, k)
    b = integers(k, n)
    product = scalars.matmul(operations.array(a), operations.array(b))
    assert_same("the oracle's own product", scalars.tensor(product), a @ b)
    assert operations.multiplications == operations.additions == k * product.size == m * k * n
    formula = matmul_flops(m, k, n)
    assert formula == operations.flops, (
        f"{formula=}, but {operations.flops} were counted [{m=}, {k=}, {n=}]"
    )
    per_output = 2 * product.size
    least = Operations()
    assert k == 1 or operations.flops != per_output, (
        f"2 FLOPs per output would be {per_output} [{m=}, {k=}, {n=}]"
    )
    for row, column in itertools.product(least.array(a), least.array(b).T):
        scalars.inner_product(row, column)  # whose first addition is a copy
    assert least.flops == m * n * (2 * k - 1), (
        f"at least {least} are needed, not {m * n * (2 * k - 1)} FLOPs"
    )


@pytest.mark.claim("flops.matmul-2mnk", "matmul.einsum-efficient")
@fewer
@given(m=sizes(2, 16), k=sizes(2, 16), n=sizes(2, 16), huge=st.booleans())
def test_torch_dispatches_2mkn_flops_whatever_the_call(device, m, k, n, huge):
    m, k, n, device = (m**5, k**5, n**5, "meta") if huge else (m, k, n, device)
    a = integers(m, k, device=device)
    b = integers(k, n, device=device)
    c = integers(n, device=device)
    formula = matmul_flops(m, k, n)
    for name, call in {
        "a @ b": lambda: a @ b,
        "addmm": lambda: torch.addmm(c, a, b),
        "linear": lambda: torch.nn.functional.linear(a, b.T),
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "einsum": lambda: torch.einsum("mk,kn->mn", a, b),
    }.items():
        dispatched = product_flops(call)
        assert formula == dispatched, (
            f"matmul_flops={formula}, but {name} dispatched {dispatched} [{m=}, {k=}, {n=}]"
        )


@pytest.mark.claim("flops.batched")
@given(
    batch=shapes((0, 4), (1, 3)), m=sizes(most=3), k=sizes(most=3), n=sizes(most=3), data=st.data()
)
def test_a_batch_costs_the_product_of_each_of_its_elements(device, batch, m, k, n, data):
    """Each operand has any of the batch's dimensions, of its size or 1: the product is the same for
    every element.
    """
    a_shape, b_shape = ((*data.draw(stretched(batch)), *last) for last in ((m, k), (k, n)))
    operations = Operations()
    a = integers(*a_shape)
    b = integers(*b_shape)
    product = scalars.matmul(operations.array(a), operations.array(b))
    assert_same("the oracle's own product", scalars.tensor(product), a @ b)
    got = (
        broadcast_matmul_flops(a_shape, b_shape),
        product_flops(torch.matmul, a.to(device), b.to(device)),
    )
    assert set(got) == {operations.flops}, (
        f"{got=}, but both should be {operations.flops} [{a_shape} @ {b_shape}]"
    )


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "number"),
    [
        pytest.param((4, 8, 16, 32), (32, 2), 65_536, marks=pytest.mark.claim("flops.batched")),
        pytest.param(
            (4, 8, 16, 32), (4, 8, 32, 64), 2_097_152, marks=pytest.mark.claim("flops.batched")
        ),
        pytest.param(
            (1024, 512), (512, 256), 268_435_456, marks=pytest.mark.claim("flops.example-268M")
        ),
    ],
)
def test_the_worked_products_cost_what_torch_dispatches(device, a_shape, b_shape, number):
    a = torch.rand(a_shape, device=device)
    b = torch.rand(b_shape, device=device)
    dispatched = product_flops(lambda: a @ b)
    formula = broadcast_matmul_flops(a_shape, b_shape)
    assert formula == dispatched == number, (
        f"{formula=}, {dispatched=}, but both should be {number}"
    )


@pytest.mark.claim("flops.cubic")
@given(sides=st.tuples(*[sizes(2, 8)] * 3), factor=sizes(2, 4))
@example(sides=(3, 3, 3), factor=2)
def test_a_product_grows_with_the_cube_an_addition_with_the_square(device, sides, factor):
    def costs(m, k, n):
        a = torch.rand(m, k, device=device)
        b = torch.rand(k, n, device=device)
        with counted.flops() as elementwise:
            a + a
        return product_flops(lambda: a @ b), elementwise.elementwise

    product, added = costs(*sides)
    for grown in ({0}, {1}, {2}, {0, 1, 2}):
        longer = list(sides)
        for at in grown:
            longer[at] *= factor
        larger, larger_added = costs(*longer)
        times = larger / product
        assert times == factor ** len(grown), (
            f"{factor} times sides {grown} of {sides} cost {times} times as much"
        )
    assert larger_added == factor**2 * added, (
        f"adding costs {larger_added / added} times as much, not {factor}²"
    )


def stretched_shape(operand, dims):
    """The size of each dimension that the operand has, and 1 where it lacks one."""
    shape = []
    for size, operands in dims:
        shape.append(size if operand in operands else 1)
    return tuple(shape)


@pytest.mark.claim("flops.add", "flops.elementwise")
@given(dims=st.lists(st.tuples(sizes(most=5), st.sampled_from(["xy", "x", "y"])), max_size=3))
@example(dims=[(3, "xy"), (4, "xy")])
@example(dims=[(3, "x"), (4, "y")])  # (3, 1) and (1, 4)
def test_adding_multiplying_or_relu_costs_one_flop_per_element(device, dims):
    x_shape = stretched_shape("x", dims)
    y_shape = stretched_shape("y", dims)
    x = integers(*x_shape, device=device)
    y = integers(*y_shape, device=device)
    formula = elementwise_flops(x_shape, y_shape)
    said = f"{x_shape} and {y_shape}"
    for name, operation in {"add": operator.add, "multiply": operator.mul}.items():
        tally = Operations()
        values = operation(tally.array(x), tally.array(y))
        assert_same(f"the oracle's own {name} of {said}", scalars.tensor(values), operation(x, y))
        assert formula == tally.flops, (
            f"elementwise_flops={formula}, but should be {tally.flops} [{name}, {said}]"
        )
    tally = Operations()
    values = scalars.tensor(scalars.relu(tally.array(x)))
    assert_same(f"the oracle's own relu of {x_shape}", values, torch.relu(x))
    assert elementwise_flops(x_shape) == tally.flops, (
        f"relu takes {tally.flops} operations on {x_shape}"
    )


@pytest.mark.claim("flops.elementwise")
@given(shape=shapes((1, 3), (1, 5)))
def test_gelu_costs_nine_flops_per_element(shape):
    x = torch.randn(shape)
    tally = Operations()
    values = scalars.tensor(scalars.gelu(tally.array(x)))
    torch.testing.assert_close(values, torch.nn.functional.gelu(x, approximate="tanh"))
    formula = elementwise_flops(x.shape, flops_per_element=9)
    should = 9 * x.numel()
    assert tally.flops == formula == should, (
        f"GELU takes {tally.flops} operations, {formula=}, not {should}"
    )


@pytest.mark.claim("flops.example-square")
def test_squaring_a_1024x512_matrix_costs_524_288_flops(device):
    x = torch.rand(1024, 512, device=device)
    with counted.flops() as dispatched:
        x * x
    tally = Operations()
    row = tally.array(x[0])
    _ = row * row  # one multiplication at a time; the other rows are the same again
    got = elementwise_flops((1024, 512)), dispatched.elementwise, 1024 * tally.flops
    assert set(got) == {524_288}, (
        f"formula, dispatched and counted are {got}, but should all be 524,288"
    )
    unseen = product_flops(lambda: x * x)
    assert unseen == 0, (
        f"torch's FlopCounterMode reports {unseen} for x * x, but it has always left those out"
    )


@pytest.mark.claim("flops.example-ratio")
@given(m=sizes(), k=sizes(), n=sizes())
def test_a_product_is_dearer_than_a_square_by_twice_its_output_width(m, k, n):
    product = Operations()
    square = Operations()
    a = integers(m, k)
    scalars.matmul(product.array(a), product.array(integers(k, n)))
    _ = square.array(a) * square.array(a)
    assert product.flops == 2 * n * square.flops, (
        f"{product.flops / square.flops} times, not {2 * n} [{m=}, {k=}]"
    )
    assert matmul_flops(1024, 512, 256) == 512 * elementwise_flops((1024, 512)), (
        "at the worked sizes: not 512 times"
    )


@pytest.mark.claim("flops.linear-128-64")
@pytest.mark.parametrize(
    ("batch", "number", "bias_additions"), [(1, 16_384, 64), (32, 524_288, 2_048)]
)
def test_the_128_to_64_layer_costs_the_worked_number_without_its_bias(
    device, batch, number, bias_additions
):
    layer = torch.nn.Linear(128, 64, device=device)
    x = torch.rand(batch, 128, device=device)
    dispatched = product_flops(lambda: layer(x))
    formula = linear_flops(batch, 128, 64)
    assert formula == dispatched == number, (
        f"linear_flops={formula}, dispatched {dispatched}, not {number} [{batch=}]"
    )
    tally = Operations()
    scalars.linear(tally.array(x[:1]), tally.array(layer.weight), tally.array(layer.bias))
    got = (linear_flops(batch, 128, 64, bias=True), batch * tally.flops)
    should = number + bias_additions
    assert set(got) == {should}, (
        f"with bias formula and count are {got}, but should both be {should} [{batch=}]"
    )


@pytest.mark.claim("flops.linear-2DK")
@given(b=sizes(), d=sizes(), k=sizes(), bias=st.booleans())
def test_a_linear_layer_costs_2dk_per_example(device, b, d, k, bias):
    tally = Operations()
    x = integers(b, d)
    weight = integers(k, d)
    added = integers(k)
    y = scalars.linear(tally.array(x), tally.array(weight), tally.array(added) if bias else None)
    reference = torch.nn.functional.linear(x, weight, added if bias else None)
    assert_same("the oracle's own layer", scalars.tensor(y), reference)
    formula = linear_flops(b, d, k, bias)
    assert formula == tally.flops, (
        f"linear_flops={formula}, but should be {tally.flops} [{b=}, {d=}, {k=}, {bias=}]"
    )
    got = product_flops(torch.nn.Linear(d, k, bias, device), x.to(device)), linear_flops(b, d, k)
    assert set(got) == {2 * b * d * k}, (
        f"dispatched and formula are {got}, not {2 * b * d * k} [{b=}, {d=}, {k=}]"
    )


@pytest.mark.claim("flops.forward-2BN")
@given(
    leading=shapes((0, 3), (1, 5)),
    widths=st.lists(sizes(most=16), min_size=2, max_size=5),
    strided=st.booleans(),
)
@example(leading=(2, 3), widths=[4, 5], strided=False)
@example(leading=(2, 1, 3), widths=[4, 5, 6], strided=True)
def test_linear_layers_cost_2_per_token_and_parameter(device, leading, widths, strided):
    """Of tokens in any number of dimensions, one after the other in memory or apart."""
    net = linear_net(widths, device)
    tokens = math.prod(leading)
    parameters = sum(p.numel() for p in net.parameters())
    x = torch.rand(*leading, 2 * widths[0], device=device)[..., :: 2 if strided else 1]
    x = x[..., : widths[0]]
    dispatched = product_flops(net, x)
    formula = sum(linear_flops(tokens, m, n) for m, n in pairwise(widths))
    should = 2 * tokens * parameters
    assert dispatched == formula == should, (
        f"{dispatched=}, {formula=}, but should be {should} [{x.shape=}, {widths=}]"
    )
    layer = linear_net([widths[0]] * 2, device)
    shared = product_flops(lambda: layer(layer(x)))
    twice = 4 * tokens * layer[0].weight.numel()
    assert shared == twice, f"a layer used twice costs {shared}, not {twice} [{x.shape=}]"


@pytest.mark.claim("flops.forward-2BN")
def test_an_embedding_is_looked_up_at_no_flops(record_figure):
    net = torch.nn.Sequential(
        torch.nn.Embedding(50_000, 64), torch.nn.Linear(64, 1562, bias=False)
    ).to("meta")
    tokens = torch.zeros(7, dtype=torch.int64, device="meta")
    dispatched = product_flops(lambda: net(tokens))
    parameters = sum(p.numel() for p in net.parameters())
    assert dispatched == 2 * 7 * (parameters - 50_000 * 64), (
        f"the embedding cost {dispatched} FLOPs"
    )
    overstated = 2 * 7 * parameters / dispatched
    assert overstated > 30, (
        f"2BN overstates a net that is mostly embedding {overstated:.1f} times, not more than 30"
    )
    record_figure(f"2BN overstates a net with a 50,000-word embedding {overstated:.0f} times")


@pytest.mark.claim("flops.forward-2BN")
@given(
    b=sizes(most=3),
    size=sizes(4, 16),
    channels=sizes(),
    outputs=sizes(),
    width=sizes(most=3),
    stride=sizes(most=3),
)
@example(b=1, size=16, channels=1, outputs=1, width=1, stride=1)  # 512 FLOPs for one parameter
def test_a_convolution_uses_each_weight_once_per_position(
    device, b, size, channels, outputs, width, stride
):
    net = torch.nn.Conv2d(channels, outputs, width, stride, bias=False).to(device)
    dispatched = product_flops(lambda: net(torch.rand(b, channels, size, size, device=device)))
    positions = b * len(range(0, size - width + 1, stride)) ** 2
    formula = convolution_flops(
        Convolution(b, channels, outputs, (size, size), (width, width), stride=stride)
    )
    should = 2 * positions * net.weight.numel()
    assert formula == dispatched == should, (
        f"{formula=}, {dispatched=}, but should be {should}: 2 per weight and place"
    )


@pytest.mark.claim("flops.forward-2BN")
@given(batch=sizes(most=3), length=sizes(2, 16), heads=sizes(most=3), width=sizes(2, 8))
def test_attention_adds_products_that_have_no_parameters(device, batch, length, heads, width):
    q, k, v = (torch.rand(batch, heads, length, width, device=device) for _ in range(3))
    dispatched = product_flops(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    formula = attention_flops(Attention(batch, heads, length, width))
    assert formula == dispatched > 0, (
        f"attention_flops={formula}, but torch dispatched {dispatched} [{q.shape=}]"
    )


@pytest.mark.claim("flops.two-layer", "flops.two-layer-DxD")
@given(b=sizes(), d=sizes(), k=sizes())
def test_a_net_of_d_by_d_and_d_by_k_costs_2bdd_plus_2bdk(device, b, d, k):
    tally = Operations()
    x = integers(b, d)
    w1 = integers(d, d)
    w2 = integers(d, k)
    y = scalars.matmul(scalars.matmul(tally.array(x), tally.array(w1)), tally.array(w2))
    assert_same("the oracle's own net", scalars.tensor(y), x @ w1 @ w2)
    formula = matmul_flops(b, d, d) + matmul_flops(b, d, k)
    claimed = 2 * b * d * d + 2 * b * d * k
    assert formula == tally.flops == claimed, (
        f"{formula=}, counted {tally.flops}, not {claimed} [{b=}, {d=}, {k=}]"
    )
    x, w1, w2, square = (of.to(device) for of in (x, w1, w2, integers(d, d)))
    dispatched = product_flops(lambda: x @ w1 @ w2)
    of_squares = product_flops(lambda: x @ w1 @ square)
    assert dispatched == claimed, (
        f"with a D × K matrix: {dispatched}, but should be {claimed} [{b=}, {d=}, {k=}]"
    )
    assert of_squares == 4 * b * d * d, (
        f"with two D × D: {of_squares}, but should be {4 * b * d * d}"
    )
    n = w1.numel() + w2.numel()
    assert claimed == 2 * b * n, (
        f"of {n} parameters 2·B·N is {2 * b * n}, not {claimed} [{b=}, {d=}, {k=}]"
    )


@pytest.mark.claim("flops.transformer-generalises", "grad.seq-length")
@pytest.mark.parametrize(
    ("heads", "head_dim", "ratio", "batch", "length"),
    [
        (1, 4, 3, 1, 1),
        (3, 2, 8, 2, 5),
        (4, 8, 1, 1, 40),
        (2, 3, 5, 3, 31),
        (2, 2, 16, 2, 48),
        (4, 4, 16, 2, 192),
    ],
)
def test_a_block_costs_six_per_weight_and_twelve_per_pair(
    workloads, device, heads, head_dim, ratio, batch, length
):
    d = heads * 2 * head_dim
    hidden = ratio * head_dim
    model = Transformer(vocab_size=2, layers=1, dim=d, heads=heads, hidden=hidden)
    block = workloads.build(model, device=device).layers[0]
    x = torch.ones(batch, length, d, device=device, requires_grad=True)
    forward, backward = forward_and_backward(block, x)
    step = forward + backward
    weights = 4 * d * d + 2 * d * hidden
    assert backward == 2 * forward, (
        f"the backward pass costs {backward / forward} times the forward, not 2"
    )
    should = 6 * weights * batch * length + 12 * batch * length * length * d
    assert step == should, (
        f"a step costs {step} FLOPs, but should cost {should} [{model}, {batch=}, {length=}]"
    )
    shape = Attention(batch, heads, length, d // heads)
    formula = attention_flops(shape) + attention_backward_flops(shape)
    beyond = step - 6 * weights * batch * length
    assert formula == beyond, (
        f"attention costs {formula} by formula, but {beyond} FLOPs are beyond 6 a weight"
    )


@pytest.mark.claim("flops.transformer-generalises")
@pytest.mark.parametrize(("length", "figure"), [(2, 6.25), (8, 7), (48, 12), (128, 22)])
def test_a_block_costs_6_times_1_plus_s_over_6d_per_weight(workloads, device, length, figure):
    d = 8
    model = Transformer(vocab_size=2, layers=1, dim=d, heads=2, hidden=4 * d)
    block = workloads.build(model, device=device).layers[0]
    weights = sum(weight.numel() for weight in block.parameters() if weight.dim() == 2)
    assert weights == 12 * d**2, f"the block has {weights} weights, not 12·{d}²"
    forward, backward = forward_and_backward(
        block, torch.ones(1, length, d, device=device, requires_grad=True)
    )
    got = (forward, forward + backward)
    should = (figure / 3 * weights * length, figure * weights * length)
    assert got == pytest.approx(should, rel=1e-12), (
        f"forward and step cost {got} FLOPs, but should cost {should}"
    )


@pytest.mark.claim("flops.more-data")
@fewer
@given(
    batch=sizes(most=3),
    length=sizes(most=24),
    factor=sizes(2, 4),
    heads=sizes(most=3),
    width=sizes(most=3),
)
def test_data_cost_in_proportion_and_length_between_that_and_the_square(
    workloads, batch, length, factor, heads, width
):
    model = Transformer(
        vocab_size=9, layers=heads % 2 + 1, dim=2 * heads * width, heads=heads, hidden=7 * width
    )
    net = workloads.build(model, device="meta")

    def trained(rows, tokens):
        return sum(forward_and_backward(net, workloads.inputs(model, rows, tokens, device="meta")))

    once = trained(batch, length)
    more = trained(factor * batch, length)
    longer = trained(batch, factor * length)
    assert more == factor * once, (
        f"{factor} times the data cost {more / once} times the FLOPs [{batch=}, {length=}]"
    )
    assert factor < longer / once < factor**2, (
        f"sequences {factor} times as long cost {longer / once} times the FLOPs"
    )
    formula = step_flops(model, factor * batch, length).model
    assert formula == more, (
        f"step_flops={formula}, but {more} were dispatched [{model}, {factor * batch} x {length}]"
    )


@pytest.mark.claim("flops.dominates")
@pytest.mark.parametrize(
    ("name", "each"),
    [("layer norm", 7), ("softmax", 5), ("gelu", 5), ("add", 1), ("relu", 1)],
    ids=str,
)
def test_other_operations_take_more_of_the_time_than_of_the_flops(device, speed, name, each):
    n = 256 if device.type == "cpu" else 4096
    operands = Operands.of(n * n, device)
    of_flops = elementwise_flops((n, n), flops_per_element=each) / matmul_flops(n, n, n)
    what = f"{name} with {of_flops:.2%} of the FLOPs of the product behind it, in time"
    speed.assert_slower(
        lambda: OPERATIONS[name](operands), product(device, "fp32", n), what, at_least=2 * of_flops
    )


@pytest.mark.claim("flops.small-regime")
@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_tiny_product_takes_far_longer_than_its_flops_would(device, speed, n):
    large = 64 if device.type == "cpu" else 1024
    by_flops = matmul_flops(n, n, n) / matmul_flops(large, large, large)
    what = f"{n} x {n} against {large} x {large} ({1 / by_flops:,.0f} times the FLOPs), in time"
    speed.assert_slower(
        product(device, "fp32", n), product(device, "fp32", large), what, at_least=10 * by_flops
    )


@pytest.mark.claim("flops.crude")
@pytest.mark.parametrize("times", [1, 2])
def test_products_of_equal_flops_take_unequal_times(device, speed, times):
    on_cpu = device.type == "cpu"
    n = times * (64 if on_cpu else 512)
    thin = times * (1 if on_cpu else 2)
    wide = times * (512 if on_cpu else 8192)
    assert matmul_flops(wide, thin, wide) == matmul_flops(n, n, n)
    what = f"({wide}, {thin}) by ({thin}, {wide}) against {n} x {n}, the same FLOPs, in time"
    speed.assert_slower(
        product(device, "fp32", wide, thin, wide), product(device, "fp32", n), what, at_least=2
    )


@pytest.mark.claim("flops.crude")
@given(heads=sizes(most=3), length=sizes(2, 64), width=sizes(8, 32))
@example(heads=2, length=64, width=32)
def test_the_kernel_that_runs_decides_what_is_counted(heads, length, width):
    """The formula knows shapes alone; torch's counter has no formula for the CPU's fused kernel."""
    q, k, v = torch.rand(3, 1, heads, length, width)
    seen = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel), FlopCounterMode(display=False) as counter:
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
        seen[kernel.name] = counter.get_total_flops()
    formula = attention_flops(Attention(1, heads, length, width))
    should = {"MATH": formula, "FLASH_ATTENTION": 0}
    assert seen == should, f"torch counts {seen} FLOPs of one attention, but should {should}"


@pytest.mark.claim("flops.crude")
def test_strassens_algorithm_does_other_operations_than_are_counted():
    tally = Operations()
    x = integers(2, 2)
    y = integers(2, 2)
    (a, b), (c, d) = tally.array(x)
    (e, f), (g, h) = tally.array(y)
    p = [
        a * (f - h),
        (a + b) * h,
        (c + d) * e,
        d * (g - e),
        (a + d) * (e + h),
        (b - d) * (g + h),
        (a - c) * (e + f),
    ]
    upper = [p[4] + p[3] - p[1] + p[5], p[0] + p[1]]
    lower = [p[2] + p[3], p[0] + p[4] - p[2] - p[6]]
    product = [float(value) for value in (*upper, *lower)]
    assert product == (x @ y).flatten().tolist()
    assert (tally.multiplications, tally.additions) == (7, 18), f"Strassen's took {tally}"
    assert tally.flops != matmul_flops(2, 2, 2) == 16, (
        f"the count would follow the algorithm: {tally.flops}"
    )


MISNOMERS = re.compile(
    r"(?<![A-Z_])[GMTP]?FLOPS(?![A-Z_])|FLOPs/s"
    r"|(?i:flops_(?:per_s|rate)|flops?ps)\b|(?<![a-z])[gmtp]flops\b"
)


def stated(member):
    """Name and annotation of what a public function or class takes, has as a field, and gives."""
    own = [member]
    if inspect.isclass(member):
        own = [getattr(each, "fget", each) for each in vars(member).values()]
    for function in filter(inspect.isfunction, own):
        hints = dict(function.__annotations__)
        given = str(hints.pop("return", ""))
        rates = [name for name in hints if name.endswith("_per_s")]
        # An amount that is computed from a rate need not be exact.
        if rates and not function.__name__.endswith("_s"):
            given = ""
        yield from [*hints.items(), (function.__name__, given)]


def public_names():
    """Module, name and annotation of all that `accounting` states."""
    for info in pkgutil.walk_packages(accounting.__path__, "accounting."):
        module = importlib.import_module(info.name)
        for member in vars(module).values():
            if getattr(member, "__module__", None) == module.__name__:
                for name, annotation in stated(member):
                    yield module.__name__, name, str(annotation)


@pytest.mark.claim("flops.terms")
def test_no_file_writes_a_rate_as_an_amount():
    suite = Path(accounting.__path__[0]).parent
    wrong = []
    for room in ("accounting", "bench", "prooflops"):
        for file in (suite / room).rglob("*.py"):
            wrong += MISNOMERS.findall(file.read_text(encoding="utf-8"))
    assert not wrong, f"these words confuse an amount and a rate: {wrong}"


@pytest.mark.claim("flops.terms")
def test_the_accounting_names_amounts_and_rates_apart():
    """Amounts (`_flops`, `_bytes`) are int, rates and times (`_per_s`, `_s`) float."""
    other_type = {"per_s": "int", "s": "int", "flops": "float", "bytes": "float"}
    names = list(public_names())
    wrong = []
    for module, name, annotation in names:
        unit = re.search(r"(?:^|_)(per_s|flops|bytes|s)$", name)
        if unit and re.search(rf"\b{other_type[unit[1]]}\b", annotation):
            wrong.append(f"{module}: {name} is {annotation}")
    assert len(names) > 300, f"only {len(names)} names were looked at"
    assert not wrong, (
        f"a name should say what it holds, an amount as int, a rate as float, but: {wrong}"
    )
