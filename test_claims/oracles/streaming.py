"""Operations on operands that lie in memory, or in a cache. No result is allocated, but for that of a layer norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

ROW = 4096  # elements of a matrix's row, of what is normalised


@dataclass(frozen=True)
class Operands:
    """Two operands, a result and scratch of as many elements."""

    x: Tensor
    y: Tensor
    out: Tensor
    scratch: Tensor

    @staticmethod
    def of(elements: int, device: torch.device) -> Operands:
        """Random numbers, repeated beyond 2**20 of them, and pages that have all been touched."""
        few = min(elements, 2**20)
        x, y = (torch.randn(few, device=device).repeat(elements // few) for _ in range(2))
        return Operands(x, y, torch.zeros_like(x), torch.zeros_like(x))

    def first(self, elements: int) -> Operands:
        return Operands(*(each[:elements] for each in (self.x, self.y, self.out, self.scratch)))


def gelu_by_hand(on: Operands) -> None:
    """x · ½ · (1 + erf(x / √2)), one pass over memory for each operation."""
    torch.mul(on.x, 2**-0.5, out=on.scratch)
    torch.erf(on.scratch, out=on.scratch)
    torch.add(on.scratch, 1, out=on.scratch)
    torch.mul(on.scratch, on.x, out=on.scratch)
    torch.mul(on.scratch, 0.5, out=on.out)


OPERATIONS: dict[str, Callable[[Operands], object]] = {
    "relu": lambda on: torch.clamp_min(on.x, 0, out=on.out),
    "negative": lambda on: torch.neg(on.x, out=on.out),
    "scale": lambda on: torch.mul(on.x, 2.0, out=on.out),
    "add": lambda on: torch.add(on.x, on.y, out=on.out),
    "multiply": lambda on: torch.mul(on.x, on.y, out=on.out),
    "maximum": lambda on: torch.maximum(on.x, on.y, out=on.out),
    "sum": lambda on: on.x.sum(),
    "largest": lambda on: on.x.amax(),
    "dot": lambda on: torch.dot(on.x, on.y),
    "matvec": lambda on: torch.mv(on.x.view(-1, ROW), on.y[:ROW], out=on.out[: on.x.numel() // ROW]),
    "gelu": lambda on: torch.ops.aten.gelu.out(on.x, approximate="none", out=on.out),
    "softmax": lambda on: torch.softmax(on.x.view(-1, ROW), -1, out=on.out.view(-1, ROW)),
    "layer norm": lambda on: layer_norm(on.x.view(-1, ROW), (ROW,), on.y[:ROW], on.y[:ROW]),
}
# The tensors of full length that an operation reads and writes: only those of the same mix share a bandwidth.
MIXES = {
    "one read, one written": ("relu", "negative", "scale"),
    "two read, one written": ("add", "multiply", "maximum"),
    "read only": ("sum", "largest", "dot", "matvec"),
}
FULL_TENSORS = {"relu": 2, "negative": 2, "scale": 2, "add": 3, "multiply": 3, "maximum": 3}
FULL_TENSORS |= {"sum": 1, "largest": 1, "dot": 2, "matvec": 1}
