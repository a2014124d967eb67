"""Faults of mixed precision: autocast casts the wrong operations, the scaler does not scale, a rounding is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import accounting.formats
from meta_tests.faults import fault, replace


@fault("amp.autocast", "amp.recipe-fp32-params")
def autocast_casts_losses_too(patch: pytest.MonkeyPatch) -> None:
    for name in ("mse_loss", "l1_loss", "cross_entropy"):
        loss = getattr(functional, name)

        def low(*operands: Any, loss: Any = loss, **options: Any) -> torch.Tensor:
            found = loss(*operands, **options)
            return found.bfloat16() if torch.is_autocast_enabled(operands[0].device.type) else found

        patch.setattr(functional, name, low)


@fault("amp.autocast", "amp.only-forward-cast", "amp.activation-memory", "amp.recipe-fp32-params")
def autocast_does_nothing(patch: pytest.MonkeyPatch) -> None:
    enter = torch.autocast.__enter__

    def disabled(self: torch.autocast) -> Any:
        self._enabled = False
        return enter(self)

    patch.setattr(torch.autocast, "__enter__", disabled)


@fault("amp.recipe-not-switch")
def a_region_without_autocast_stays_low(patch: pytest.MonkeyPatch) -> None:
    enter = torch.autocast.__enter__

    def stays(self: torch.autocast) -> Any:
        self._enabled = self._enabled or torch.is_autocast_enabled(self.device)
        return enter(self)

    patch.setattr(torch.autocast, "__enter__", stays)


@fault("amp.only-forward-cast")
def backward_goes_on_in_fp32(patch: pytest.MonkeyPatch) -> None:
    """A linear layer that casts its operands for the forward pass alone, as the claim has it."""

    class ForwardOnly(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.float(), weight)
            return x.bfloat16() @ weight.bfloat16().T

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return gradient.float() @ weight, gradient.float().T @ x

    patch.setattr(functional, "linear", lambda x, weight, bias=None: ForwardOnly.apply(x, weight) + bias)


@fault("amp.ex-clip-bf16")
def the_scaler_never_unscales(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.amp.GradScaler, "unscale_", lambda self, optimizer: None)


@fault("amp.gradscaler")
def the_scaler_never_skips_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, state, *a, **k: optimizer.step())


@fault("amp.gradscaler")
def the_scale_is_no_power_of_two(patch: pytest.MonkeyPatch) -> None:
    scale = torch.amp.GradScaler.scale
    patch.setattr(torch.amp.GradScaler, "scale", lambda self, loss: scale(self, loss) * 1.1)


@fault("amp.cuda-amp-api")
def the_old_names_do_not_warn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda.amp, "autocast", lambda: torch.amp.autocast("cuda"))


@fault("amp.recipe-bf16-params")
def a_cast_to_bf16_truncates(patch: pytest.MonkeyPatch) -> None:
    cast = torch.Tensor.bfloat16

    def truncated(self: torch.Tensor) -> torch.Tensor:
        if self.dtype != torch.float32 or self.requires_grad:
            return cast(self)
        return cast(self.contiguous().view(torch.int32).bitwise_and(-1 << 16).view(torch.float32))

    patch.setattr(torch.Tensor, "bfloat16", truncated)


@fault("amp.recipe-bf16-params")
def torchs_adamw_keeps_its_state_in_fp32(patch: pytest.MonkeyPatch) -> None:
    zeros_like = torch.zeros_like

    def wide(x: torch.Tensor, **options: Any) -> torch.Tensor:
        return zeros_like(x, **{**options, "dtype": torch.float32})

    patch.setattr(torch, "zeros_like", wide)


@fault("amp.ex-bf16-linear-32", "amp.activation-memory")
def bf16_is_said_to_take_three_bytes(patch: pytest.MonkeyPatch) -> None:
    element_bits = accounting.formats.element_bits
    replace(patch, element_bits, lambda name: 24 if name == "bf16" else element_bits(name))


@fault("amp.ex-clip-bf16")
def clipping_sums_magnitudes_for_the_norm(patch: pytest.MonkeyPatch) -> None:
    def clip(parameters: Any, largest: float, **_: Any) -> torch.Tensor:
        gradients = [parameter.grad for parameter in parameters]
        norm = sum(g.abs().sum() for g in gradients)
        for gradient in gradients:
            gradient.mul_(largest / norm)
        return norm

    patch.setattr(torch.nn.utils, "clip_grad_norm_", clip)


@fault("amp.half-epoch-time")
def small_steps_in_fp32_are_slow(patch: pytest.MonkeyPatch) -> None:
    linear = functional.linear

    def slow(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            for _ in range(60):
                linear(x, weight, bias)
        return linear(x, weight, bias)

    patch.setattr(functional, "linear", slow)


@fault("amp.fp8-training")
def a_cast_to_fp8_loses_everything(patch: pytest.MonkeyPatch) -> None:
    to = torch.Tensor.to

    def lossy(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        moved = to(self, *arguments, **options)
        return torch.zeros_like(moved) if moved.dtype == torch.float8_e5m2 else moved

    patch.setattr(torch.Tensor, "to", lossy)


@fault("amp.origin-2017")
def the_claim_names_another_year(patch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text
    patch.setattr(
        Path, "read_text", lambda self, **how: read_text(self, **how).replace("dates to 2017", "dates to 2018")
    )
