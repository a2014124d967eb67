"""Temporary workspace ("scratch") per operator: which operators have none, and a measurement for
the others.

A kernel may hold scratch from its call until it returns: an unfolded image, a block per thread, a
packed matrix. It does not follow from the shapes, so one call of the operator is measured
(`prooflops.memory.kernels`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

BLOCK = 60 * 60  # elements through which a matrix is copied transposed
# On the CPU these hold next to nothing beyond their outputs: boxed numbers, a number per thread in
# a sum. The same is true of their in-place forms, whose names end in _. Those that "copy" hold a
# copy of each operand that is not contiguous; what the "contiguous" ones do with such is not known.
WITHOUT_SCRATCH: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("without_scratch.json").read_text(encoding="utf-8")
)
CHOOSE_BY_CONDITION = frozenset({"where", "masked_fill"})
# These hold a `BLOCK` where they copy a transposed matrix into rows.
COPIES = frozenset(
    {
        "_foreach_copy",
        "_to_copy",
        "clone",
        "constant_pad_nd",
        "copy",
        "masked_fill",
        "scatter",
        "scatter_add",
        "select_backward",
        "slice_backward",
    }
)
# None in 32 and 64 bits only: some cast 16-bit numbers first, and oneDNN packs 16-bit matrices
# (with AVX-512).
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
# EmbeddingBag's mode "max", and the bytes of an index.
MAXIMA = 2
INDEX_BYTES = 8
# Repeating keeps a few numbers for each dimension.
REPEAT_BYTES_PER_DIMENSION = 32


def known_scratch(operator: Any, args: Any, device: str, out: Any = None) -> int | None:
    """Bytes that the operator's kernel holds beyond its outputs; None where that is not known."""
    if operator.is_view:
        return 0
    if device != "cpu" or operator.namespace != "aten":
        return None
    name = operator._opname.rstrip("_")
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.dim()]
    strided = [tensor for tensor in tensors if not tensor.is_contiguous()]
    is_pointwise = name in WITHOUT_SCRATCH["pointwise"] or name.startswith("_foreach_")
    if name in WITHOUT_SCRATCH["contiguous"] and strided:
        return None
    # Unlike normal_, whose mean is a number.
    if operator._opname == "normal" and tensors:
        return None
    if is_pointwise or name in WITHOUT_SCRATCH["of one dtype"]:
        # Operands of other dtypes, and integers of which the function is none, are cast first; a
        # condition is not.
        made = [
            leaf
            for leaf in tree_leaves(out)
            if isinstance(leaf, Tensor) and leaf.dtype != torch.bool
        ]
        if (
            len(
                {tensor.dtype for tensor in (*tensors, *made)}
                - ({torch.bool} if name in CHOOSE_BY_CONDITION else set())
            )
            > 1
        ):
            return None
    if name == "repeat":
        return REPEAT_BYTES_PER_DIMENSION * len(args[1])
    block = _block_of_copy(tensors, args[0] if out is None else out) if name in COPIES else 0
    if is_pointwise or name in WITHOUT_SCRATCH["moves"]:
        return block
    if name == "_embedding_bag_backward" and args[8] == MAXIMA:
        return _bytes_of_bags(args[0])
    if any(tensor.is_floating_point() and tensor.element_size() < 4 for tensor in tensors):
        return None
    if name in PRODUCTS:  # oddly strided matrices are copied
        return (
            0 if all(_is_ready_for_blas(tensor) for tensor in tensors if tensor.dim() > 1) else None
        )
    if name in WITHOUT_SCRATCH["copy"]:
        return sum(tensor.numel() * tensor.element_size() for tensor in strided) + _block(strided)
    if name == "mse_loss" and (*args, 1)[2]:  # the squares, beside the storage that the loss keeps
        return int(args[0].numel() * args[0].element_size())
    return block if name in WITHOUT_SCRATCH["reductions and tables"] else None


def _bytes_of_bags(grad: Tensor) -> int:
    """Of the bags that are not empty, taken to be all: which they are, their gradients, and where
    each maximum was. A call with made-up values has empty bags alone.
    """
    copied = 0 if grad.is_contiguous() else grad.nbytes
    return copied + len(grad) * INDEX_BYTES + grad.nbytes + grad.numel() * INDEX_BYTES


def _block_of_copy(tensors: Sequence[Tensor], into: Any) -> int:
    made = [leaf for leaf in tree_leaves(into) if isinstance(leaf, Tensor)]
    in_rows = {each.dtype for each in made if each.is_contiguous()}
    return _block([tensor for tensor in tensors if tensor.dtype in in_rows])


def _block(tensors: Sequence[Tensor]) -> int:
    """Bytes of the largest block through which one of the tensors is copied."""
    sizes = [BLOCK * tensor.element_size() for tensor in tensors if _is_copied_in_blocks(tensor)]
    return max(sizes, default=0)


def _is_copied_in_blocks(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.stride() == (1, len(tensor)) and tensor.numel() >= BLOCK


def _is_ready_for_blas(matrix: Tensor) -> bool:
    (*_, rows, columns), (*_, down, right) = matrix.shape, matrix.stride()
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))
