"""Gradient accumulation: the gradient of the large batch at the memory of the small one, and where that ends."""

from itertools import pairwise

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, parameter_count
from prooflops import measured
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import seeds, sizes, with_dtype

WIDTH = 5
CLASSES = 3


def net_and_batch(device, batch, norm=nn.Identity, seed=0):
    """A small classifier in fp64, and a batch for it."""
    device = with_dtype(device)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    x = torch.randn(batch, WIDTH, dtype=torch.float64)
    labels = torch.randint(CLASSES, (batch,))
    return net.double().to(device), x.to(device), labels.to(device)


def accumulated(net, x, labels, parts, weights):
    """The sum of the gradients of each micro-batch's mean loss, weighted; micro-batches of these sizes."""
    net.zero_grad()
    for part, label, weight in zip(x.split(parts), labels.split(parts), weights, strict=True):
        (weight * cross_entropy(net(part), label)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def error_of(net, x, labels, parts, weights):
    """How far the accumulated gradient is from that of the whole batch."""
    return relative_error(
        accumulated(net, x, labels, parts, weights), accumulated(net, x, labels, [len(x)], [1])
    )


@pytest.mark.claim("accum.equivalent")
@given(
    micro_batches=sizes(most=6),
    each=sizes(most=5),
    norm=st.sampled_from([nn.Identity, nn.LayerNorm]),
    seed=seeds,
)
def test_equal_micro_batches_give_the_gradient_of_the_batch(
    device, micro_batches, each, norm, seed
):
    net, x, labels = net_and_batch(device, micro_batches * each, norm, seed)
    error = error_of(net, x, labels, [each] * micro_batches, [1 / micro_batches] * micro_batches)
    assert error < 1e-12, (
        f"the gradient is off by {error:.2g}, not by rounding [{micro_batches=}, {each=}, {seed=}]"
    )
    times = error_of(net, x, labels, [each] * micro_batches, [1] * micro_batches) + 1
    assert abs(times - micro_batches) < 1e-11, (
        f"undivided it is {times} times as large [{micro_batches=}, {seed=}]"
    )


@pytest.mark.claim("accum.equivalent")
@given(examples=st.lists(st.tuples(sizes(most=8), sizes(0, 4)), min_size=2, max_size=5), seed=seeds)
def test_uneven_micro_batches_are_weighted_by_the_examples_in_their_means(device, examples, seed):
    (counted, _), parts = zip(*examples, strict=True), [sum(both) for both in examples]
    net, x, labels = net_and_batch(device, sum(parts), seed=seed)
    for label, count in zip(labels.split(parts), counted, strict=True):
        label[count:] = -100  # as padding is marked: cross_entropy leaves it out of its mean
    error = error_of(net, x, labels, parts, [count / sum(counted) for count in counted])
    assert error < 1e-12, (
        f"weighted the gradient is off by {error:.2g}, not by rounding alone [{examples=}, {seed=}]"
    )
    if len(set(counted)) > 1:
        alike = error_of(net, x, labels, parts, [1 / len(parts)] * len(parts))
        assert alike > 1e-9, (
            f"weighted alike it is off by {alike:.2g}, not by more than rounding [{examples=}]"
        )


@pytest.mark.claim("accum.equivalent")
@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d, lambda width: nn.Dropout(0.5)], ids=["BatchNorm1d", "Dropout"]
)
@given(micro_batches=sizes(2, 5), each=sizes(4, 8), seed=seeds)
def test_batch_norm_and_dropout_do_otherwise_in_a_micro_batch(
    device, layer, micro_batches, each, seed
):
    net, *batch = net_and_batch(device, micro_batches * each, layer, seed)
    parts = [each] * micro_batches
    weights = [1 / micro_batches] * micro_batches
    error = error_of(net, *batch, parts, weights)
    assert error > 0.01, (
        f"with {net[1]} it is off by {error:.2g}, not by more than 1 % [{seed=}, {parts=}]"
    )
    error = error_of(net.eval(), *batch, parts, weights)
    assert error < 1e-12, (
        f"in inference {net[1]} is off by {error:.2g}, not by rounding alone [{seed=}, {parts=}]"
    )


MODELS = (DeepLinear(dim=16, layers=6), DeepLinear(dim=24, layers=9))
BATCH = 256


@pytest.fixture(scope="module", params=MODELS, ids=str)
def step_bytes(request, workloads, device):
    """Bytes of each micro-batch of 1, 2, 4 and 8: kept by its forward pass, at its peak, and left after it.

    Parameters and data are not included; both are there whatever the number.
    """
    if device.type not in measured.MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    model = request.param
    net = workloads.build(model, device=device)
    x = workloads.inputs(model, BATCH, device=device)
    net(x[:2]).pow(2).mean().backward()
    net.zero_grad()
    places = {n: [f"{number} of {n}" for number in range(n)] for n in (1, 2, 4, 8)}
    with measured.memory(device) as held:
        for n, at in places.items():
            for place, part in zip(at, x.chunk(n), strict=True):
                loss = net(part).pow(2).mean() / n
                held.mark(f"forward {place}")
                loss.backward()
                del loss
                held.mark(f"backward {place}")
            net.zero_grad()
            held.mark(f"freed {n}")
    both = {
        n: [(held.phases[f"forward {of}"], held.phases[f"backward {of}"]) for of in at]
        for n, at in places.items()
    }
    return model, {
        n: [(f.live_bytes, max(f.peak_bytes, b.peak_bytes), b.live_bytes) for f, b in both[n]]
        for n in both
    }


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_a_step_keeps_the_activations_of_one_micro_batch_and_the_gradients(
    step_bytes, micro_batches
):
    model = step_bytes[0]
    rows = BATCH // micro_batches
    formula = activation_bytes(model, BATCH, micro_batches=micro_batches)
    output = 4 * rows * model.outputs
    assert formula == 4 * rows * model.dim * model.layers, (
        f"activation_bytes={formula}, but should be 1/n of B · D · L"
    )
    gradients = 4 * parameter_count(model)
    alone = deep_linear_peak_bytes(model, rows, model_state_bytes=0) - 4 * rows * model.inputs
    adding = gradients + 4 * (
        (model.layers + 1) * rows * model.dim + model.dim**2
    )  # one new gradient at a time
    for number, (kept, peak, left) in enumerate(step_bytes[1][micro_batches]):
        before, should, what = (gradients, adding, number) if number else (0, alone, "the first")
        assert 0 < kept - before - formula - output <= 16, (
            f"{kept=} bytes, not {before=}, {formula}, {output} [{what}]"
        )
        assert 0 <= peak - should <= 16, (
            f"{peak=} bytes, but should be {should} [{what} of {micro_batches=}]"
        )
        assert left == gradients, (
            f"{left} bytes are left, but should be the gradients' {gradients} [{what}]"
        )
    peaks = [max(peak for _, peak, _ in step_bytes[1][n]) for n in (1, micro_batches)]
    assert peaks[1] < (1 / micro_batches + 0.15) * peaks[0], (
        f"{peaks[1]} is no {micro_batches=}th of {peaks[0]} bytes"
    )


def summed(micro_batches, dtype):
    """The .grad of a weight of this dtype after micro-batches with these gradients."""
    weight = nn.Parameter(torch.zeros_like(micro_batches[0], dtype=dtype))
    for gradient in micro_batches:
        (weight * gradient.to(dtype)).sum().backward()
    return weight.grad.double()


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize("number", [3, 255, 300])
@pytest.mark.parametrize("exponent", [-20, 0, 7])
def test_equal_gradients_stop_counting_after_256_in_bf16_and_never_in_fp32(
    device, number, exponent
):
    one = torch.full((1,), 2.0**exponent, device=device)
    for dtype, most in ((torch.bfloat16, 2**8), (torch.float32, 2**24)):
        got = summed([one] * number, dtype).item() / 2.0**exponent
        assert got == min(number, most), (
            f"{number} gradients of 2^{exponent} add up to {got} of them in {dtype}"
        )


@pytest.mark.claim("accum.fp32-needed")
@given(values=st.lists(st.floats(-1000, 1000, width=16), min_size=2, max_size=16))
def test_each_gradient_that_is_added_costs_a_rounding_at_most(device, values):
    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float32, 2.0**-24)):
        gradients = [torch.tensor([value], device=device).to(dtype) for value in values]
        sums = [summed(gradients[: number + 1], dtype).item() for number in range(len(values))]
        for (before, after), gradient in zip(pairwise(sums), gradients[1:], strict=True):
            exact = before + gradient.item()
            assert abs(after - exact) <= unit * abs(exact), (
                f"{before} and {gradient.item()} give {after} in {dtype}"
            )


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize(
    ("draw", "least"), [(torch.rand, 0.4), (torch.randn, 0.02)], ids=["positive", "of both signs"]
)
@settings(
    max_examples=max(2, settings.default.max_examples // 20), phases=[Phase.generate]
)  # no seed is simpler
@given(seed=seeds)
def test_the_sum_of_random_gradients_drifts_off_with_their_number_in_bf16(
    device, draw, least, seed
):
    """Positive ones have a mean of 1/2: once their sum is 256, where numbers of bf16 are 2 apart, all are lost."""
    gradients = list(draw(1024, 50, generator=torch.Generator().manual_seed(seed)).to(device))
    errors = {}
    for number in (64, 1024):
        some = gradients[:number]
        exact = sum(gradient.double() for gradient in some)
        errors[number] = [
            relative_error(summed(some, dtype), exact) for dtype in (torch.bfloat16, torch.float32)
        ]
    few, many = (bf16 for bf16, _ in errors.values())
    right = few < 0.02, many > max(least, 1.5 * few)
    assert right == (True, True), (
        f"sums of 64 and 1024 in bf16 are off by {few:.2g} and {many:.2g} [{seed=}]"
    )
    assert max(fp32 for _, fp32 in errors.values()) < 1e-5, (
        f"sums in bf16 and fp32 are off by {errors} [{seed=}]"
    )
