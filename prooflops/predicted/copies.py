"""Copies of modules and inputs as they lie in memory: strides, storage offset and whole storage."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)


def copy_of(tensor: Tensor, device: str | torch.device) -> Tensor:
    """A leaf on `device` that lies there as `tensor` does: fake within `memory`, else its values.

    The storage is copied whole, so that a view of a larger tensor holds all of it, as it does where
    it is; clone the view to hold its own elements alone. A tensor on the meta device, which has no
    values, becomes zeros, which any table can look up. Raises TypeError, by name, for a nested or
    sparse tensor, a quantised one and other subclasses, which this cannot lay out.
    """
    refuse_unless_strided(tensor, "a tensor of the inputs or targets")
    storage = tensor.untyped_storage()
    elements = storage.nbytes() // tensor.element_size()
    with torch.no_grad():
        base = torch.empty(elements, dtype=tensor.dtype, device=device)
        copied = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        if not isinstance(copied, FakeTensor):
            _fill(base, tensor)
    return copied.requires_grad_(tensor.requires_grad)


def _fill(base: Tensor, tensor: Tensor) -> None:
    if tensor.is_meta:
        base.zero_()
    else:
        whole = tensor.detach().as_strided((base.numel(),), (1,), 0)
        base.copy_(whole)


def fake_copy(module: nn.Module, device: str | torch.device) -> nn.Module:
    """A copy of `module` with fake parameters and buffers on `device`, for the block of `memory`.

    A module on the meta device takes no memory, whatever its size. Shared parameters and storages
    stay shared, strides and offsets as they are; gradients are not copied. Raises TypeError for a
    parameter that is no plain tensor.
    """
    bases: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        refuse_unless_strided(tensor, "a tensor of the module")
        storage = tensor.untyped_storage()
        if storage._cdata not in bases:
            elements = storage.nbytes() // tensor.element_size()
            bases[storage._cdata] = torch.empty(elements, dtype=tensor.dtype, device=device)
        base = bases[storage._cdata].view(tensor.dtype)
        copy = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    own = [leaf for part in module.modules() for leaf in tree_leaves(vars(part))]
    tensors = [leaf for leaf in own if isinstance(leaf, Tensor)]
    every = {id(each): each for each in (*module.parameters(), *module.buffers(), *tensors)}
    with torch.no_grad():
        memo: dict[int, Any] = {number: fake(tensor) for number, tensor in every.items()}
    return deepcopy(module, memo)


def refuse_unless_strided(tensor: Tensor, what: str) -> None:
    """Raises TypeError for a tensor whose bytes do not follow from its strides."""
    kind = type(tensor).__name__
    if tensor.is_nested:
        kind = f"nested {kind} ({tensor.layout})"
    elif tensor.layout != torch.strided:
        kind = f"sparse {kind} ({tensor.layout})"
    elif type(tensor) in PLAIN_TYPES and not tensor.is_quantized:
        return
    raise TypeError(f"{what} must be plain and strided, got a {kind} of shape {_shape_of(tensor)}")


def _shape_of(tensor: Tensor) -> str:
    return "varying lengths" if tensor.is_nested else str(tuple(tensor.shape))
