"""Low-precision training without torch's autocast, and the dtypes in which products really ran."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
NETS = {"wide": (128,), "deep": (32, 32, 32)}  # hidden widths, beside the usual (32,)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Products(TorchDispatchMode):
    """Records the dtypes of the operands of each matrix product that is dispatched, and counts casts."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []
        self.casts = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket in PRODUCTS:
            self.dtypes += [args[-1].dtype, args[-2].dtype]
        self.casts += operation.overloadpacket == torch.ops.aten._to_copy
        return operation(*args, **(kwargs or {}))


def stochastically_rounded(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """fp32 values as bf16, up or down at random, so that the expected value is the value itself.

    bf16 is the upper half of an fp32 pattern: a random number added to the lower half carries into the upper one with
    just the probability of rounding away from zero; then the lower half is cut off.
    """
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    return ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32).bfloat16()


def layers(hidden: tuple[int, ...], layer: type[nn.Linear]) -> nn.Sequential:
    """Layers from 16 values through the hidden widths to one."""
    return nn.Sequential(*(layer(*widths) for widths in pairwise((16, *hidden, 1))))


@cache
def trained_net(
    device: torch.device,
    dtype: torch.dtype | None = None,
    *,
    hidden: tuple[int, ...] = (32,),
    layer: type[nn.Linear] = nn.Linear,
    scaler: bool = False,
    loss_factor: float = 1.0,
    steps: int = 60,
    seed: int = 0,
) -> tuple[nn.Sequential, list[float]]:
    """A net of such layers trained by Adam, under autocast where a dtype is given; the net and its losses.

    Kept, as several claims look at the same run. The factor makes the gradients small; Adam's update does not depend
    on it, as long as there are gradients.
    """
    torch.manual_seed(seed)
    net = layers(hidden, layer).to(device)
    x = torch.randn(64, 16, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-16)
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


def through_fp8(x: Tensor, dtype: torch.dtype, scaled: bool) -> Tensor:
    """The values an fp8 tensor holds; where `scaled`, with one scale that brings its largest value near the maximum."""
    largest, limit = float(x.abs().max()), torch.finfo(dtype).max
    scale = 2.0 ** math.floor(math.log2(limit / largest)) if scaled and largest else 1.0
    return (x * scale).clamp(-limit, limit).to(dtype).float() / scale


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scaled: bool) -> Tensor:
        ctx.scaled, operands = scaled, [through_fp8(operand, E4M3, scaled) for operand in (x, weight)]
        ctx.save_for_backward(*operands)
        return operands[0] @ operands[1].T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        gradient = through_fp8(gradient, E5M2, ctx.scaled)
        return gradient @ weight, gradient.T @ x, None


class Fp8Linear(nn.Linear):
    """A linear layer whose three products have fp8 operands, e4m3 forward and e5m2 for gradients, and an fp32 sum.

    That is what fp8 units compute; rounding the operands and multiplying in fp32 gives the same on any device.
    """

    scaled = True

    def forward(self, x: Tensor) -> Tensor:
        return _Fp8Product.apply(x, self.weight, self.scaled) + self.bias


class Attention(nn.Module):
    """Attention written out; `wide`: outside autocast, in fp32."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.project, self.wide = nn.Linear(8, 8, bias=False), wide

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        with torch.autocast(x.device.type, enabled=torch.is_autocast_enabled(x.device.type) and not self.wide):
            x = x.float() if self.wide else x
            scores = x @ x.mT
            attended: Tensor = scores.softmax(-1) @ x
        return attended
