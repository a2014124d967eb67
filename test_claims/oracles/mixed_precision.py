"""Small nets, and their training steps under autocast."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def linear_layers(device, dims, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(*widths) for widths in pairwise(dims)]
    return nn.Sequential(*layers).to(device)


def seeded(shape, seed, device):
    """The same normal numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


def flattened(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def step(
    net,
    x,
    optimizer,
    dtype=None,
    scaler=None,
):
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
