"""FLOPs of the operators that torch really dispatched, by torch's own FlopCounterMode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts with `get_total_flops()`; attention runs as two products: fused CPU kernels are not counted."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def product_flops(function: Callable[..., object], *arguments: object) -> int:
    """FLOPs of the matrix products and convolutions in `function(*arguments)`."""
    with counting() as counter:
        function(*arguments)
    return int(counter.get_total_flops())


def linear_net(widths: Sequence[int], device: torch.device | str = "cpu") -> torch.nn.Sequential:
    """Linear layers without biases between these widths."""
    return torch.nn.Sequential(*(torch.nn.Linear(m, n, bias=False) for m, n in pairwise(widths))).to(device)


def forward_and_backward(net: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, int]:
    """Product FLOPs of net(x), and of its backward pass from a gradient of ones (so that no loss is counted)."""
    with counting() as forward:
        y = net(x)
    with counting() as backward:
        y.backward(torch.ones_like(y))
    return int(forward.get_total_flops()), int(backward.get_total_flops())
