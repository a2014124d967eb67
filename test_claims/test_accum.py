"""Gradient accumulation: the gradient of the large batch at the memory of the small one, and where that ends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from accounting import measured
from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, parameter_count
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import seeds, sizes, with_dtype

WIDTH, CLASSES = 5, 3


def net_and_batch(device, batch, norm=nn.Identity, seed=0):
    """A small classifier in fp64, and a batch for it."""
    device = with_dtype(device)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    x, labels = torch.randn(batch, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (batch,))
    return net.double().to(device), x.to(device), labels.to(device)


def accumulated(net, x, labels, parts, weights):
    """The sum of the gradients of each micro-batch's mean loss, weighted; micro-batches of these sizes."""
    net.zero_grad()
    for part, label, weight in zip(x.split(parts), labels.split(parts), weights, strict=True):
        (weight * cross_entropy(net(part), label)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def error_of(net, x, labels, parts, weights):
    """How far the accumulated gradient is from that of the whole batch."""
    return relative_error(accumulated(net, x, labels, parts, weights), accumulated(net, x, labels, [len(x)], [1]))


@pytest.mark.claim("accum.equivalent")
@given(micro_batches=sizes(most=6), each=sizes(most=5), norm=st.sampled_from([nn.Identity, nn.LayerNorm]), seed=seeds)
def test_equal_micro_batches_give_the_gradient_of_the_batch(device, micro_batches, each, norm, seed):
    net, x, labels = net_and_batch(device, micro_batches * each, norm, seed)
    error = error_of(net, x, labels, [each] * micro_batches, [1 / micro_batches] * micro_batches)
    assert error < 1e-12, f"the gradient is off by {error:.2g}, not by rounding [{micro_batches=}, {each=}, {seed=}]"


@pytest.mark.claim("accum.equivalent")
@given(parts=st.lists(sizes(most=8), min_size=2, max_size=5), seed=seeds)
def test_uneven_micro_batches_are_weighted_by_their_examples(device, parts, seed):
    net, x, labels = net_and_batch(device, sum(parts), seed=seed)
    error = error_of(net, x, labels, parts, [part / len(x) for part in parts])
    assert error < 1e-12, f"weighted the gradient is off by {error:.2g}, not by rounding alone [{parts=}, {seed=}]"
    if len(set(parts)) > 1:
        alike = error_of(net, x, labels, parts, [1 / len(parts)] * len(parts))
        assert alike > 1e-9, f"weighted alike it is off by {alike:.2g}, but should be by more than rounding [{parts=}]"


@pytest.mark.claim("accum.equivalent")
def test_batch_norm_sees_the_micro_batch_instead_of_the_batch(device, record_figure):
    net, x, labels = net_and_batch(device, 32, nn.BatchNorm1d)
    error = error_of(net, x, labels, [8] * 4, [1 / 4] * 4)
    record_figure(f"with BatchNorm: off by {error:.0%}")
    assert error > 0.05, f"with BatchNorm the gradient is off by {error:.2g}, but should be by more than 5 %"
    net.eval()
    error = error_of(net, x, labels, [8] * 4, [1 / 4] * 4)
    assert error < 1e-12, f"with fixed statistics it is off by {error:.2g}, but should be by rounding alone"


MODELS, BATCH = (DeepLinear(dim=16, layers=6), DeepLinear(dim=24, layers=9)), 256


@pytest.fixture(scope="module", params=MODELS, ids=str)
def step_bytes(request, workloads, device):
    """Bytes of a step with 1, 2, 4 and 8 micro-batches: at the peak, and kept by one forward pass.

    Parameters and data are not included; both are there whatever the number.
    """
    if device.type not in measured.MEASURED_DEVICES:
        pytest.skip(f"torch does not count the bytes that tensors hold on {device.type}")
    model = request.param
    net, x = workloads.build(model, device=device), workloads.inputs(model, BATCH, device=device)
    net(x[:2]).pow(2).mean().backward()
    net.zero_grad()
    counts = (1, 2, 4, 8)
    with measured.memory(device) as held:
        for micro_batches in counts:
            for number, part in enumerate(x.chunk(micro_batches)):
                loss = net(part).pow(2).mean() / micro_batches
                if not number:
                    held.mark(f"forward {micro_batches}")
                loss.backward()
                del loss
            held.mark(f"rest {micro_batches}")
            net.zero_grad()
            held.mark(f"freed {micro_batches}")
    phases = held.phases
    peaks = {n: max(phases[f"{moment} {n}"].peak_bytes for moment in ("forward", "rest")) for n in counts}
    return model, {n: (peaks[n], phases[f"forward {n}"].live_bytes) for n in counts}


@pytest.mark.claim("accum.memory")
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_a_step_keeps_the_activations_of_one_micro_batch_and_the_gradients(step_bytes, micro_batches):
    rows = BATCH // micro_batches
    model, (peak, kept) = step_bytes[0], step_bytes[1][micro_batches]
    formula, output = activation_bytes(model, BATCH, micro_batches=micro_batches), 4 * rows * model.outputs
    assert formula == 4 * rows * model.dim * model.layers, f"activation_bytes={formula}, but should be 1/n of B · D · L"
    assert 0 < kept - formula - output <= 16, f"{kept=} bytes, not {formula}, {output=} and the loss [{micro_batches=}]"
    alone = deep_linear_peak_bytes(model, rows, model_state_bytes=0) - 4 * rows * model.inputs
    gradients = 4 * parameter_count(model) if micro_batches > 1 else 0
    assert alone <= peak <= alone + gradients + 8, f"{peak=}, not {alone} and up to {gradients} [{micro_batches=}]"


@pytest.mark.claim("accum.memory")
def test_the_peak_falls_with_every_doubling_of_the_micro_batches(step_bytes, record_figure):
    peaks = {micro_batches: peak for micro_batches, (peak, _) in step_bytes[1].items()}
    record_figure(", ".join(f"{n} micro-batches {peak / peaks[1]:.0%}" for n, peak in peaks.items()))
    falling = list(peaks.values())
    assert falling == sorted(falling, reverse=True), f"the peaks are {peaks}, but should fall"
    assert peaks[4] < 0.4 * peaks[1], f"at 4 micro-batches the peak is {peaks[4]} of {peaks[1]}, not below 40 %"


def summed(micro_batches, dtype):
    """The .grad of a weight of this dtype after micro-batches with these gradients."""
    weight = nn.Parameter(torch.zeros_like(micro_batches[0], dtype=dtype))
    for gradient in micro_batches:
        (weight * gradient.to(dtype)).sum().backward()
    return weight.grad.double()


@pytest.mark.claim("accum.fp32-needed")
@pytest.mark.parametrize("number", [3, 255, 300])
@pytest.mark.parametrize("exponent", [-20, 0, 7])
def test_equal_gradients_stop_counting_after_256_in_bf16_and_never_in_fp32(device, number, exponent):
    one = torch.full((1,), 2.0**exponent, device=device)
    for dtype, most in ((torch.bfloat16, 2**8), (torch.float32, 2**24)):
        got = summed([one] * number, dtype).item() / 2.0**exponent
        assert got == min(number, most), f"{number} gradients of 2^{exponent} add up to {got} of them in {dtype}"


@pytest.mark.claim("accum.fp32-needed")
def test_the_sum_of_random_gradients_drifts_off_with_their_number_in_bf16(device, record_figure):
    """Positive ones, of mean 1/2: once their sum is 256, where numbers of bf16 are 2 apart, all are lost."""
    gradients = list(torch.rand(1024, 50, generator=torch.Generator().manual_seed(0)).to(device))
    errors = {}
    for number in (64, 1024):
        some = gradients[:number]
        exact = sum(gradient.double() for gradient in some)
        errors[number] = [relative_error(summed(some, dtype), exact) for dtype in (torch.bfloat16, torch.float32)]
    record_figure(", ".join(f"{number}: {bf16:.1%} off in bf16" for number, (bf16, _) in errors.items()))
    few, many = (bf16 for bf16, _ in errors.values())
    assert (few < 0.02, many > 0.4) == (True, True), f"sums of 64 and 1024 in bf16 are off by {few:.2g} and {many:.2g}"
    worst = max(fp32 for _, fp32 in errors.values())
    assert worst < 1e-4, f"the sums in fp32 are off by {worst:.2g}, but should not be"
