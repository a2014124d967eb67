"""The modules that are running when an operator is dispatched."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.module_tracker import ModuleTracker

from accounting.counted.result import Tally
from accounting.counted.tensors import tensors_in


class RunningModules(ModuleTracker):
    """Torch's tracker of the running modules, with one tally for each set of them.

    So an operator updates one entry, however deeply its module is nested.
    """

    def __init__(self) -> None:
        self.tallies: dict[frozenset[str], Tally] = {}
        super().__init__()

    @property
    def parents(self) -> set[str]:
        return self._names

    @parents.setter
    def parents(self, names: set[str]) -> None:
        self._names = _Names(names)

    def _fw_pre_hook(self, mod: torch.nn.Module, inputs: Any) -> None:
        """Torch's own hook, except for leaves: it would refuse torch.autograd.grad by the input of a module."""
        name = self._get_mod_name(mod)  # type: ignore[no-untyped-call]
        self._get_append_fn(name, False)()  # type: ignore[no-untyped-call]
        tensors = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
        if tensors:
            leaves = any(tensor.grad_fn is None for tensor in tensors)
            leave = self._get_pop_fn(name, True)  # type: ignore[no-untyped-call]
            self._hooks.append(register_multi_grad_hook(tensors, leave, mode="any" if leaves else "all"))

    def tally(self) -> Tally:
        """The tally of the modules that are running now."""
        tally = self._names.tally
        if tally is None:
            tally = self._names.tally = self.tallies.setdefault(frozenset(self._names), {})
        return tally


class _Names(set[str]):
    """The names of the running modules, and their tally, which is looked up again when the names change."""

    tally: Tally | None = None

    def add(self, name: str) -> None:
        super().add(name)
        self.tally = None

    def remove(self, name: str) -> None:
        super().remove(name)
        self.tally = None
