"""Claims about gradient accumulation: the gradient of a large batch, the memory of a small one."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, parameter_count
from prooflops.memory import MEASURED_DEVICES, measured_memory
from test_claims.oracles.messages import at_least, at_most, between, close, equal
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import in_fp64, with_dtype

CLASSES = 3
# The label with which cross_entropy leaves an example out of its mean, as padding.
IGNORED = -100
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def net_and_batch(device, batch, *, norm=nn.Identity, dtype=torch.float64, width=5, tokens=()):
    """A small classifier and a batch for it, of rows or of sequences of the shape `tokens`."""
    device = with_dtype(device, dtype)
    torch.manual_seed(0)
    first = nn.Linear(width, width)
    last = nn.Linear(width, CLASSES)
    net = nn.Sequential(first, norm(width), nn.Tanh(), last)
    rows = batch, *tokens
    x = torch.randn(*rows, width, dtype=dtype)
    labels = torch.randint(CLASSES, rows)
    return net.to(device, dtype), x.to(device), labels.to(device)


def accumulated(net, x, labels, parts, weights):
    """The sum of the gradients of each micro-batch's mean loss, weighted."""
    net.zero_grad()
    micro_batches = zip(x.split(parts), labels.split(parts), strict=True)
    for (part, label), weight in zip(micro_batches, weights, strict=True):
        logits = net(part).flatten(0, -2)
        loss = weight * cross_entropy(logits, label.flatten())
        loss.backward()
    gradients = [parameter.grad.flatten() for parameter in net.parameters()]
    return in_fp64(torch.cat(gradients))


def error_of(net, x, labels, parts, weights):
    """The distance between the accumulated gradient and the whole batch's gradient."""
    got = accumulated(net, x, labels, parts, weights)
    whole = accumulated(net, x, labels, [len(x)], [1])
    return relative_error(got, whole)


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("micro_batches", "each", "tokens", "width", "norm"),
    [
        (1, 3, (), 5, nn.Identity),
        (2, 1, (4,), 80, nn.LayerNorm),
        (6, 5, (2, 3), 5, nn.LayerNorm),
        (3, 700, (), 80, nn.Identity),
    ],
)
def test_equal_micro_batches_give_the_gradient_of_the_batch(
    device, micro_batches, each, tokens, width, norm, dtype
):
    batch = micro_batches * each
    shape = {"tokens": tokens, "width": width}
    net, x, labels = net_and_batch(device, batch, norm=norm, dtype=dtype, **shape)
    parts = [each] * micro_batches
    # Rounded once in each micro-batch, and where it is added.
    most = 4 * torch.finfo(dtype).eps * micro_batches**0.5

    shares = [1 / micro_batches] * micro_batches
    error = error_of(net, x, labels, parts, shares)
    at_most(error, most, "the gradient's relative error")

    times = error_of(net, x, labels, parts, [1] * micro_batches) + 1
    close(times, micro_batches, "how many times as large undivided losses' gradient is", rel=most)


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize(
    ("parts", "counted"),
    [
        ([8, 5], [8, 1]),
        ([4, 7, 2], [3, 3, 2]),
        ([1, 9, 8, 5], [1, 7, 4, 2]),
    ],
    ids=str,
)
def test_uneven_micro_batches_are_weighted_by_examples_in_their_means(device, parts, counted):
    net, x, labels = net_and_batch(device, sum(parts))
    for label, number in zip(labels.split(parts), counted, strict=True):
        label[number:] = IGNORED

    shares = [number / sum(counted) for number in counted]
    at_most(error_of(net, x, labels, parts, shares), 1e-12, "the error of weighted means")

    alike = [1 / len(parts)] * len(parts)
    at_least(error_of(net, x, labels, parts, alike), 1e-9, "the error of means weighted alike")


def half_dropout(_width):
    return nn.Dropout(0.5)


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize("layer", [nn.BatchNorm1d, half_dropout])
@pytest.mark.parametrize(("micro_batches", "each"), [(2, 4), (5, 8), (3, 64)])
def test_batch_norm_and_dropout_do_otherwise_in_a_micro_batch(device, layer, micro_batches, each):
    net, *batch = net_and_batch(device, micro_batches * each, norm=layer)
    parts = [each] * micro_batches
    weights = [1 / micro_batches] * micro_batches

    at_least(error_of(net, *batch, parts, weights), 0.01, "the error in training")

    net.eval()
    at_most(error_of(net, *batch, parts, weights), 1e-12, "the error in inference")


# Models, each with a batch: the second one's has more elements than kernels take for few.
WORKLOADS = ((DeepLinear(dim=16, layers=6), 256), (DeepLinear(dim=24, layers=9), 4096))


@pytest.fixture(scope="module", params=WORKLOADS, ids=str)
def measured_step(request, workloads, device):
    """Runs a step in micro-batches, with gradients freed before; returns its phases.

    Two for each micro-batch: its forward pass, and its backward pass. Parameters and data are
    not included; both are there whatever the number.
    """
    if device.type not in MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    model, batch = request.param
    net = workloads.build(model, device=device)
    x = workloads.inputs(model, batch, device=device)
    net(x[:2]).pow(2).mean().backward()

    @cache
    def phases(micro_batches):
        net.zero_grad()
        with measured_memory(device) as held:
            for number, part in enumerate(x.chunk(micro_batches)):
                loss = net(part).pow(2).mean() / micro_batches
                held.mark(f"forward {number}")
                loss.backward()
                del loss
                held.mark(f"backward {number}")
        return list(held.phases.values())

    return request.param, phases


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_a_step_keeps_the_activations_of_one_micro_batch(measured_step, micro_batches):
    (model, batch), phases_of = measured_step
    rows = batch // micro_batches
    activations = 4 * rows * model.dim * model.layers
    formula = activation_bytes(model, batch, micro_batches=micro_batches)
    equal(formula, activations, "activation_bytes")

    gradients = 4 * parameter_count(model)
    output = 4 * rows * model.outputs
    # The first micro-batch makes all gradients; the others add to them, one new one at a time.
    first_peak = deep_linear_peak_bytes(model, rows, model_state_bytes=0) - 4 * rows * model.inputs
    gradient_above = 4 * rows * model.dim
    of_a_layer = 4 * model.dim**2
    of_the_head = output + 4 * model.outputs * model.dim
    later_peak = gradients + activations + gradient_above + max(of_a_layer, of_the_head)
    phases = phases_of(micro_batches)
    kept = activations + output
    should = first_peak
    for forward, backward in zip(phases[::2], phases[1::2], strict=True):
        between(forward.live_bytes, kept + 1, kept + 16, "bytes kept")
        peak = max(forward.peak_bytes, backward.peak_bytes)
        between(peak, should, should + 16, "the peak in bytes")
        equal(backward.live_bytes, gradients, "bytes left")
        kept = activations + output + gradients
        should = later_peak

    highest = max(phase.peak_bytes for phase in phases)
    whole = max(phase.peak_bytes for phase in phases_of(1))
    at_most(highest / whole, 1 / micro_batches + 0.15, "the share of the whole batch's peak")


def summed(micro_batches, dtype):
    """The .grad of a weight of this dtype after micro-batches with these gradients."""
    weight = nn.Parameter(torch.zeros_like(micro_batches[0], dtype=dtype))
    for gradient in micro_batches:
        loss = weight * gradient.to(dtype)
        loss.sum().backward()
    return weight.grad.double()


@pytest.mark.claim("accum.fp32-needed", "dtype.bf16-suffices")
@pytest.mark.parametrize(("number", "exponent"), [(3, 7), (255, -20), (300, 7)])
def test_equal_gradients_stop_counting_after_256_in_bf16_not_in_fp32(device, number, exponent):
    one = 2.0**exponent
    gradient = torch.full((2**16 + 3,), one, device=device)
    for dtype, most in ((torch.bfloat16, 2**8), (torch.float32, 2**24)):
        total = summed([gradient] * number, dtype)
        counted = (total / one).unique().tolist()
        equal(counted, [min(number, most)], "sums of equal gradients", dtype=dtype)


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-8), (torch.float32, 2.0**-24)])
@pytest.mark.parametrize("elements", [7, 2**16 + 3])
def test_each_gradient_that_is_added_costs_a_rounding_at_most(device, dtype, unit, elements):
    torch.manual_seed(elements)
    gradients = 1000 * torch.randn(8, elements).to(device, dtype)
    before = torch.zeros_like(gradients[0], dtype=torch.float64)
    for number, gradient in enumerate(gradients, start=1):
        after = summed(gradients[:number], dtype)
        exact = before + gradient.double()
        off = (after - exact).abs()
        roundings = off / exact.abs().clamp(min=2.0**-126) / unit
        at_most(roundings.max().item(), 1, "roundings", number=number)
        before = after
