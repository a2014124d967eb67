"""The parameters and buffers of a module, each once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from prooflops.model.step_memory import bytes_of


@dataclass(frozen=True)
class TensorGroup:
    """The tensors of one role (trained, frozen, buffer) and dtype."""

    role: str
    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """The parameters and buffers of a module, each tensor once.

    `tied` are further names of parameters that are counted already.
    """

    groups: tuple[TensorGroup, ...]
    tied: tuple[str, ...]

    @property
    def parameters(self) -> int:
        return sum(each.elements for each in self.groups if each.role != "buffer")

    @property
    def trained(self) -> int:
        return sum(each.elements for each in self.groups if each.role == "trained")

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.groups)


def inventory_of(module: torch.nn.Module) -> Inventory:
    """Parameters and buffers by role and dtype."""
    found: defaultdict[tuple[str, str], list[Tensor]] = defaultdict(list)
    roles = [("trained" if each.requires_grad else "frozen", each) for each in module.parameters()]
    for role, tensor in [*roles, *(("buffer", each) for each in module.buffers())]:
        found[role, str(tensor.dtype).removeprefix("torch.")].append(tensor)
    groups = []
    for (role, dtype), tensors in found.items():
        elements = sum(each.numel() for each in tensors)
        groups.append(TensorGroup(role, dtype, len(tensors), elements, bytes_of(tensors)))
    first = {name for name, _ in module.named_parameters()}
    every = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return Inventory(
        groups=tuple(groups),
        tied=tuple(name for name in every if name not in first),
    )
