"""Helpers that the tests of the counter share."""

import torch
from torch import nn

from prooflops import counted


def flops_of(act):
    with counted.flops() as count:
        act()
    return count


def products(figures):
    """The FLOPs of products alone, where there are any."""
    return {name: each.products for name, each in figures.items() if each.products}


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 5, bias=False)))


a = torch.randn(3, 4)
b = torch.randn(4, 5)
