"""Claims about the forward FLOPs of nets: per example, per token and per parameter."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.attention import Attention, attention_flops, attention_step
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
    agree("FLOPs", formula=formula, dispatched=dispatched, stated=number)
    step = linear_step(batch, 128, 64, bias=True).forward
    equal(step, number + bias_additions, "FLOPs with the bias")


@pytest.mark.claim("flops.linear-2DK")
@given(b=sizes(), d=sizes(), k=sizes(), bias=st.booleans())
def test_a_linear_layer_costs_2dk_per_example(device, b, d, k, bias):
    tally = Operations()
    x = integers(b, d)
    weight = integers(k, d)
    added = integers(k) if bias else None
    counted_added = tally.array(added) if bias else None
    y = scalars.linear(tally.array(x), tally.array(weight), counted_added)
    reference = torch.nn.functional.linear(x, weight, added)
    equal(scalars.tensor(y), reference, "the oracle's own layer")
    with_bias = 2 * b * d * k + bias * b * k
    formula = linear_flops(b, d, k, bias)
    agree("FLOPs", counted=tally.flops, formula=formula, should=with_bias)

    layer = torch.nn.Linear(d, k, bias, device)
    equal(product_flops(layer, x.to(device)), 2 * b * d * k, "FLOPs dispatched")


@pytest.mark.claim("flops.forward-2BN", "flops.linear-2DK")
@given(
    leading=shapes((0, 3), (0, 5)),
    widths=st.lists(sizes(most=10_000), min_size=2, max_size=5),
    strided=st.booleans(),
)
@example(leading=(2, 3), widths=[4, 5], strided=False)
@example(leading=(2, 1, 3), widths=[4, 5, 6], strided=True)
def test_linear_layers_cost_2_per_token_and_parameter(leading, widths, strided):
    """Of tokens in any number of dimensions, one after the other in memory or apart."""
    net = linear_net(widths, "meta")
    tokens = math.prod(leading)
    parameters = sum(p.numel() for p in net.parameters())
    width = widths[0]
    x = torch.rand(*leading, 2 * width, device="meta")
    if strided:
        x = x[..., ::2]
    x = x[..., :width]
    dispatched = product_flops(net, x)
    formula = sum(linear_flops(tokens, m, n) for m, n in pairwise(widths))
    should = 2 * tokens * parameters
    agree("FLOPs", dispatched=dispatched, formula=formula, should=should)

    layer = linear_net([width, width], "meta")
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


# Each dimension has a size, the width of its kernel, stride, padding and dilation.
dimensions = st.tuples(sizes(5, 99), *[sizes(most=3)] * 2, sizes(0, 2), sizes(most=2))


@pytest.mark.claim("flops.forward-2BN")
@given(
    b=sizes(most=3),
    sides=st.lists(dimensions, min_size=1, max_size=3),
    groups=sizes(most=3),
    channels=sizes(),
    outputs=sizes(),
)
# 512 FLOPs for one parameter.
@example(b=1, sides=[(16, 1, 1, 0, 1)] * 2, groups=1, channels=1, outputs=1)
@example(b=2, sides=[(9, 3, 2, 2, 1), (7, 2, 1, 0, 2)], groups=3, channels=2, outputs=4)
def test_a_convolution_uses_each_weight_once_per_position(b, sides, groups, channels, outputs):
    """A group of channels is seen by the outputs of its group alone."""
    layers = torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d
    size, width, *others = zip(*sides, strict=True)
    options = dict(zip(("stride", "padding", "dilation"), others, strict=True), groups=groups)
    inputs = groups * channels
    filters = groups * outputs
    layer = layers[len(sides) - 1](inputs, filters, width, bias=False, device="meta", **options)
    dispatched = product_flops(layer, torch.empty(b, inputs, *size, device="meta"))
    positions = b
    for length, of, stride, padding, dilation in sides:
        positions *= len(range(0, length + 2 * padding - dilation * (of - 1), stride))
    formula = convolution_flops(Convolution(b, inputs, filters, size, width, **options))
    should = 2 * positions * layer.weight.numel()
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
    equal(product_flops(lambda: x @ w1 @ w2), claimed, "FLOPs with a D × K matrix")
    equal(product_flops(lambda: x @ w1 @ square), 4 * b * d * d, "FLOPs with two D × D")


@pytest.mark.claim("flops.transformer-generalises", "grad.seq-length")
@pytest.mark.claim("mfu.hfu", "mfu.credits-avoided")
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
        # Its backward pass multiplies queries by keys once more.
        flash = attention_step(shape, "flash")
        got = flash.model, flash.recomputation
        equal(got, (of_pairs, of_pairs // 6), "FLOPs of attention, and repeated")
    equal(step, of_weights + of_pairs, "FLOPs of a step")

    # The head, of two words.
    whole = step + 6 * 2 * d * batch * length
    for convention, again in {"math": 0, "flash": of_pairs // 6}.items():
        formula = step_flops(model, batch, length, convention=convention)
        equal((formula.model, formula.recomputation), (whole, again), "step_flops")

    # Counted one by one: a query sees itself and the tokens before it.
    seen = sum(key <= query for query in range(length) for key in range(length))
    block = 2 * weights * batch * length + 4 * batch * seen * d
    forward = block + 2 * 2 * d * batch * length
    causal = step_flops(model, batch, length, pairs="causal", checkpoint_every=1)
    got = causal.forward, causal.backward, causal.recomputation
    equal(got, (forward, 2 * forward, block), "FLOPs of causal pairs")


@pytest.mark.claim("flops.more-data", "flops.forward-2BN")
@pytest.mark.parametrize(
    ("batch", "length", "factor", "heads", "width", "options"),
    [
        (1, 1, 2, 1, 1, {}),
        (3, 24, 4, 2, 3, {"kv_heads": 1, "gated": True, "tied_embedding": True}),
        (2, 7, 3, 3, 2, {"qkv_bias": True, "out_bias": True, "mlp_bias": True}),
        (2, 5, 3, 2, 2, {"experts": 4, "active_experts": 2}),
    ],
)
def test_data_cost_in_proportion_and_length_between_that_and_the_square(
    workloads, device, batch, length, factor, heads, width, options
):
    sides = {"dim": 2 * heads * width, "heads": heads, "hidden": 7 * width}
    model = Transformer(vocab_size=9, layers=heads % 2 + 1, **sides, **options)
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
