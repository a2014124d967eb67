"""Claims about recipes of mixed precision: wide copies, scaling and clipping."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from accounting.formats import format_of
from test_claims.oracles import low_precision, tensors
from test_claims.oracles.dispatched import Recorded
from test_claims.oracles.kernels import applied, scaled_fp8_product
from test_claims.oracles.messages import at_least, at_most, between, close, equal
from test_claims.oracles.mixed_precision import LOW, linear_layers, seeded
from test_claims.strategies import fewer, in_fp64, seeds, sizes

HIDDEN_WIDTHS = [(32,), *low_precision.NETS.values()]
UNIT_OF_BF16 = 2.0**-8


class UnscaledFp8Linear(low_precision.Fp8Linear):
    scaled = False


@pytest.mark.claim("amp.fp8-inference")
@pytest.mark.parametrize("hidden", HIDDEN_WIDTHS)
def test_a_trained_net_keeps_its_outputs_in_fp8_without_a_scale(device, record_figure, hidden):
    trained, _ = low_precision.trained_net(device, hidden=hidden)
    cast = low_precision.layers(hidden, UnscaledFp8Linear).to(device)
    cast.load_state_dict(trained.state_dict())
    x = torch.randn(1000, 16, device=device)
    with torch.no_grad():
        error = tensors.relative_error(cast(x), trained(x))
    record_figure(f"the outputs are off by {error:.1%} in fp8 e4m3, unscaled")
    # Each operand is off by up to 2^-4, by a third of that on average.
    between(error, 1e-6, 0.05, "the relative error of outputs in fp8")


@pytest.mark.claim("amp.fp8-training", "amp.fp8-inference")
@pytest.mark.parametrize("dtype", [low_precision.E4M3, low_precision.E5M2], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(16, 32, 16), (80, 112, 64)])
def test_the_fp8_kernel_multiplies_as_the_trained_layers_do(device, dtype, m, k, n):
    """They round operands to fp8 and multiply in fp32, with a gradient in e5m2 too."""
    x = seeded((m, k), 0, device)
    weight = seeded((n, k), 1, device)
    x_scale = 0.5
    narrow = (x / x_scale).to(dtype)
    narrow_weight = weight.to(low_precision.E4M3)
    got = applied(scaled_fp8_product, narrow, narrow_weight, x_scale, 1.0)
    if got is None:
        pytest.skip(f"this torch has no fp8 product on {device}")

    held = low_precision.through_fp8(x / x_scale, dtype, scaled=False) * x_scale
    held_weight = low_precision.through_fp8(weight, low_precision.E4M3, scaled=False)
    should = held @ held_weight.T
    # The kernel's result is rounded to bf16.
    at_most(tensors.relative_error(got.float(), should), UNIT_OF_BF16, "the product's error")


@pytest.mark.claim("amp.fp8-training", "amp.fp8-inference")
@pytest.mark.parametrize("hidden", [(32,), low_precision.NETS["deep"]])
@pytest.mark.parametrize(("factor", "trains"), [(1.0, True), (1e-6, False)])
def test_fp8_trains_where_operands_are_in_range_as_they_are_or_scaled(
    device, record_figure, factor, trains, hidden
):
    """Gradients as usual, and a millionth of that: below e5m2's least value, unless scaled."""
    train = partial(low_precision.trained_net, device, hidden=hidden)
    _, (_, *_, fp32) = train()
    _, (first, *_, scaled) = train(layer=low_precision.Fp8Linear, loss_factor=factor)
    _, (unscaled_first, *_, unscaled) = train(layer=UnscaledFp8Linear, loss_factor=factor)
    ends = f"{fp32:.3f} in fp32, {scaled:.3f} in scaled and {unscaled:.3f} in unscaled fp8"
    record_figure(f"{hidden}: {first:.3f} to {ends}")
    close(scaled, fp32, "the loss in scaled fp8", within=0.2 * (first - fp32))

    gained = (unscaled_first - unscaled) / (first - fp32)
    # Below the range the biases alone, which are in no product, still learn a little.
    least, most = (0.8, math.inf) if trains else (-math.inf, 0.1)
    between(gained, least, most, "what unscaled fp8 learns, as a share of fp32")


@pytest.mark.claim("amp.recipe-bf16-params", "amp.recipe-fp32-params")
@pytest.mark.parametrize(("dims", "batch"), [((9, 2), 3), ((16, 12, 5), 32)])
def test_beside_a_master_copy_all_but_the_state_is_in_bf16(device, dims, batch):
    net = linear_layers(device, dims).bfloat16()
    activations = []
    parameters = list(net.parameters())
    masters = [parameter.detach().float() for parameter in parameters]
    optimizer = torch.optim.AdamW(masters)

    def keep(tensor):
        activations.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = net(torch.ones(batch, dims[0], device=device, dtype=torch.bfloat16))
    y.sum().backward()
    for master, parameter in zip(masters, parameters, strict=True):
        master.grad = parameter.grad.float()
    optimizer.step()
    state = []
    for of_parameter in optimizer.state.values():
        state.extend(of_parameter.values())
    gradients = [parameter.grad for parameter in parameters]
    for name, held, should in (
        ("parameters", parameters, torch.bfloat16),
        ("activations", [y, *activations], torch.bfloat16),
        ("gradients", gradients, torch.bfloat16),
        ("state", state, torch.float32),
    ):
        equal({tensor.dtype for tensor in held}, {should}, f"dtypes of the {name}")


@pytest.mark.claim("amp.recipe-bf16-params", "optim.fp32-state-needed", "amp.recipe-not-switch")
@given(
    weight=st.floats(1, 2, exclude_max=True, width=16), update=st.integers(2**9, 2**17), seed=seeds
)
def test_an_update_below_half_a_spacing_needs_a_repair_in_bf16(device, weight, update, seed):
    bf16 = format_of("bf16")
    copies = 4096
    steps = 8
    # fp32 holds every difference exactly.
    start = bf16.rounded(weight)
    update = update * 2.0**-23
    exact = start - steps * update
    predicted = start
    master = torch.tensor(start, device=device)
    nearest = master.bfloat16()
    stochastic = nearest.expand(copies).clone()
    torch.manual_seed(seed)
    for _ in range(steps):
        predicted = bf16.rounded(predicted - update)
        master = master - update
        nearest = nearest.float() - update
        nearest = nearest.bfloat16()
        stochastic = stochastic.float() - update
        stochastic = low_precision.stochastically_rounded(stochastic)

    equal(nearest.item(), predicted, "the weight in bf16")

    # Below 1 the spacing is 2^-8, above it 2^-7: less than half the smaller one goes nowhere.
    stays = nearest.item() == start
    assert stays or update >= 2**-9, f"the update moved bf16 to {nearest.item()}"
    equal(master.item(), exact, "the master copy")

    # A rounding deviates by half a spacing of 2^-7 at most; seven deviations: once in 4e11.
    mean = in_fp64(stochastic).mean().item()
    noise = 2**-8 * math.sqrt(steps / copies)
    close(mean, exact, "the mean of stochastic rounding", within=7 * noise)


def gradients_of(net):
    """All gradients of a net, one behind the other."""
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def off_by_low_operands(net, x, dtype, scale, backward):
    """The error of gradients if each layer's input, or the gradient of its output, is cast.

    The cast is to `dtype` and back; a gradient is multiplied by `scale` before and divided after.
    """
    largest = torch.finfo(dtype).max

    def through(tensor):
        return (tensor * scale).clamp(-largest, largest).to(dtype).float() / scale

    exact = copy.deepcopy(net)
    cast = copy.deepcopy(net)
    for layer in cast:
        if backward:
            layer.register_full_backward_pre_hook(lambda _, above: (through(above[0]),))
        else:
            # Without a gradient of its own: the backward pass is left as it is.
            layer.register_forward_pre_hook(
                lambda _, given: given[0] + (through(given[0]) - given[0]).detach()
            )

    gradients = []
    for each in (cast, exact):
        loss = each(x.requires_grad_()).square().mean()
        (loss * 1e-6).backward()
        gradients.append(gradients_of(each))

    return tensors.relative_error(*gradients)


@pytest.mark.claim("amp.backward-caution")
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e5m2"])
@pytest.mark.parametrize(("dims", "batch"), [((16, 8, 4), 32), ((64, 96, 64, 32), 512)])
def test_gradients_are_lost_in_formats_that_do_for_activations(
    device, record_figure, name, dims, batch
):
    row = format_of(name)
    dtype = getattr(torch, format_of(name).torch_name)
    net = linear_layers(device, dims)
    x = seeded((batch, dims[0]), 1, device)
    forward = off_by_low_operands(net, x, dtype, scale=1.0, backward=False)
    as_they_are = off_by_low_operands(net, x, dtype, scale=1.0, backward=True)
    scaled = off_by_low_operands(net, x, dtype, scale=2.0**20, backward=True)
    record_figure(f"{name}: forward {forward:.1%}, backward {as_they_are:.1%}, scaled {scaled:.1%}")
    # Each layer rounds once, by half of eps at most.
    bound = row.eps / 2 * len(dims)
    between(forward, 1e-9, bound, "the gradients' error, with low activations")
    between(scaled, 1e-9, bound, "the error of scaled low gradients")

    # The mean over the batch and the factor leave gradients below the least numbers of five bits.
    should_be_lost = row.exponent_bits < 8
    lost = as_they_are > 0.99
    if row.bits == 16:
        lost = as_they_are > 10 * bound
    equal(lost, should_be_lost, "whether gradients as they are get lost")


def norm_of_gradients(net):
    return in_fp64(gradients_of(net)).norm().item()


@pytest.mark.claim("amp.ex-clip-bf16")
@pytest.mark.parametrize(
    ("dims", "seed"),
    [
        ((16, 8, 4), 0),
        ((64,) * 9, 1),
        ((1024, 1100, 3), 2),
    ],
    ids=str,
)
def test_a_bf16_nets_gradients_have_the_norm_of_fp32_and_are_clipped(device, dims, seed):
    """Nets of few gradients, of many, and of more elements than kernels add up in one piece."""
    low = linear_layers(device, dims, seed).bfloat16()
    x = seeded((64, dims[0]), seed, device).bfloat16()
    in_fp32 = copy.deepcopy(low).float()
    low(x).square().mean().backward()
    in_fp32(x.float()).square().mean().backward()
    norm = norm_of_gradients(low)
    should = norm_of_gradients(in_fp32)
    # Activations and gradients of each layer are rounded, and most of the errors cancel.
    close(norm, should, "the norm in bf16", rel=len(dims) * UNIT_OF_BF16)

    returned = nn.utils.clip_grad_norm_(low.parameters(), 0.5 * norm)
    # Each tensor's norm and the whole are rounded to bf16 once.
    close(returned.item(), norm, "torch's norm", rel=4 * UNIT_OF_BF16)

    clipped = norm_of_gradients(low)
    close(clipped, 0.5 * norm, "the norm clipped to half", rel=6 * UNIT_OF_BF16)


@pytest.mark.claim("amp.ex-clip-bf16")
@pytest.mark.parametrize("low", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_bf16_needs_clipping_where_fp32_does_at_a_batch_of_outliers(device, record_figure, low):
    """Targets are a hundred times as large in step 20 of 30."""
    x = seeded((64, 16), 0, device)
    y = x.sum(dim=1, keepdim=True).sin() + x[:, :1]

    def losses(most):
        """The losses of a run whose gradients have at most this norm."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ends = []
        for number in range(30):
            target = 100 * y if number == 20 else y
            optimizer.zero_grad()
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = functional.mse_loss(net(x), target)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), most)
            optimizer.step()
            ends.append(loss.item())
        return ends

    free = losses(math.inf)
    clipped = losses(1.0)
    record_figure(f"loss {free[19]:.2f}, then {free[21]:.0f} unclipped, {clipped[21]:.2f} clipped")
    at_least(free[21], 100 * free[0], "the loss unclipped")
    at_most(clipped[21], clipped[0] / 2, "the loss clipped")


@pytest.mark.claim("amp.recipe-not-switch")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("wide", [False, True])
@fewer
@given(exponent=st.integers(-4, 12), rows=sizes(most=5))
@example(exponent=-2, rows=70)
@example(exponent=6, rows=70)
def test_large_scores_need_another_dtype_or_attention_in_fp32(device, low, wide, exponent, rows):
    """The largest scores are 8 · 4^exponent: from 2^17 on infinite in fp16, their softmax NaN."""
    net = low_precision.Attention(wide).to(device)
    nn.init.eye_(net.project.weight)
    signs = 2.0 * torch.randint(0, 2, (rows, 8), device=device) - 1
    x = 2.0**exponent * signs
    with Recorded() as products, torch.no_grad(), torch.autocast(device.type, LOW[low]):
        got = net(x)
    of_attention = torch.float32 if wide else LOW[low]
    dtypes = [LOW[low]] * 2 + [of_attention] * 4
    equal(products.product_dtypes, dtypes, "dtypes of operands")

    double = in_fp64(x)
    scores = double @ double.mT
    exact = scores.softmax(-1) @ double
    if wide:
        within = 1e-5 * 2.0**exponent
        close(in_fp64(got).cpu().numpy(), exact.cpu().numpy(), "attention", rel=1e-5, within=within)

    fits = bool(got.isfinite().all())
    largest_score = 8 * 4.0**exponent
    should = low == "bf16" or wide or largest_score < 2**16
    equal(fits, should, "whether attention is finite")
