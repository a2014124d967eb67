"""Symmetric integer quantisation of weights by torch's own kernels, and a small net trained with it or without."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

PER_CHANNEL, PER_TENSOR = "per channel", "per tensor"


def scales_of(weight: Tensor, bits: int, granularity: str) -> Tensor:
    """Largest magnitude over the largest integer, 2^(bits - 1) - 1: of each output channel, or of the whole tensor."""
    largest = weight.detach().abs().amax(dim=1)
    return (largest if granularity == PER_CHANNEL else largest.max().expand_as(largest)) / (2 ** (bits - 1) - 1)


def quantised(weight: Tensor, bits: int, granularity: str = PER_CHANNEL) -> Tensor:
    """What is left of `weight` (outputs, inputs) in this many bits; its gradient passes straight through."""
    scales, top = scales_of(weight, bits, granularity).contiguous(), 2 ** (bits - 1) - 1
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, -top, top)


def packed_int4(integers: Tensor) -> Tensor:
    """Integers from -8 to 7, an even number of them in each row, two to a byte, the first one low."""
    low, high = (integers.to(torch.uint8) & 15).view(len(integers), -1, 2).unbind(-1)
    return low | high << 4


def unpacked_int4(packed: Tensor) -> Tensor:
    """The integers of `packed_int4`."""
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).to(torch.int8)
    return nibbles - 16 * (nibbles > 7)


class QuantisedLinear(nn.Linear):
    """A linear layer that computes with its weight in `bits` bits, and trains the fp32 weight behind it."""

    bits = 32

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, quantised(self.weight, self.bits) if self.bits < 32 else self.weight, self.bias)


def with_bits(net: nn.Sequential, bits: int, granularity: str = PER_CHANNEL) -> nn.Sequential:
    """A copy of `net` whose weights were quantised after training."""
    net = copy.deepcopy(net)
    round_weights(net, bits, granularity)
    return net


@torch.no_grad()
def round_weights(net: nn.Sequential, bits: int, granularity: str = PER_CHANNEL) -> None:
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(quantised(layer.weight, bits, granularity))


def fitted(device: torch.device, bits: int = 32, master: bool = True, steps: int = 250) -> nn.Sequential:
    """A net fitted to a smooth function by AdamW with weights in `bits` bits.

    With a `master` copy the weights are kept in fp32 and rounded for each use; without, only the rounded ones are kept.
    """
    torch.manual_seed(0)
    layers = QuantisedLinear(4, 32), nn.Tanh(), QuantisedLinear(32, 32), nn.Tanh(), QuantisedLinear(32, 1)
    net = nn.Sequential(*layers).to(device)
    for layer in net:
        if master and isinstance(layer, QuantisedLinear):
            layer.bits = bits
    x = (torch.rand(256, 4) * 2 - 1).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - smooth(x)).square().mean().backward()
        optimizer.step()
        if not master:
            round_weights(net, bits)
    return net


def smooth(x: Tensor) -> Tensor:
    return torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


@torch.no_grad()
def fresh_loss(net: nn.Sequential) -> float:
    """Mean square error on data that no training saw."""
    device = next(net.parameters()).device
    x = torch.rand(512, 4, generator=torch.Generator().manual_seed(7)).to(device) * 2 - 1
    return float((net(x) - smooth(x)).square().mean())
