"""A class of somebody's own, in which nearly everything is unlike 6ND: shared, frozen, idle and routed layers."""

import torch
from torch import Tensor, nn

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

    def forward(self, x: Tensor, *, rounds: int = 3) -> tuple[Tensor, Tensor]:
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
    """What it does depends on values, which a prediction lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum().item() < 1e9 else -x)


def looking():
    return Looking(16, 4), torch.randn(8, 16)
