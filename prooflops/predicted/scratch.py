"""Temporary workspace ("scratch") per operator: which operators have none, and a measurement for the others.

A kernel may hold scratch from its call until it returns: an unfolded image, a block per thread, a packed matrix. It
does not follow from the shapes, so one call of the operator is measured, alone on the device.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from prooflops import measured


class Shape(NamedTuple):
    """The properties of a tensor that a kernel's scratch depends on."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def filled(self) -> Tensor:
        """A real tensor of ones, or of zeros if integers, which may be indices."""
        extent = 1 + sum(
            (size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True)
        )
        fill = 1 if self.dtype.is_floating_point or self.dtype.is_complex else 0
        flat = torch.full(
            (extent if 0 not in self.size else 0,), fill, dtype=self.dtype, device=self.device
        )
        return flat.as_strided(self.size, self.stride)


@dataclass(frozen=True)
class Call:
    """An operator with its arguments, a `Shape` for each tensor: calls that are equal have equal scratch."""

    operator: Any
    leaves: tuple[Any, ...]
    structure: TreeSpec = field(hash=False)  # of torch 2.6, it cannot be hashed
    grad_mode: bool  # an LSTM keeps a workspace only where gradients are wanted

    def arguments(self) -> Any:
        """The arguments, by place and by name, with a real tensor for each `Shape`."""
        leaves = [leaf.filled() if isinstance(leaf, Shape) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.structure)

    def result(self, args: Any, kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.grad_mode):
            return self.operator(*args, **kwargs)


def call_of(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> Call:
    leaves, structure = tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
    shapes = tuple(
        Shape(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device.type)
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    )
    return Call(operator, shapes, structure, torch.is_grad_enabled())


# --- operators without scratch ----------------------------------------------------------------------------------------

BLOCK = 60 * 60  # elements through which a matrix is copied transposed
# On the CPU these hold next to nothing beyond their outputs: boxed numbers, a number per thread in a sum, a `BLOCK` in
# a transposed copy. The same is true of their in-place forms, whose names end in _. Those that
# "copy" hold a copy of each operand that is not contiguous; what the "contiguous" ones do with such is not known.
WITHOUT_SCRATCH: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("without_scratch.json").read_text(encoding="utf-8")
)
CHOOSE = frozenset({"where", "masked_fill"})  # by a condition
# None in 32 and 64 bits only: some cast 16-bit numbers first, and oneDNN packs 16-bit matrices (with AVX-512).
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


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
    if (name in WITHOUT_SCRATCH["contiguous"] and strided) or (
        operator._opname == "normal" and tensors
    ):
        return None  # of a mean that is a tensor, unlike normal_
    if is_pointwise or name in WITHOUT_SCRATCH["of one dtype"]:
        # Operands of other dtypes, and integers of which the function is none, are cast first; a condition is not.
        made = [
            leaf
            for leaf in tree_leaves(out)
            if isinstance(leaf, Tensor) and leaf.dtype != torch.bool
        ]
        if (
            len(
                {tensor.dtype for tensor in (*tensors, *made)}
                - ({torch.bool} if name in CHOOSE else set())
            )
            > 1
        ):
            return None
    if is_pointwise or name in WITHOUT_SCRATCH["moves"]:
        return 0
    if any(tensor.is_floating_point() and tensor.element_size() < 4 for tensor in tensors):
        return None
    if name in PRODUCTS:  # oddly strided matrices are copied
        return (
            0 if all(_is_ready_for_blas(tensor) for tensor in tensors if tensor.dim() > 1) else None
        )
    if name in WITHOUT_SCRATCH["copy"]:
        blocks = [
            BLOCK * tensor.element_size() * _is_copied_in_blocks(tensor) for tensor in strided
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in strided) + max(
            blocks, default=0
        )
    if name == "mse_loss" and (*args, 1)[2]:  # the squares, beside the storage that the loss keeps
        return int(args[0].numel() * args[0].element_size())
    return 0 if name in WITHOUT_SCRATCH["reductions and tables"] else None


def _is_copied_in_blocks(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.stride() == (1, len(tensor)) and tensor.numel() >= BLOCK


def _is_ready_for_blas(matrix: Tensor) -> bool:
    (*_, rows, columns), (*_, down, right) = matrix.shape, matrix.stride()
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))


# --- outputs that fake tensors get wrong ------------------------------------------------------------------------------

# Fake tensors give oneDNN's LSTM wrong outputs: an empty workspace for the backward pass, one storage for the gradients
# of both biases. A call of the kernel itself gives their sizes.
WRONGLY_FAKED = frozenset({"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"})
# The CPU's kernel keeps an element more than its fake; a call of it is not worth a refusal where none is allowed.
NEARLY_FAKED = frozenset({"aten::_embedding_bag"})
# The kernels of norms return mean and deviation, and the gradients of weight and bias, in the dtype of the weights, the
# gradient of the input in its own, in rows or with channels last; fake ones may have others.
NORMS = ("aten::native_batch_norm", "aten::native_group_norm", "aten::native_layer_norm")

# The kernels of these losses reduce their terms into the first of them, and so keep the storage of all; that of a sum
# of patches starts as large as they are.
KEEPS_ITS_TERMS = frozenset(
    {
        "aten::mse_loss",
        "aten::smooth_l1_loss",
        "aten::soft_margin_loss",
        "aten::binary_cross_entropy",
        "aten::col2im",
    }
)


def with_strides_of_kernel(name: str, args: tuple[Any, ...], out: Any) -> Any:
    """The gradient in the order of its kernel's loops; a fake one is composed, which may follow another operand."""
    operands = [leaf for leaf in args if isinstance(leaf, Tensor) and leaf.dim()]
    if (
        not isinstance(out, Tensor)
        or any(leaf.shape != out.shape for leaf in operands)
        or not operands
    ):
        return out
    in_rows = torch.empty(out.shape, device="meta").stride()
    strides = in_rows if "softmax" in name else compute_elementwise_output_strides(*operands)
    return (
        out if out.stride() == strides else torch.empty_strided(out.shape, strides, dtype=out.dtype)
    )


def with_storage_of_terms(args: tuple[Any, ...], out: Tensor) -> Tensor:
    """The loss or sum in a storage of as many elements as it reduces."""
    terms = args[0].numel()
    return out if out.numel() >= terms else out.new_empty(terms).as_strided(out.shape, out.stride())


def with_tensors_of_norm(operator: Any, args: tuple[Any, ...], out: Any) -> Any:
    """The outputs of a norm, or of its backward pass, in the dtypes and the order of its kernel on the CPU."""
    given = {
        argument.name: value
        for argument, value in zip(operator._schema.arguments, args, strict=False)
    }
    (first, *others), of_input, weight = out, given["input"], given["weight"]
    if not given.get("output_mask", (True,))[0]:
        first = None
    elif first is not None:
        order = suggest_memory_format(of_input)
        first = torch.empty(first.shape, dtype=of_input.dtype, memory_format=order)
    dtype = of_input.dtype if weight is None else weight.dtype
    return first, *(x if x is None else x.new_empty(x.shape, dtype=dtype) for x in others)


def with_real_sizes(call: Call, out: Any, measures: bool) -> Any:
    """`out` with the sizes that a call of the kernel returns."""
    if not measures:
        raise RuntimeError(
            f"{call.operator} returns sizes that only the kernel knows: use scratch=True, which runs it"
        )
    with _disable_current_modes():
        real = tree_leaves(call.result(*call.arguments()))
    leaves, structure = tree_flatten(out)
    resized = [
        fake.new_empty(leaf.untyped_storage().nbytes() // leaf.element_size()).as_strided(
            leaf.shape, leaf.stride()
        )
        if isinstance(fake, Tensor)
        else fake
        for fake, leaf in zip(leaves, real, strict=True)
    ]
    return tree_unflatten(resized, structure)


# --- one call of each kernel ------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """The bytes that one call of an operator was measured to hold on the device."""

    scratch_bytes: int  # at its own peak, beyond its outputs
    output_bytes: tuple[int, ...]  # of the storages that it returns and was not given


_kernels: dict[tuple[str, int, Call], Kernel] = {}  # measured in this process


def kernels_of(calls: Iterable[Call], device: str) -> dict[Call, Kernel]:
    """The scratch and outputs of each call, measured once in this process."""
    keys = {call: (device, torch.get_num_threads(), call) for call in calls}
    missing = [call for call, key in keys.items() if key not in _kernels]
    outputs = []
    with measured.memory(device) as held:
        for number, call in enumerate(missing):
            args, kwargs = call.arguments()
            call.result(
                args, kwargs
            )  # after one unmeasured call, which may allocate what later ones reuse
            held.mark(f"inputs {number}")
            out = call.result(args, kwargs)
            given = {
                leaf.untyped_storage()._cdata
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, Tensor)
            }
            storages = [
                leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)
            ]
            outputs.append(
                tuple({s._cdata: s.nbytes() for s in storages if s._cdata not in given}.values())
            )
            held.mark(f"call {number}")
            del out, storages, args, kwargs
    for number, (call, sizes) in enumerate(zip(missing, outputs, strict=True)):
        before = held.phases[f"inputs {number}"].live_bytes
        peak = held.phases[f"call {number}"].peak_bytes
        _kernels[keys[call]] = Kernel(peak - before - sum(sizes), sizes)
    return {call: _kernels[key] for call, key in keys.items()}
