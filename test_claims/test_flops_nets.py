"""Claims about the forward FLOPs of nets: per example, per token and per parameter."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.attention import Attention, attention_backward_flops, attention_flops
from accounting.convolution import Convolution, convolution_flops
from accounting.flops import linear_flops, linear_step, matmul_flops
from accounting.models import DeepLinear, Transformer, forward_flops, step_flops
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import forward_and_backward, linear_net, product_flops
from test_claims.oracles.messages import agree, at_least, equal
from test_claims.oracles.scalars import Operations, integers
from test_claims.strategies import shapes, sizes


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
    step = linear_step(batch, 128, 64).forward
    agree("FLOPs", formula=formula, step=step, dispatched=dispatched, stated=number)
    tally = Operations()
    one = tally.array(x[:1])
    scalars.linear(one, tally.array(layer.weight), tally.array(layer.bias))
    with_bias = linear_flops(batch, 128, 64, bias=True)
    agree(
        "FLOPs with the bias",
        formula=with_bias,
        step=linear_step(batch, 128, 64, bias=True).forward,
        counted=batch * tally.flops,
        stated=number + bias_additions,
    )


@pytest.mark.claim("flops.linear-2DK")
@given(b=sizes(), d=sizes(), k=sizes(), bias=st.booleans())
def test_a_linear_layer_costs_2dk_per_example(device, b, d, k, bias):
    tally = Operations()
    x = integers(b, d)
    weight = integers(k, d)
    added = None
    counted_added = None
    if bias:
        added = integers(k)
        counted_added = tally.array(added)
    y = scalars.linear(tally.array(x), tally.array(weight), counted_added)
    reference = torch.nn.functional.linear(x, weight, added)
    equal(scalars.tensor(y), reference, "the oracle's own layer")
    with_bias = 2 * b * d * k + bias * b * k
    formula = linear_flops(b, d, k, bias)
    agree("FLOPs", counted=tally.flops, formula=formula, should=with_bias)

    layer = torch.nn.Linear(d, k, bias, device)
    dispatched = product_flops(layer, x.to(device))
    should = 2 * b * d * k
    agree("FLOPs", dispatched=dispatched, formula=linear_flops(b, d, k), should=should)


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
    width = widths[0]
    x = torch.rand(*leading, 2 * width, device=device)
    if strided:
        x = x[..., ::2]
    x = x[..., :width]
    dispatched = product_flops(net, x)
    formula = sum(linear_flops(tokens, m, n) for m, n in pairwise(widths))
    should = 2 * tokens * parameters
    agree("FLOPs", dispatched=dispatched, formula=formula, should=should)

    layer = linear_net([width, width], device)
    shared = product_flops(lambda: layer(layer(x)))
    equal(shared, 4 * tokens * width * width, "FLOPs of a layer used twice")


@pytest.mark.claim("flops.forward-2BN")
def test_an_embedding_is_looked_up_at_no_flops(record_figure):
    embedding = torch.nn.Embedding(50_000, 64)
    head = torch.nn.Linear(64, 1562, bias=False)
    net = torch.nn.Sequential(embedding, head).to("meta")
    tokens = torch.zeros(7, dtype=torch.int64, device="meta")
    dispatched = product_flops(net, tokens)
    equal(dispatched, 2 * 7 * head.weight.numel(), "FLOPs of embedding and head")

    parameters = sum(parameter.numel() for parameter in net.parameters())
    overstated = 2 * 7 * parameters / dispatched
    at_least(overstated, 30, "how many times 2BN overstates")
    record_figure(f"2BN overstates a net with a 50,000-word embedding {overstated:.0f} times")


@pytest.mark.claim("flops.forward-2BN")
@given(
    b=sizes(most=3),
    size=sizes(4, 16),
    groups=sizes(most=3),
    channels=sizes(),
    outputs=sizes(),
    width=sizes(most=3),
    stride=sizes(most=3),
    padding=sizes(0, 2),
)
# 512 FLOPs for one parameter.
@example(b=1, size=16, groups=1, channels=1, outputs=1, width=1, stride=1, padding=0)
@example(b=2, size=9, groups=3, channels=2, outputs=4, width=3, stride=2, padding=2)
def test_a_convolution_uses_each_weight_once_per_position(
    device, b, size, groups, channels, outputs, width, stride, padding
):
    """A group of channels is seen by the outputs of its group alone."""
    options = {"stride": stride, "padding": padding, "groups": groups}
    inputs = groups * channels
    filters = groups * outputs
    net = torch.nn.Conv2d(inputs, filters, width, bias=False, **options).to(device)
    x = torch.rand(b, inputs, size, size, device=device)
    dispatched = product_flops(net, x)
    starts = range(0, size + 2 * padding - width + 1, stride)
    positions = b * len(starts) ** 2
    shape = Convolution(b, inputs, filters, (size, size), (width, width), **options)
    formula = convolution_flops(shape)
    should = 2 * positions * net.weight.numel()
    agree("FLOPs", formula=formula, dispatched=dispatched, should=should)


@pytest.mark.claim("flops.forward-2BN")
@given(
    batch=sizes(most=3),
    queries=sizes(1, 16),
    keys=sizes(1, 16),
    heads=sizes(most=3),
    width=sizes(2, 8),
)
@example(batch=2, queries=3, keys=80, heads=2, width=64)
def test_attention_adds_products_that_have_no_parameters(
    device, batch, queries, keys, heads, width
):
    q = torch.rand(batch, heads, queries, width, device=device)
    k, v = torch.rand(2, batch, heads, keys, width, device=device)
    dispatched = product_flops(torch.nn.functional.scaled_dot_product_attention, q, k, v)
    formula = attention_flops(Attention(batch, heads, queries, width, key_length=keys))
    equal(formula, dispatched, "attention_flops")
    at_least(dispatched, 1, "FLOPs dispatched")


@pytest.mark.claim("flops.two-layer", "flops.two-layer-DxD")
@given(b=sizes(), d=sizes(), k=sizes())
def test_a_net_of_d_by_d_and_d_by_k_costs_2bdd_plus_2bdk(device, b, d, k):
    tally = Operations()
    x = integers(b, d)
    w1 = integers(d, d)
    w2 = integers(d, k)
    square = integers(d, d)
    hidden = scalars.matmul(tally.array(x), tally.array(w1))
    y = scalars.matmul(hidden, tally.array(w2))
    equal(scalars.tensor(y), x @ w1 @ w2, "the oracle's own net")
    formula = matmul_flops(b, d, d) + matmul_flops(b, d, k)
    of_net = forward_flops(DeepLinear(d, layers=1, outputs=k), b)
    claimed = 2 * b * d * d + 2 * b * d * k
    agree("FLOPs", formula=formula, of_net=of_net, counted=tally.flops, claimed=claimed)

    equal(claimed, 2 * b * (w1.numel() + w2.numel()), "2·B·N")

    x, w1, w2, square = (each.to(device) for each in (x, w1, w2, square))
    for multiply in (torch.matmul, lambda x, w: torch.nn.functional.linear(x, w.T)):
        hidden = multiply(x, w1)
        first = product_flops(multiply, x, w1)
        dispatched = first + product_flops(multiply, hidden, w2)
        equal(dispatched, claimed, "FLOPs with a D × K matrix")

        of_squares = first + product_flops(multiply, hidden, square)
        equal(of_squares, 4 * b * d * d, "FLOPs with two D × D")


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
    equal(backward, 2 * forward, "FLOPs backward")

    weights = 4 * d * d + 2 * d * hidden
    of_weights = 6 * weights * batch * length
    for tokens in (2**20 + length, length):
        of_pairs = 12 * batch * tokens * tokens * d
        shape = Attention(batch, heads, tokens, d // heads)
        formula = attention_flops(shape) + attention_backward_flops(shape)
        equal(formula, of_pairs, "FLOPs of attention")
    equal(step, of_weights + of_pairs, "FLOPs of a step")

    # The head, of two words.
    whole = step + 6 * 2 * d * batch * length
    equal(step_flops(model, batch, length).model, whole, "step_flops")

    # Counted one by one: a query sees itself and the tokens before it.
    seen = sum(key <= query for query in range(length) for key in range(length))
    block = 2 * weights * batch * length + 4 * batch * seen * d
    forward = block + 2 * 2 * d * batch * length
    causal = step_flops(model, batch, length, pairs="causal", checkpoint_every=1)
    got = causal.forward, causal.backward, causal.recomputation
    equal(got, (forward, 2 * forward, block), "FLOPs of causal pairs")


@pytest.mark.claim("flops.more-data")
@pytest.mark.parametrize(
    ("batch", "length", "factor", "heads", "width"),
    [(1, 1, 2, 1, 1), (3, 24, 4, 2, 3), (2, 7, 3, 3, 2)],
)
def test_data_cost_in_proportion_and_length_between_that_and_the_square(
    workloads, device, batch, length, factor, heads, width
):
    model = Transformer(
        vocab_size=9, layers=heads % 2 + 1, dim=2 * heads * width, heads=heads, hidden=7 * width
    )
    net = workloads.build(model, device=device)

    def trained(rows, tokens):
        return sum(forward_and_backward(net, workloads.inputs(model, rows, tokens, device=device)))

    once = trained(batch, length)
    more = trained(factor * batch, length)
    longer = trained(batch, factor * length)
    equal(more, factor * once, "FLOPs of more data")
    assert factor < longer / once < factor**2, (
        f"longer sequences cost {longer / once} times as much"
    )
    formula = step_flops(model, factor * batch, length).model
    equal(formula, more, "step_flops")
