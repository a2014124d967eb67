"""Low-precision training without torch's autocast, and the dtypes in which products really ran."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Products(TorchDispatchMode):
    """Records the dtypes of the operands of each matrix product that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket in PRODUCTS:
            self.dtypes += [args[-1].dtype, args[-2].dtype]
        return operation(*args, **(kwargs or {}))


def stochastically_rounded(x: Tensor) -> Tensor:
    """fp32 to bf16, up with the probability of the remainder: right on average. A bf16 is the upper half of an fp32."""
    bits = x.view(torch.int32)
    return (bits + torch.randint_like(bits, 1 << 16)).bitwise_and(-1 << 16).view(torch.float32).bfloat16()


def bf16_weights_trained(device: torch.device, repair: str, start: float, target: float, steps: int) -> Tensor:
    """64 weights in bf16 on their way from `start` to `target`, by torch's AdamW at rate 1e-3, its state in fp32.

    repair: "none" (each new weight is rounded to bf16 and forgotten), "stochastic rounding" or "master copy" (in fp32).
    """
    weights = torch.full((64,), start, device=device, dtype=torch.bfloat16, requires_grad=True)
    wide = nn.Parameter(weights.detach().float())
    optimizer = torch.optim.AdamW([wide], lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        (weights - target).float().square().mean().backward()
        wide.grad, weights.grad = weights.grad.float(), None
        with torch.no_grad():
            if repair != "master copy":
                wide.copy_(weights)
            optimizer.step()
            weights.copy_(stochastically_rounded(wide) if repair == "stochastic rounding" else wide)
    return weights.detach()


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
