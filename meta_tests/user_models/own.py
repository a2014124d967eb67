"""A class of somebody's own, in which nearly everything is unlike 6ND.

It has shared, frozen, idle and routed layers.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 32


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, WIDTH)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.idle = nn.Linear(WIDTH, 8)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, 4)
        self.seen = torch.zeros(100)  # a tensor that is no buffer

    def forward(self, x, *, rounds=3):
        x = self.first(x)
        for _ in range(rounds):
            x = torch.tanh(self.shared(x))
        x = self.frozen(x) * self.scale
        rows = x.chunk(2)
        x = torch.cat([expert(part) for expert, part in zip(self.experts, rows, strict=True)])
        return self.head(x), x


class Factories:
    """A factory may be reached by dots."""

    @staticmethod
    def factory():
        model = Own()
        return model, (torch.randn(8, 16),), torch.optim.Adam(model.parameters())


class Looking(nn.Linear):
    """What it does depends on values, which a prediction lacks.

    A buffer of it is a part of a larger tensor.
    """

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("ramp", torch.arange(100.0)[:16])

    def forward(self, x):
        return super().forward(x if x.sum().item() < 1e9 else self.ramp - x)


def looking():
    return Looking(16, 4), torch.randn(8, 16)


class Checkpointed(nn.Module):
    """Two blocks that are run once more in the backward pass."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def checkpointed():
    return Checkpointed(), torch.randn(8, WIDTH)


def bag():
    return nn.Sequential(nn.EmbeddingBag(50, 16), nn.Linear(16, 4)), torch.randint(50, (8, 5))


def converted():
    """As many scripts do: the optimizer has the parameters before they are converted."""
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model.to(torch.float64), torch.randn(8, 16, dtype=torch.float64), optimizer


def sized(batch=8):
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)), torch.randn(
        batch, 16
    )
