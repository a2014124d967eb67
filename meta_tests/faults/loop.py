"""Faults of the training loop: gradients that stay or vanish, modes that are ignored, a start that is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from meta_tests.faults import fault


@fault("loop.zero-grad-position", "loop.order")
def zero_grad_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: None)


@fault("loop.zero-grad-position")
def backward_overwrites_gradients_instead_of_adding(patch: pytest.MonkeyPatch) -> None:
    backward = torch.Tensor.backward

    def fresh(self: torch.Tensor, *arguments: Any, **options: Any) -> None:
        nodes, leaves = [self.grad_fn], []
        while nodes:
            node = nodes.pop()
            if node is not None:
                leaves += [node.variable] if hasattr(node, "variable") else []
                nodes += [inner for inner, _ in node.next_functions]
        for leaf in leaves:
            leaf.grad = None
        backward(self, *arguments, **options)

    patch.setattr(torch.Tensor, "backward", fresh)


@fault("loop.order", "loop.zero-grad-position")
def sgd_steps_half_as_far(patch: pytest.MonkeyPatch) -> None:
    step = torch.optim.SGD.step

    def timid(self: torch.optim.SGD, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.5
        step(self)
        for group in self.param_groups:
            group["lr"] *= 2

    patch.setattr(torch.optim.SGD, "step", timid)


@fault("loop.train-mode")
def eval_is_forgotten_by_inner_layers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.Module, "eval", lambda self: setattr(self, "training", False) or self)


@fault("loop.train-mode")
def dropout_forgets_to_scale_what_it_keeps(patch: pytest.MonkeyPatch) -> None:
    dropout = nn.functional.dropout
    patch.setattr(
        nn.functional,
        "dropout",
        lambda x, p=0.5, training=True, inplace=False: dropout(x, p, training) * (1 - p if training else 1),
    )


@fault("loop.mixed-two-layer")
def the_scaler_scales_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.amp.GradScaler, "scale", lambda self, loss: loss)
    patch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())
    patch.setattr(torch.amp.GradScaler, "update", lambda self: None)


@fault("loop.mixed-two-layer")
def autocast_stays_in_fp32(patch: pytest.MonkeyPatch) -> None:
    """Then gradients do not underflow, and the scaler is not needed."""
    autocast = torch.autocast
    patch.setattr(torch, "autocast", lambda device, dtype=None, **options: autocast(device, dtype, enabled=False))


@fault("loop.naive-init-fails")
def normal_initialisation_is_truncated_to_a_tenth(patch: pytest.MonkeyPatch) -> None:
    normal = nn.init.normal_
    patch.setattr(nn.init, "normal_", lambda tensor, mean=0.0, std=1.0: normal(tensor, mean, min(std, 0.1)))


@fault("loop.naive-init-fails")
def normal_initialisation_ignores_its_deviation(patch: pytest.MonkeyPatch) -> None:
    normal = nn.init.normal_
    patch.setattr(nn.init, "normal_", lambda tensor, mean=0.0, std=1.0: normal(tensor))
