"""Claims about gradient accumulation: the gradient of a large batch, the memory of a small one."""

from functools import cache, partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, Transformer, parameter_count
from prooflops.memory import MEASURED_DEVICES, measured_memory
from test_claims.oracles.messages import at_least, at_most, between, close, equal
from test_claims.oracles.nets import CLASSES, NETS, net_and_batch
from test_claims.oracles.tensors import gradient_bytes, relative_error
from test_claims.strategies import in_fp64

# The label with which cross_entropy leaves an example out of its mean, as padding.
IGNORED = -100
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def squared(logits, labels):
    return mse_loss(logits, one_hot(labels, CLASSES).to(logits.dtype))


def accumulated(net, x, labels, parts, weights, criterion=cross_entropy):
    """The sum of the gradients of each micro-batch's mean loss, weighted."""
    net.zero_grad()
    micro_batches = zip(x.split(parts), labels.split(parts), strict=True)
    for (part, label), weight in zip(micro_batches, weights, strict=True):
        logits = net(part).flatten(0, -2)
        loss = weight * criterion(logits, label.flatten())
        loss.backward()
    gradients = [parameter.grad.flatten() for parameter in net.parameters()]
    return in_fp64(torch.cat(gradients))


def error_of(net, x, labels, parts, weights, criterion=cross_entropy):
    """The distance between the accumulated gradient and the whole batch's gradient."""
    got = accumulated(net, x, labels, parts, weights, criterion)
    whole = accumulated(net, x, labels, [len(x)], [1], criterion)
    return relative_error(got, whole)


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "micro_batches", "each"),
    [
        *((kind, *sizes) for kind, sizes in product(NETS, [(1, 3), (2, 1), (6, 5)])),
        ("rows", 3, 700),
        ("images", 3, 200),
    ],
)
def test_equal_micro_batches_give_the_gradient_of_the_batch(
    device, micro_batches, each, kind, dtype
):
    net, *batch = net_and_batch(device, micro_batches * each, kind, dtype=dtype)
    parts = [each] * micro_batches
    # Rounded once in each micro-batch, and where it is added.
    most = 6 * torch.finfo(dtype).eps * micro_batches**0.5

    shares = [1 / micro_batches] * micro_batches
    for criterion in (cross_entropy, squared):
        error = error_of(net, *batch, parts, shares, criterion)
        at_most(error, most, "the gradient's relative error", criterion=criterion.__name__)

    times = error_of(net, *batch, parts, [1] * micro_batches) + 1
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


def half_of_channels(_width):
    return nn.Dropout2d(0.5)


MIXING = [
    *product(["rows"], [nn.BatchNorm1d, half_dropout]),
    *product(["images"], [nn.BatchNorm2d, half_of_channels]),
]


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize(("kind", "layer"), MIXING)
@pytest.mark.parametrize(("micro_batches", "each"), [(2, 4), (5, 8), (3, 64)])
def test_batch_norm_and_dropout_do_otherwise_in_a_micro_batch(
    device, kind, layer, micro_batches, each
):
    net, *batch = net_and_batch(device, micro_batches * each, kind, layer)
    parts = [each] * micro_batches
    weights = [1 / micro_batches] * micro_batches

    at_least(error_of(net, *batch, parts, weights), 0.01, "the error in training")

    net.eval()
    at_most(error_of(net, *batch, parts, weights), 1e-12, "the error in inference")


DECODER = Transformer(vocab_size=9, layers=2, dim=8, heads=2, hidden=8)
# Models, each with a batch: the second one's has more elements than kernels take for few.
WORKLOADS = ((DeepLinear(dim=16, layers=6), 256), (DeepLinear(dim=24, layers=9), 4096))


def phases_of(device, net, x, micro_batches):
    """Runs a step in micro-batches, with gradients freed before; returns its phases.

    Two for each micro-batch: its forward pass, and its backward pass. Parameters and data are
    not included; both are there whatever the number.
    """
    net.zero_grad()
    with measured_memory(device) as held:
        for number, part in enumerate(x.chunk(micro_batches)):
            loss = net(part).pow(2).mean() / micro_batches
            held.mark(f"forward {number}")
            loss.backward()
            del loss
            held.mark(f"backward {number}")
    return list(held.phases.values())


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_a_micro_batch_keeps_its_share_of_the_activations(memory_device, kind, dtype):
    net, x, _ = net_and_batch(memory_device, 24, kind, dtype=dtype)
    (whole, _), phases = (phases_of(memory_device, net, x, number) for number in (1, 6))
    for backward in phases[1::2]:
        equal(backward.live_bytes, gradient_bytes(net), "bytes left")
    close(phases[0].live_bytes, whole.live_bytes / 6, "bytes that the first keeps", within=64)


@pytest.fixture(scope="module", params=WORKLOADS, ids=str)
def measured_step(request, workloads, device):
    """A model with its batch, and the phases of a step by the number of its micro-batches."""
    if device.type not in MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    model, batch = request.param
    net = workloads.build(model, device=device)
    x = workloads.inputs(model, batch, device=device)
    net(x[:2]).pow(2).mean().backward()
    return request.param, cache(partial(phases_of, device, net, x))


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_a_step_keeps_the_activations_of_one_micro_batch(measured_step, micro_batches):
    (model, batch), phases_after = measured_step
    rows = batch // micro_batches
    activations = 4 * rows * model.dim * model.layers
    formula = activation_bytes(model, batch, micro_batches=micro_batches)
    equal(formula, activations, "activation_bytes")
    for other in (model, DECODER):
        # One of the micro-batches has an example more.
        uneven = activation_bytes(other, batch + 1, micro_batches=micro_batches)
        equal(uneven, activation_bytes(other, rows + 1), "activation_bytes", of=other)

    gradients = 4 * parameter_count(model)
    output = 4 * rows * model.outputs
    # The first micro-batch makes all gradients; the others add to them, one new one at a time.
    first_peak = deep_linear_peak_bytes(model, rows, model_state_bytes=0) - 4 * rows * model.inputs
    gradient_above = 4 * rows * model.dim
    of_a_layer = 4 * model.dim**2
    of_the_head = output + 4 * model.outputs * model.dim
    later_peak = gradients + activations + gradient_above + max(of_a_layer, of_the_head)
    phases = phases_after(micro_batches)
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
    whole = max(phase.peak_bytes for phase in phases_after(1))
    at_most(highest / whole, 1 / micro_batches + 0.15, "the share of the whole batch's peak")


def summed(micro_batches, dtype, apart=False):
    """The sum in this dtype of micro-batches' gradients.

    It is the .grad of a weight of this dtype, or `apart`, beside a weight of the gradients' own.
    """
    own = micro_batches[0].dtype if apart else dtype
    weight = nn.Parameter(torch.zeros_like(micro_batches[0], dtype=own))
    total = torch.zeros_like(weight, dtype=dtype)
    for gradient in micro_batches:
        loss = weight * gradient.to(own)
        loss.sum().backward()
        if apart:
            total.add_(weight.grad)
            weight.grad = None
    return (total if apart else weight.grad).double()


WAYS = pytest.mark.parametrize("apart", [False, True], ids=["in .grad", "in a sum apart"])


@pytest.mark.claim("accum.fp32-needed", "dtype.bf16-suffices")
@WAYS
@pytest.mark.parametrize(
    ("number", "exponent", "elements"), [(3, 7, 2**16 + 3), (255, -20, 4_099), (300, 7, 4_099)]
)
def test_equal_gradients_stop_counting_after_256_in_bf16_not_in_fp32(
    device, number, exponent, elements, apart
):
    one = 2.0**exponent
    gradient = torch.full((elements,), one, device=device, dtype=torch.bfloat16)
    for dtype, most in ((torch.bfloat16, 2**8), (torch.float16, 2**11), (torch.float32, 2**24)):
        total = summed([gradient] * number, dtype, apart)
        counted = (total / one).unique().tolist()
        equal(counted, [min(number, most)], "sums of equal gradients", dtype=dtype)


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-8), (torch.float32, 2.0**-24)])
@pytest.mark.parametrize("elements", [7, 2**16 + 3])
@WAYS
def test_each_gradient_that_is_added_costs_a_rounding_at_most(device, dtype, unit, elements, apart):
    torch.manual_seed(elements)
    gradients = 1000 * torch.randn(8, elements).to(device, torch.bfloat16 if apart else dtype)
    before = torch.zeros_like(gradients[0], dtype=torch.float64)
    for number, gradient in enumerate(gradients, start=1):
        after = summed(gradients[:number], dtype, apart)
        exact = before + gradient.double()
        off = (after - exact).abs()
        roundings = off / exact.abs().clamp(min=2.0**-126) / unit
        at_most(roundings.max().item(), 1, "roundings", number=number)
        before = after
