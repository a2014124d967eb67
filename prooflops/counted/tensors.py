"""The bytes of the elements of tensors."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from prooflops.trace import tensors_in


class NotStridedError(Exception):
    """A sparse or nested tensor, whose shape tells neither its bytes nor its operators' FLOPs."""


def bytes_of(tree: Any) -> int:
    """Bytes of the distinct elements of these tensors.

    An expanded tensor has fewer elements than its shape says.

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
