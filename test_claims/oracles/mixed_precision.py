"""Small nets, and their training steps under autocast."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def linear_layers(device: torch.device, dims: Sequence[int], seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(*widths) for widths in pairwise(dims)]
    return nn.Sequential(*layers).to(device)


def seeded(shape: Sequence[int], seed: int, device: torch.device) -> Tensor:
    """The same normal numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


def flattened(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def step(
    net: nn.Module,
    x: Tensor,
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[Tensor, Tensor]:
    """One training step under autocast where a dtype is given; its output and loss."""
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        y = net(x)
        loss = functional.mse_loss(y, x[..., : y.shape[-1]])

    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return y, loss
