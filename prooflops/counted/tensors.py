"""The tensors among the arguments of an operator, and the bytes of their elements."""

from __future__ import annotations

from math import prod
from typing import Any

import torch


class NotStridedError(Exception):
    """A sparse or nested tensor, whose shape tells neither its bytes nor its operators' FLOPs."""


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in an argument, or in lists, tuples and dicts of them."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for each in tree for tensor in tensors_in(each)]


def bytes_of(tree: Any) -> int:
    """Bytes of the distinct elements of these tensors: an expanded tensor has fewer than its shape
    says.

    Raises NotStridedError for a sparse or nested tensor.
    """
    if isinstance(tree, torch.Tensor):
        if tree.layout is not torch.strided or tree.is_nested:
            raise NotStridedError
        if 0 in tree.stride():  # expanded: the same element again and again
            own = prod(
                size
                for size, stride in zip(tree.shape, tree.stride(), strict=True)
                if stride or not size
            )
            return own * tree.element_size()
        return tree.numel() * tree.element_size()
    return sum(map(bytes_of, tensors_in(tree)))
