"""Helpers that the tests of the counter share."""

from collections.abc import Callable

import torch
from torch import nn

from prooflops import counted


def flops_of(act: Callable[[], object], pairs: str = "full") -> counted.CountedWork:
    with counted.flops(pairs=pairs) as count:
        act()
    return count


def products(figures: dict[str, counted.Totals]) -> dict[str, int]:
    """The FLOPs of products alone, where there are any."""
    return {name: each.products for name, each in figures.items() if each.products}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 5, bias=False)))


a = torch.randn(3, 4)
b = torch.randn(4, 5)
square = torch.randn(4, 4)
