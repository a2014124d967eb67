"""Claims about the savings of mixed precision in bytes and time."""

from functools import partial
from math import prod

import pytest
import torch
from torch.nn import functional

from accounting.activations import activation_bytes
from accounting.memory import element_bytes
from accounting.models import DeepLinear
from prooflops.memory import measured_memory
from test_claims.oracles import tensors
from test_claims.oracles.dispatched import Recorded
from test_claims.oracles.messages import agree, equal
from test_claims.oracles.mixed_precision import linear_layers, step


@pytest.mark.claim("amp.activation-memory", "act.BDL")
@pytest.mark.parametrize(
    ("rows", "dim", "layers"),
    [
        ((2,), 16, 1),
        ((16,), 2, 4),
        ((4, 12), 32, 2),
        ((48,), 32, 4),
        ((2, 2, 4), 16, 3),
        ((33,), 16, 2),
        ((3, 700), 32, 2),
    ],
)
def test_autocast_halves_activations_and_keeps_copies_of_weights(
    workloads, metered_device, rows, dim, layers
):
    """The batch is of rows, or of sequences of them."""
    model = DeepLinear(dim, layers, outputs=dim)
    net = workloads.build(model, device=metered_device)
    batch = prod(rows)
    x = workloads.inputs(model, batch, device=metered_device).view(*rows, dim)

    def forward(enabled):
        with torch.autocast(metered_device.type, torch.bfloat16, enabled=enabled):
            return net(x)

    fp32 = tensors.graph_bytes(metered_device, partial(forward, False))
    low = tensors.graph_bytes(metered_device, partial(forward, True))
    # The first weight's gradient needs no other weight.
    activations = batch * dim * layers
    weights = dim * dim * layers
    input_cast = batch * dim
    equal(fp32, element_bytes(activations, "fp32"), "bytes kept in fp32")

    should = element_bytes(activations + weights + input_cast, "bf16")
    formula = activation_bytes(model, batch, autocast="bf16")
    agree("bytes kept under autocast", got=low, formula=formula, by_hand=should)

    # B·L that are kept halve, against copies of D·L weights and of the input's B.
    gains = batch * (layers - 1) > dim * layers
    equal(low < fp32, gains, "whether autocast keeps less")


@pytest.mark.claim("amp.ex-bf16-linear-32")
@pytest.mark.parametrize("dim", [2, 33, 300])
def test_a_linear_layer_on_a_batch_of_32_takes_half_the_bytes_in_bf16(metered_device, dim):
    device = metered_device
    taken = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        ones = partial(torch.ones, device=device, dtype=dtype)
        warm = functional.linear(ones(32, dim), ones(dim, dim), ones(dim))
        with measured_memory(device) as held:
            layer = torch.nn.Linear(dim, dim, device=device, dtype=dtype)
            x = ones(32, dim)
            y = layer(x)
        taken[name] = held.live_bytes
        formula = element_bytes(dim * (dim + 1 + 2 * 32), name)
        equal(taken[name], formula, "bytes", name=name)
        del warm, layer, x, y

    equal(taken["fp32"], 2 * taken["bf16"], "bytes in fp32")


def layer_in_fp32_and_bf16(device, width):
    """The product of a linear layer on a batch of 32, in fp32 and in bf16."""
    x = torch.randn(32, width, device=device)
    weight = torch.randn(width, width, device=device)
    low_x = x.bfloat16()
    low_weight = weight.bfloat16()
    return lambda: x @ weight, lambda: low_x @ low_weight


@pytest.mark.claim("amp.ex-bf16-linear-32")
def test_a_large_layer_is_faster_in_bf16_with_a_unit_for_it(
    device, speed, record_figure, bound_flop_per_s
):
    rates = bound_flop_per_s("bf16"), bound_flop_per_s("fp32")
    if None in rates or rates[0] <= rates[1]:
        # Products of 16 bits are slow here: small ones tell as much.
        fp32, bf16 = layer_in_fp32_and_bf16(device, 256)
        ratio = speed.ratio(fp32, bf16, pairs=15)
        record_figure(f"no bf16 unit is known here: {ratio}")
        return

    dim = 1024 if device.type == "cpu" else 8192
    fp32, bf16 = layer_in_fp32_and_bf16(device, dim)
    speed.assert_slower(fp32, bf16, f"batch 32, width {dim}, fp32 against bf16")


@pytest.mark.claim("amp.ex-bf16-linear-32", "dtype.lower-is-faster")
@pytest.mark.parametrize("width", [4, 8, 32])
def test_a_small_layer_is_not_twice_as_fast_in_bf16(device, speed, width):
    fp32, bf16 = layer_in_fp32_and_bf16(device, width)
    speed.assert_slower(bf16, fp32, f"batch 32, width {width}, bf16 against fp32", at_least=0.6)


def steps_of_two_layers(device, dim, batch):
    """Training steps of a net of two linear layers, in fp32 and in mixed precision."""
    net = linear_layers(device, (dim, dim, dim))
    x = torch.randn(batch, dim, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    return partial(step, net, x, optimizer), partial(step, net, x, optimizer, torch.bfloat16)


def casts_of(function):
    with Recorded() as dispatched:
        function()
    return dispatched.casts


@pytest.mark.claim("amp.half-epoch-time")
@pytest.mark.parametrize(("width", "batch"), [(8, 8), (32, 16)])
def test_for_small_layers_mixed_precision_is_slower_than_fp32(device, speed, width, batch):
    fp32, mixed = steps_of_two_layers(device, width, batch)
    # Autocast casts x, two weights and biases, the output for the loss, and gradients back.
    casts = casts_of(fp32), casts_of(mixed)
    assert casts[0] == 0 < casts[1], f"fp32 and mixed precision cast {casts} tensors a step"

    what = f"two layers of width {width}, mixed precision against fp32"
    speed.assert_slower(mixed, fp32, what, at_least=0.9)


@pytest.mark.claim("amp.half-epoch-time")
def test_for_large_layers_mixed_precision_gains_at_most_what_products_do(
    device, speed, record_figure
):
    dim, batch = (192, 256) if device.type == "cpu" else (4096, 4096)
    fp32, mixed = steps_of_two_layers(device, dim, batch)
    x = torch.randn(batch, dim, device=device)
    weight = torch.randn(dim, dim, device=device)
    low_x = x.bfloat16()
    low_weight = weight.bfloat16()
    # Each step takes milliseconds.
    few = {"pairs": 15}
    product = speed.ratio(
        lambda: x @ weight, lambda: low_x @ low_weight, decided=lambda _, high: high < 1, **few
    )
    record_figure(f"a product alone, fp32 against bf16: {product}")
    what = f"two layers of width {dim}"
    if product.high < 1:
        speed.assert_slower(mixed, fp32, f"{what}, mixed precision against fp32", **few)
        return

    # Products of other shapes go back, which may gain more.
    bounds = {"at_least": float(product.low > 2), "at_most": 2 * product.value}
    speed.assert_slower(fp32, mixed, f"{what}, fp32 against mixed precision", **bounds, **few)
