"""A call of an operator: the operator, and a shape for each tensor among its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


class Shape(NamedTuple):
    """The properties of a tensor that a kernel's scratch depends on."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def filled(self) -> Tensor:
        """A real tensor of ones, or of zeros if integers, which may be indices."""
        steps = zip(self.size, self.stride, strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps)
        if 0 in self.size:
            extent = 0
        is_number = self.dtype.is_floating_point or self.dtype.is_complex
        flat = torch.full((extent,), int(is_number), dtype=self.dtype, device=self.device)
        return flat.as_strided(self.size, self.stride)


@dataclass(frozen=True)
class Call:
    """An operator with its arguments, a `Shape` for each tensor: equal calls have equal scratch."""

    operator: Any
    leaves: tuple[Any, ...]
    # Torch 2.6 cannot hash it.
    structure: TreeSpec = field(hash=False)
    # An LSTM keeps a workspace only where gradients are wanted.
    grad_mode: bool

    def arguments(self) -> Any:
        """The arguments, by place and by name, with a real tensor for each `Shape`."""
        return filled(self.shapes())

    def shapes(self) -> Any:
        """The arguments, by place and by name, with a `Shape` for each tensor."""
        return tree_unflatten(self.leaves, self.structure)


def filled(shapes: Any) -> Any:
    """The same nest of containers with a real tensor for each `Shape`."""
    if isinstance(shapes, Shape):
        return shapes.filled()
    if isinstance(shapes, list | tuple):
        return type(shapes)(map(filled, shapes))
    if isinstance(shapes, dict):
        return {name: filled(each) for name, each in shapes.items()}
    return shapes


def call_of(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> Call:
    leaves, structure = tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
    return Call(operator, tuple(map(_shape_of, leaves)), structure, torch.is_grad_enabled())


def _shape_of(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return Shape(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device.type)
