"""Products with a sparse matrix: FLOPs and bytes follow from the elements that it stores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prooflops.counted.tensors import NotStridedError, bytes_of
from prooflops.trace import tensors_in

PRODUCTS = {"mm", "mv", "bmm", "hspmm", "_sparse_mm_reduce_impl"}
ADDED_TO_FIRST_ARGUMENT = {"addmm", "addmv", "_sparse_addmm", "sparse_sampled_addmm"}
# The methods that give a layout's elements, or blocks of them, and their places.
PARTS = {
    torch.strided: ("detach",),
    torch.sparse_coo: ("_values", "_indices"),
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr), ("values", "crow_indices", "col_indices")
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc), ("values", "ccol_indices", "row_indices")
    ),
}


def sparse_flops(operator: str, out: Any, args: Any) -> int | None:
    """FLOPs of a product with a sparse factor; None for two sparse factors, and no product.

    Each stored element multiplies a row or a column of the dense factor. In a sampled product it is
    the result that stores them: each is a row times a column.
    """
    name = operator.removeprefix("aten.").removesuffix("_")
    if name not in PRODUCTS | ADDED_TO_FIRST_ARGUMENT:
        return None
    a, b = args[1:3] if name in ADDED_TO_FIRST_ARGUMENT else args[:2]
    if name == "sparse_sampled_addmm":
        return 2 * _parts(out)[0].numel() * int(a.shape[-1])
    if (a.layout is torch.strided) == (b.layout is torch.strided):
        return None
    if b.layout is torch.strided:
        return 2 * _parts(a)[0].numel() * (int(b.shape[-1]) if b.dim() > 1 else 1)
    return 2 * _parts(b)[0].numel() * int(a.shape[-2])


def stored_bytes(tree: Any) -> int:
    """Bytes of dense tensors, and of the elements and indices of sparse ones.

    Raises NotStridedError for others.
    """
    return sum(bytes_of(part) for tensor in tensors_in(tree) for part in _parts(tensor))


def _parts(tensor: Tensor) -> list[Tensor]:
    if tensor.layout not in PARTS:
        raise NotStridedError
    return [getattr(tensor, name)() for name in PARTS[tensor.layout]]
