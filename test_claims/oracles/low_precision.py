"""Training in bf16, fp8 or a few bits without torch's autocast."""

import copy
import math
from functools import cache, partial
from itertools import pairwise

import torch
from torch import nn

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
# Hidden widths that are not the usual (32,).
NETS = {"wide": (128,), "deep": (32, 32, 32)}


def stochastically_rounded(x, generator=None):
    """fp32 values as bf16, up or down at random, so that the expected value is the value itself.

    bf16 is the upper half of an fp32 pattern: a random number added to the lower half carries into
    the upper one with just the probability of rounding away from zero; then the lower half is cut
    off.
    """
    noise = torch.randint(
        0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator
    )
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def layers(hidden, layer, function=None):
    """Layers from 16 values through the hidden widths to one, with the function between them."""
    parts = []
    for widths in pairwise((16, *hidden, 1)):
        if parts and function is not None:
            parts.append(function())
        parts.append(layer(*widths))
    return nn.Sequential(*parts)


ADAM = partial(torch.optim.Adam, lr=0.02, eps=1e-16)
# Its step is as long as the gradients are large, so that a scale left in them shows.
SGD = partial(torch.optim.SGD, lr=0.04)


@cache
def trained_net(
    device,
    dtype=None,
    *,
    hidden=(32,),
    layer=nn.Linear,
    function=None,
    scaler=False,
    loss_factor=1.0,
    steps=30,
    seed=0,
    optimize=ADAM,
):
    """A net of such layers after training, under autocast where a dtype is given, and its losses.

    Kept, as several claims look at the same run. The factor makes the gradients small; Adam's
    update does not depend on it, as long as there are gradients.
    """
    torch.manual_seed(seed)
    net = layers(hidden, layer, function).to(device)
    x = torch.randn(64, 16, device=device)
    optimizer = optimize(net.parameters())
    scale = torch.amp.GradScaler(device.type, enabled=scaler)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.mse_loss(net(x), x.sum(dim=1, keepdim=True))
        scale.scale(loss * loss_factor).backward()
        scale.step(optimizer)
        scale.update()
        losses.append(loss.item())
    return net, losses


def through_fp8(x, dtype, scaled):
    """The values that an fp8 tensor keeps.

    Where `scaled`, one scale brings the largest value near the maximum.
    """
    largest = float(x.abs().max())
    limit = torch.finfo(dtype).max
    scale = 2.0 ** math.floor(math.log2(limit / largest)) if scaled and largest else 1.0
    return (x * scale).clamp(-limit, limit).to(dtype).float() / scale


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scaled):
        ctx.scaled = scaled
        operands = [through_fp8(operand, E4M3, scaled) for operand in (x, weight)]
        ctx.save_for_backward(*operands)
        return operands[0] @ operands[1].T

    @staticmethod
    def backward(ctx, *gradients):
        x, weight = ctx.saved_tensors
        gradient = through_fp8(gradients[0], E5M2, ctx.scaled)
        return gradient @ weight, gradient.T @ x, None


class Fp8Linear(nn.Linear):
    """A linear layer whose three products have fp8 operands and an fp32 sum.

    Operands are e4m3 forward, and e5m2 for gradients. fp8 units compute the same; rounding the
    operands and multiplying in fp32 works on any device.
    """

    scaled = True

    def forward(self, x):
        return _Fp8Product.apply(x, self.weight, self.scaled) + self.bias


class Attention(nn.Module):
    """Attention written out; `wide`: outside autocast, in fp32."""

    def __init__(self, wide):
        super().__init__()
        self.project = nn.Linear(8, 8, bias=False)
        self.wide = wide

    def forward(self, x):
        x = self.project(x)
        with torch.autocast(
            x.device.type, enabled=torch.is_autocast_enabled(x.device.type) and not self.wide
        ):
            x = x.float() if self.wide else x
            scores = x @ x.mT
            return scores.softmax(-1) @ x


PER_CHANNEL = "per channel"
PER_TENSOR = "per tensor"


def scales_of(weight, bits, granularity):
    """Largest magnitude over the largest integer, 2^(bits - 1) - 1.

    The magnitude is that of each output channel, or of the whole tensor.
    """
    largest = weight.detach().abs().amax(dim=1)
    return (largest if granularity == PER_CHANNEL else largest.max().expand_as(largest)) / (
        2 ** (bits - 1) - 1
    )


def quantised(weight, bits, granularity=PER_CHANNEL):
    """`weight` (outputs, inputs) rounded to `bits`; its gradient passes straight through."""
    scales = scales_of(weight, bits, granularity).contiguous()
    top = 2 ** (bits - 1) - 1
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -top, top)


def packed_int4(integers):
    """Integers from -8 to 7, two to a byte, the first one low; their number in a row is even."""
    low, high = (integers.to(torch.uint8) & 15).view(len(integers), -1, 2).unbind(-1)
    return low | high << 4


def unpacked_int4(packed):
    """The integers of `packed_int4`."""
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).to(torch.int8)
    return nibbles - 16 * (nibbles > 7)


class QuantisedLinear(nn.Module):
    """Linear layers, one for each target, that compute in `bits` bits.

    They train the fp32 weights behind.
    """

    bits = 32

    def __init__(self, inputs, outputs):
        super().__init__()
        shapes = (outputs, inputs), (1, outputs)
        self.weight, self.bias = (
            nn.Parameter(torch.empty(len(TARGETS), *shape).uniform_(-1, 1) * inputs**-0.5)
            for shape in shapes
        )

    def forward(self, x):
        weights = self.rounded(self.bits) if self.bits < 32 else self.weight
        return torch.baddbmm(self.bias, x, weights.mT)

    def rounded(self, bits):
        return quantised(self.weight.flatten(0, 1), bits).view_as(self.weight)


@torch.no_grad()
def round_weights(net, bits):
    for layer in net:
        if isinstance(layer, QuantisedLinear):
            layer.weight.copy_(layer.rounded(bits))
    return net


def with_bits(net, bits):
    """A copy of `net` whose weights were quantised after training."""
    return round_weights(copy.deepcopy(net), bits)


def fitted(device, bits=32, master=True, steps=350):
    """Nets that AdamW fitted to each target with weights in `bits` bits.

    With a `master` copy the weights are kept in fp32 and rounded for each use; without, only the
    rounded ones are kept.
    """
    torch.manual_seed(0)
    layers = (
        QuantisedLinear(4, 32),
        nn.Tanh(),
        QuantisedLinear(32, 32),
        nn.Tanh(),
        QuantisedLinear(32, 1),
    )
    net = nn.Sequential(*layers).to(device)
    for layer in net:
        if master and isinstance(layer, QuantisedLinear):
            layer.bits = bits
    x = (torch.rand(256, 4) * 2 - 1).to(device)
    y = targets_of(x)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        error = net(x.expand(len(TARGETS), -1, -1)) - y
        error.square().mean((1, 2)).sum().backward()
        optimizer.step()
        if not master:
            round_weights(net, bits)
    return net


TARGETS = ("wave", "bowl", "fold")


def targets_of(x):
    """For each target one number for each row of four."""
    first, second, third, fourth = x.split(1, dim=1)
    wave = torch.sin(3 * first) + second * third
    bowl = first * second + third.square()
    fold = (first - second).abs() + 0.5 * torch.cos(2 * fourth)
    return torch.stack([wave, bowl, fold])


@torch.no_grad()
def fresh_losses(nets):
    """Mean square errors by target, on data that no training saw."""
    device = next(nets.parameters()).device
    drawn = torch.rand(512, 4, generator=torch.Generator().manual_seed(7))
    x = 2 * drawn.to(device) - 1
    errors = nets(x.expand(len(TARGETS), -1, -1)) - targets_of(x)
    return dict(zip(TARGETS, errors.square().mean((1, 2)).tolist(), strict=True))
