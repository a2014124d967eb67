"""Faults of quantisation: roundings that are off or free, gradients that stop, bytes and kernels not as said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accounting.formats
from meta_tests.faults import fault, replace


@fault("quant.minimal-loss", "quant.smaller")
def quantising_rounds_half_a_step_off(patch: pytest.MonkeyPatch) -> None:
    quantise = torch.fake_quantize_per_channel_affine

    def off(x: torch.Tensor, scales: torch.Tensor, *rest: Any) -> torch.Tensor:
        return quantise(x, scales, *rest) + scales[:, None] / 2

    patch.setattr(torch, "fake_quantize_per_channel_affine", off)


@fault("quant.minimal-loss", "quant.easier-than-training")
def quantising_changes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "fake_quantize_per_channel_affine", lambda x, *_: x.clone())


@fault("quant.minimal-loss")
def the_scale_of_the_first_channel_serves_all(patch: pytest.MonkeyPatch) -> None:
    quantise = torch.fake_quantize_per_channel_affine
    patch.setattr(
        torch,
        "fake_quantize_per_channel_affine",
        lambda x, scales, *rest: quantise(x, scales[:1].expand_as(scales).contiguous(), *rest),
    )


@fault("quant.easier-than-training")
def no_gradient_passes_through_a_rounding(patch: pytest.MonkeyPatch) -> None:
    quantise = torch.fake_quantize_per_channel_affine
    patch.setattr(
        torch,
        "fake_quantize_per_channel_affine",
        lambda x, *rest: quantise(x.detach(), *rest) + 0 * x,
    )


@fault("quant.smaller")
def int8_is_said_to_take_two_bytes(patch: pytest.MonkeyPatch) -> None:
    element_bits = accounting.formats.element_bits
    replace(patch, element_bits, lambda name: 16 if name == "int8" else element_bits(name))


@fault("quant.faster")
def the_product_with_small_weights_writes_them_out(patch: pytest.MonkeyPatch) -> None:
    def written_out(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (x.float() @ (weight.double() * scales[:, None]).float().T).to(x.dtype)

    patch.setattr(torch, "_weight_int8pack_mm", written_out)


@fault("quant.faster")
def the_product_with_small_weights_forgets_their_scales(patch: pytest.MonkeyPatch) -> None:
    product = torch._weight_int8pack_mm
    patch.setattr(torch, "_weight_int8pack_mm", lambda x, weight, scales: product(x, weight, torch.ones_like(scales)))
