"""What torch says of a tensor's layout and storage: the other side of every check of `accounting.layout`."""

from __future__ import annotations

import torch

from accounting.layout import Layout
from accounting.measured import MEASURED_DEVICES


def layout_of(x: torch.Tensor) -> Layout:
    """Shape, strides and offset as torch reports them."""
    return Layout(tuple(x.shape), x.stride(), x.storage_offset())


def shares_storage(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two live tensors lie in one allocation."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def places(x: torch.Tensor) -> torch.Tensor:
    """Where each element of `x` lies in its storage, found by numbering the storage and looking through `x`."""
    numbered = torch.arange(x.untyped_storage().nbytes() // x.element_size(), device=x.device)
    return numbered.as_strided(x.shape, x.stride(), x.storage_offset())


def metered(device: torch.device) -> torch.device:
    """`device` where torch counts its allocated bytes, otherwise (mps) the CPU."""
    return device if device.type in MEASURED_DEVICES else torch.device("cpu")
