"""Faults of initialisation: functions of torch.nn.init with another deviation, other bounds or another fan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meta_tests.faults import fault


@fault("init.sqrt-growth", "init.rescale", "init.explodes-with-depth")
def randn_has_a_variance_of_a_half(patch: pytest.MonkeyPatch) -> None:
    randn = torch.randn
    patch.setattr(torch, "randn", lambda *shape, **options: randn(*shape, **options) * math.sqrt(0.5))


@fault("init.sqrt-growth", "init.variance-scales", "init.rescale")
def a_product_is_scaled_by_the_root_of_its_width(patch: pytest.MonkeyPatch) -> None:
    product = Tensor.__matmul__
    patch.setattr(Tensor, "__matmul__", lambda self, other: product(self, other) / math.sqrt(self.shape[-1]))


@fault("init.variance-scales")
def uniform_initialisation_is_of_half_the_width(patch: pytest.MonkeyPatch) -> None:
    uniform = nn.init.uniform_
    patch.setattr(nn.init, "uniform_", lambda tensor, a=0.0, b=1.0: uniform(tensor, a / 2, b / 2))


@fault("init.xavier-constant")
def xavier_looks_at_fan_in_alone(patch: pytest.MonkeyPatch) -> None:
    def lecun(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
        return tensor.data.normal_(0, gain / math.sqrt(tensor.shape[1]), generator=generator)

    patch.setattr(nn.init, "xavier_normal_", lecun)


@fault("init.xavier-constant")
def kaiming_takes_the_first_dimension_for_fan_in(patch: pytest.MonkeyPatch) -> None:
    fans = nn.init._calculate_correct_fan
    other = {"fan_in": "fan_out", "fan_out": "fan_in"}
    patch.setattr(nn.init, "_calculate_correct_fan", lambda tensor, mode: fans(tensor, other[mode.lower()]))


@fault("init.explodes-with-depth")
def products_saturate(patch: pytest.MonkeyPatch) -> None:
    product = Tensor.__matmul__
    patch.setattr(Tensor, "__matmul__", lambda self, other: product(self, other).clamp(-1e6, 1e6))


@fault("init.trunc-3", "init.trunc-shrinks-std")
def truncation_forgets_its_bounds(patch: pytest.MonkeyPatch) -> None:
    def untruncated(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None, **_: float) -> Tensor:
        return tensor.normal_(mean, std, generator=generator)

    patch.setattr(nn.init, "trunc_normal_", untruncated)


@fault("init.trunc-3")
def truncation_bounds_are_relative(patch: pytest.MonkeyPatch) -> None:
    """As is often assumed of a=-3, b=3."""
    truncated = nn.init.trunc_normal_

    def relative(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, **rest: Any):
        return truncated(tensor, mean, std, mean + a * std, mean + b * std, **rest)

    patch.setattr(nn.init, "trunc_normal_", relative)


@fault("init.trunc-shrinks-std")
def truncation_clamps_instead_of_drawing_again(patch: pytest.MonkeyPatch) -> None:
    """Outliers then lie on the bounds, and 0.9936 of the deviation is left."""

    def clamped(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator=None):
        return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    patch.setattr(nn.init, "trunc_normal_", clamped)


@fault("init.0.02")
def the_deviation_asked_for_is_taken_as_a_variance(patch: pytest.MonkeyPatch) -> None:
    normal = nn.init.normal_
    patch.setattr(nn.init, "normal_", lambda tensor, mean=0.0, std=1.0: normal(tensor, mean, math.sqrt(std)))


@fault("init.0.02")
def zeroed_biases_are_not(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.init, "zeros_", lambda tensor: tensor)


@fault("init.stability")
def sgd_clips_each_gradient_to_a_length_of_one(patch: pytest.MonkeyPatch) -> None:
    """Then no rate diverges, and initialisation makes no difference to that."""
    step = torch.optim.SGD.step

    def clipped(self: torch.optim.SGD, closure: Any = None) -> None:
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        step(self)

    patch.setattr(torch.optim.SGD, "step", clipped)


@fault("init.stability")
def sgd_stands_still(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.optim.SGD, "step", lambda self, closure=None: None)
