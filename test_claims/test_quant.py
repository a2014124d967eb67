"""Claims about quantising a trained model: its losses, its savings, and when it is faster."""

import io
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from accounting.memory import tensor_bytes
from prooflops.memory import measured_memory, why_uncounted
from test_claims.oracles import low_precision
from test_claims.oracles.low_precision import PER_CHANNEL, PER_TENSOR, fresh_losses, quantised
from test_claims.oracles.messages import agree, at_least, at_most, close, equal
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import (
    covering,
    fewer,
    seeds,
    sizes,
)


def gaussian(seed, *shape, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.claim("quant.minimal-loss")
@pytest.mark.parametrize(("bits", "percent"), [(8, 0.74), (4, 13.5), (3, 31), (2, 83)])
def test_the_error_of_gaussian_weights_is_that_of_uniform_noise(device, bits, percent):
    weight = gaussian(0, 256, 512, device=device)
    x = gaussian(1, 64, 512, device=device)
    got = relative_error(x @ quantised(weight, bits).T, x @ weight.T)
    close(100 * got, percent, "the error in percent", rel=0.04)

    spacing = low_precision.scales_of(weight, bits, PER_CHANNEL)
    noise = (spacing.square().mean() / 12 / weight.square().mean()).sqrt().item()
    if bits > 2:
        close(got, noise, "the error over that of uniform noise", rel=0.05)


@pytest.mark.claim("quant.minimal-loss")
@given(seed=seeds, bits=st.integers(2, 8))
def test_one_outlier_ruins_a_whole_tensor_but_only_its_own_channel(device, seed, bits):
    weight = gaussian(seed, 32, 128, device=device)
    weight[0, 0] = 200.0
    own = relative_error(quantised(weight, bits, PER_CHANNEL)[1:], weight[1:])
    whole = relative_error(quantised(weight, bits, PER_TENSOR)[1:], weight[1:])
    clean = relative_error(quantised(weight[1:], bits, PER_CHANNEL), weight[1:])
    close(own, clean, "the error beside an outlier's channel", rel=1e-5)
    at_least(whole, 0.3, "the error per tensor with an outlier")


def rounded_by_hand(x, scales, top):
    """To the nearest multiple of each scale, half-way to the even one; and where the ends cut."""
    values = x.detach().double().cpu().numpy() / scales
    nearest = np.rint(values)
    return np.clip(nearest, -top, top) * scales, np.abs(nearest) <= top


def per_channel(x, scales, top, axis):
    scales = torch.from_numpy(scales).flatten().float().to(x.device)
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scales, zeros, axis, -top, top)


@pytest.mark.claim("quant.minimal-loss", "quant.easier-than-training")
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_quantising_rounds_to_nearest_and_passes_gradients_within_the_range(device, bits):
    """Scales are powers of two, so that halves are exact."""
    top = 2 ** (bits - 1) - 1
    for case in covering("quant.minimal-loss"):
        values = [each * 2.0 ** (bits - 3) for each in range(-9, 13)]
        x = case.tensor(device, values).detach().requires_grad_()
        rows, columns = x.shape
        by_row = 2.0 ** -(np.arange(rows)[:, None] % 3)
        by_column = 2.0 ** -(np.arange(columns) % 4)
        ways = {
            "rows": (per_channel(x, by_row, top, 0), by_row),
            "columns": (per_channel(x, by_column, top, 1), by_column),
            "tensor": (torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -top, top), 0.5),
        }
        for name, (got, scales) in ways.items():
            should, passes = rounded_by_hand(x, scales, top)
            equal(got.double(), torch.from_numpy(should), "values", scales=name, case=case)
            (gradient,) = torch.autograd.grad(got.sum(), x)
            equal(gradient != 0, torch.from_numpy(passes), "gradients", scales=name, case=case)


@lru_cache
def trained(device, bits=32, master=True):
    return low_precision.fitted(device, bits, master)


@lru_cache
def losses_after(device, bits):
    """The losses of nets that were trained in fp32 and then rounded."""
    return fresh_losses(low_precision.with_bits(trained(device), bits))


each_target = pytest.mark.parametrize("target", low_precision.TARGETS)


@pytest.mark.claim("quant.minimal-loss")
@each_target
def test_a_trained_net_keeps_its_loss_in_eight_bits_and_loses_it_in_two(
    device, record_figure, target
):
    exact = fresh_losses(trained(device))[target]
    untrained = fresh_losses(low_precision.fitted(device, steps=0))[target]
    times = {bits: losses_after(device, bits)[target] / exact for bits in (8, 4, 3, 2)}
    said = ", ".join(f"{bits} bits {of:.2f} times" for bits, of in times.items())
    record_figure(f"loss {exact:.4f}; {said}")
    at_most(exact, untrained / 10, "the loss of a trained net")
    right = times[8] < 1.1 < times[4] < times[3] < times[2] > 10
    assert right, f"with fewer bits the loss is {said}"


def saved_bytes(x):
    file = io.BytesIO()
    torch.save({"weight": x}, file)
    return len(file.getvalue())


@pytest.mark.claim("quant.smaller")
@fewer
@given(rows=sizes(1, 40), pairs=sizes(1, 200), seed=seeds)
@example(rows=3, pairs=12_500, seed=0)
def test_int8_takes_a_quarter_and_int4_an_eighth_of_fp32_beside_the_scales(
    device, rows, pairs, seed
):
    if why := why_uncounted(device):
        pytest.skip(why)
    weight = gaussian(seed, rows, 2 * pairs, device=device)
    assume(weight.abs().amax(dim=1).min() > 0)
    taken = {}
    for bits, name in ((8, "int8"), (4, "int4")):
        scales = low_precision.scales_of(weight, bits, PER_CHANNEL)
        low = quantised(weight, bits)
        rounded = (low / scales[:, None]).round()
        integers = rounded.to(torch.int8)
        with measured_memory(device) as held:
            stored = low_precision.packed_int4(integers) if bits == 4 else rounded.to(torch.int8)
            kept_scales = scales.clone()
        back = low_precision.unpacked_int4(stored) if bits == 4 else stored
        equal(back, integers, "the integers stored", name=name)
        torch.testing.assert_close(back * scales[:, None], low, rtol=1e-4, atol=0)
        taken[name] = held.live_bytes
        formula = tensor_bytes(weight.shape, name) + tensor_bytes((rows,), "fp32")
        equal(taken[name], formula, "bytes", name=name)
        in_file = saved_bytes(stored)
        close(in_file, saved_bytes(weight) * bits / 32, "bytes of a file", within=2048, name=name)
        del stored, kept_scales
    int8, int4 = (taken[name] - 4 * rows for name in ("int8", "int4"))

    agree("bytes", int8=4 * int8, int4=8 * int4, fp32=weight.nbytes)


class WeightOnly:
    """A product with weights never written out, by torch's kernel: int8 on a CPU, else int4."""

    def __init__(self, device, width):
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            pytest.skip("torch's int4 product needs compute capability 8.0")
        if device.type not in ("cpu", "cuda"):
            pytest.skip(f"torch has no product with quantised weights for {device.type}")
        self.device, self.width = device, width
        # Equal neighbours, so that it does not matter which of two nibbles comes first.
        top = 127 if device.type == "cpu" else 7
        pairs = torch.randint(
            -top, top + 1, (width, width // 2), generator=torch.Generator().manual_seed(0)
        )
        self.integers = pairs.repeat_interleave(2, dim=1).to(device, torch.int8)
        self.scales = (torch.arange(width, device=device) % 7 + 1).bfloat16() / 128
        self.wide = self.written_out()
        if device.type == "cuda":
            nibbles = (pairs + 8).to(device, torch.uint8)
            self.packed = torch._convert_weight_to_int4pack(nibbles | nibbles << 4, 8)
            groups = self.scales.expand(width // 128, width)
            self.groups = torch.stack([groups, torch.zeros_like(groups)], dim=-1).contiguous()

    def inputs(self, batch):
        """The same input in fp32 and in bf16, which the kernels expect."""
        x = gaussian(batch, batch, self.width, device=self.device).bfloat16()
        return x.float(), x

    def written_out(self):
        return self.integers * self.scales.float()[:, None]

    def product(self, x):
        if self.device.type == "cpu":
            return torch._weight_int8pack_mm(x, self.integers, self.scales)
        return torch._weight_int4pack_mm(x, self.packed, 128, self.groups)


@pytest.fixture(params=[1])
def weight_only(device, request):
    if device.type == "cpu":
        # In fp32 36 MiB and more: reading weights that lie in a cache does not dominate the time.
        return WeightOnly(device, 1024 * (2 + request.param))
    return WeightOnly(device, 4096 * request.param)


@pytest.mark.claim("quant.faster")
@pytest.mark.parametrize("rows", [1, 5, 600])
def test_a_product_with_quantised_weights_errs_by_bf16_roundings(device, rows):
    of = WeightOnly(device, 256)
    wide, x = of.inputs(rows)
    off = (of.product(x).double() - wide.double() @ of.wide.double().T).abs()
    most = wide.abs() @ of.wide.abs().T / 2**8
    at_most((off / most).max().item(), 1, "errors in units of their bound")


@pytest.mark.claim("quant.faster")
def test_one_token_times_quantised_weights_is_faster_than_times_fp32(weight_only, speed):
    wide, x = weight_only.inputs(1)
    what = (
        f"one row times {weight_only.width} x {weight_only.width}, fp32 against quantised weights"
    )
    speed.assert_slower(lambda: wide @ weight_only.wide.T, lambda: weight_only.product(x), what)


@pytest.mark.claim("quant.faster")
@pytest.mark.parametrize("times", [1, 2])
def test_weights_written_out_before_each_product_are_slower_than_fp32(device, speed, times):
    weight_only = WeightOnly(device, times * (1024 if device.type == "cpu" else 4096))
    wide, _ = weight_only.inputs(1)
    what = "dequantise and multiply against fp32"
    speed.assert_slower(
        lambda: wide @ weight_only.written_out().T,
        lambda: wide @ weight_only.wide.T,
        what,
        pairs=21,
    )


@pytest.mark.claim("quant.easier-than-training")
@pytest.mark.parametrize("bits", [8, 4])
@each_target
def test_quantising_afterwards_loses_less_than_training_in_few_bits(
    device, record_figure, target, bits
):
    after = losses_after(device, bits)[target]
    within = fresh_losses(trained(device, bits, master=False))[target]
    record_figure(
        f"{bits} bits: loss {after:.4f} quantised after training, {within:.4f} trained in them"
    )
    at_most(after, 0.9 * within, "the loss quantised afterwards")


@pytest.mark.claim("quant.easier-than-training")
@each_target
def test_training_two_bits_with_a_wide_copy_beats_quantising_afterwards(
    device, record_figure, target
):
    after = losses_after(device, 2)[target]
    aware = low_precision.with_bits(trained(device, 2), 2)
    within = fresh_losses(aware)[target]
    record_figure(
        f"2 bits: loss {after:.4f} quantised after training, {within:.4f} trained with an fp32 copy"
    )
    rows = [row for layer in aware[::2] for row in layer.weight.flatten(0, 1)]
    levels = max(len(row.unique()) for row in rows)

    at_most(levels, 3, "values in a row of weights")
    at_most(within, after / 2, "the loss trained in 2 bits")
