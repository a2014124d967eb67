"""Gradient accumulation: the gradient of the large batch at the memory of the small one."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, parameter_count
from prooflops import measured
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import with_dtype

WIDTH = 5
CLASSES = 3
# How cross_entropy is told to leave an example out of its mean, as padding.
IGNORED = -100


def net_and_batch(device, batch, norm=nn.Identity, dtype=torch.float64):
    """A small classifier and a batch for it."""
    device = with_dtype(device, dtype)
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)]
    net = nn.Sequential(*layers).to(device, dtype)
    x = torch.randn(batch, WIDTH, dtype=dtype).to(device)
    return net, x, torch.randint(CLASSES, (batch,)).to(device)


def accumulated(net, x, labels, parts, weights):
    """The sum of the gradients of each micro-batch's mean loss, weighted."""
    net.zero_grad()
    for part, label, weight in zip(x.split(parts), labels.split(parts), weights, strict=True):
        (weight * cross_entropy(net(part), label)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def error_of(net, x, labels, parts, weights):
    """How far the accumulated gradient is from that of the whole batch."""
    got = accumulated(net, x, labels, parts, weights)
    return relative_error(got, accumulated(net, x, labels, [len(x)], [1]))


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("norm", [nn.Identity, nn.LayerNorm])
@pytest.mark.parametrize(("micro_batches", "each"), [(1, 3), (2, 1), (6, 5), (3, 700)])
def test_equal_micro_batches_give_the_gradient_of_the_batch(
    device, micro_batches, each, norm, dtype, most
):
    net, x, labels = net_and_batch(device, micro_batches * each, norm, dtype)
    parts = [each] * micro_batches

    error = error_of(net, x, labels, parts, [1 / micro_batches] * micro_batches)
    assert error < most, f"the gradient is off by {error:.2g}, not by rounding"

    times = error_of(net, x, labels, parts, [1] * micro_batches) + 1
    assert abs(times - micro_batches) < 10 * most, f"undivided it is {times} times as large"


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize(
    "examples", [[(8, 0), (1, 4)], [(3, 1), (3, 4), (2, 0)], [(1, 0), (7, 2), (4, 4), (2, 3)]]
)
def test_uneven_micro_batches_are_weighted_by_examples_in_their_means(device, examples):
    parts = [counted + ignored for counted, ignored in examples]
    net, x, labels = net_and_batch(device, sum(parts))
    for label, (counted, _) in zip(labels.split(parts), examples, strict=True):
        label[counted:] = IGNORED

    total = sum(counted for counted, _ in examples)
    error = error_of(net, x, labels, parts, [counted / total for counted, _ in examples])
    assert error < 1e-12, f"weighted the gradient is off by {error:.2g}, not by rounding alone"

    alike = error_of(net, x, labels, parts, [1 / len(parts)] * len(parts))
    assert alike > 1e-9, f"weighted alike it is off by {alike:.2g}, not by more than rounding"


def half_dropout(_width):
    return nn.Dropout(0.5)


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize("layer", [nn.BatchNorm1d, half_dropout])
@pytest.mark.parametrize(("micro_batches", "each"), [(2, 4), (5, 8), (3, 64)])
def test_batch_norm_and_dropout_do_otherwise_in_a_micro_batch(device, layer, micro_batches, each):
    net, *batch = net_and_batch(device, micro_batches * each, layer)
    parts = [each] * micro_batches
    weights = [1 / micro_batches] * micro_batches

    error = error_of(net, *batch, parts, weights)
    assert error > 0.01, f"with {net[1]} it is off by {error:.2g}, not by more than 1 %"

    error = error_of(net.eval(), *batch, parts, weights)
    assert error < 1e-12, f"in inference {net[1]} is off by {error:.2g}, not by rounding alone"


MODELS = (DeepLinear(dim=16, layers=6), DeepLinear(dim=24, layers=9))
BATCH = 256


@pytest.fixture(scope="module", params=MODELS, ids=str)
def measured_step(request, workloads, device):
    """Runs a step in so many micro-batches, with gradients freed before; gives its phases.

    Two for each micro-batch: its forward pass, and its backward pass. Parameters and data are
    not included; both are there whatever the number.
    """
    if device.type not in measured.MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    model = request.param
    net = workloads.build(model, device=device)
    x = workloads.inputs(model, BATCH, device=device)
    net(x[:2]).pow(2).mean().backward()

    def phases(micro_batches):
        net.zero_grad()
        with measured.memory(device) as held:
            for number, part in enumerate(x.chunk(micro_batches)):
                loss = net(part).pow(2).mean() / micro_batches
                held.mark(f"forward {number}")
                loss.backward()
                del loss
                held.mark(f"backward {number}")
        return list(held.phases.values())

    return model, phases


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_a_step_keeps_the_activations_of_one_micro_batch(measured_step, micro_batches):
    model, phases_of = measured_step
    rows = BATCH // micro_batches
    activations = activation_bytes(model, BATCH, micro_batches=micro_batches)
    by_hand = 4 * rows * model.dim * model.layers
    assert activations == by_hand, f"activation_bytes={activations}, not 1/n of B · D · L"

    gradients = 4 * parameter_count(model)
    # The first micro-batch makes all gradients; the others add to them, one new one at a time.
    first_peak = deep_linear_peak_bytes(model, rows, model_state_bytes=0) - 4 * rows * model.inputs
    later_peak = gradients + 4 * ((model.layers + 1) * rows * model.dim + model.dim**2)
    phases = phases_of(micro_batches)
    for forward, backward in zip(phases[::2], phases[1::2], strict=True):
        first = forward is phases[0]
        kept = activations + 4 * rows * model.outputs + (0 if first else gradients)
        over = forward.live_bytes - kept
        assert 0 < over <= 16, f"{forward.live_bytes} bytes are kept, but should be {kept}"
        should = first_peak if first else later_peak
        peak = max(forward.peak_bytes, backward.peak_bytes)
        assert 0 <= peak - should <= 16, f"the peak is {peak} bytes, but should be {should}"
        left = backward.live_bytes
        assert left == gradients, f"{left} bytes are left, but should be the gradients {gradients}"

    highest = max(phase.peak_bytes for phase in phases)
    whole = max(phase.peak_bytes for phase in phases_of(1))
    share = 1 / micro_batches + 0.15
    assert highest < share * whole, f"{highest} is no {micro_batches}th of {whole} bytes"


def summed(micro_batches, dtype):
    """The .grad of a weight of this dtype after micro-batches with these gradients."""
    weight = nn.Parameter(torch.zeros_like(micro_batches[0], dtype=dtype))
    for gradient in micro_batches:
        (weight * gradient.to(dtype)).sum().backward()
    return weight.grad.double()


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize("number", [3, 255, 300])
@pytest.mark.parametrize("exponent", [-20, 7])
def test_equal_gradients_stop_counting_after_256_in_bf16_not_in_fp32(device, number, exponent):
    gradients = [torch.full((5000,), 2.0**exponent, device=device)] * number
    for dtype, most in ((torch.bfloat16, 2**8), (torch.float32, 2**24)):
        got = (summed(gradients, dtype) / 2.0**exponent).unique().tolist()
        should = [min(number, most)]
        assert got == should, f"{number} gradients of 2^{exponent} are {got} of them in {dtype}"


@pytest.mark.claim("accum.fp32-needed")
@given(values=st.lists(st.floats(-1000, 1000, width=16), min_size=2, max_size=8))
def test_each_gradient_that_is_added_costs_a_rounding_at_most(device, values):
    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float32, 2.0**-24)):
        gradients = torch.tensor(values, device=device).to(dtype).split(1)
        sums = [summed(gradients[: number + 1], dtype).item() for number in range(len(values))]
        for (before, after), gradient in zip(pairwise(sums), gradients[1:], strict=True):
            exact = before + gradient.item()
            near = abs(after - exact) <= unit * abs(exact)
            assert near, f"{before} and {gradient.item()} give {after} in {dtype}"


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize(
    ("draw", "least"), [(torch.rand, 0.4), (torch.randn, 0.02)], ids=["positive", "of both signs"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sum_of_random_gradients_drifts_off_with_their_number_in_bf16(
    device, draw, least, seed
):
    """Positive ones have a mean of 1/2: from 256 on, where bf16 is 2 apart, all are lost."""
    drawn = draw(1024, 50, generator=torch.Generator().manual_seed(seed)).to(device)

    def error(number, dtype):
        return relative_error(summed(drawn[:number], dtype), drawn[:number].double().sum(dim=0))

    few = error(64, torch.bfloat16)
    many = error(1024, torch.bfloat16)
    assert few < 0.02, f"sums of 64 in bf16 are off by {few:.2g}"
    assert many > max(least, 1.5 * few), f"sums of 64 and 1024 are off by {few:.2g} and {many:.2g}"

    fp32 = error(1024, torch.float32)
    assert fp32 < 1e-5, f"sums of 1024 in fp32 are off by {fp32}"
