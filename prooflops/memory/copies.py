"""Copies of modules and inputs as they lie in memory: strides, storage offset and whole storage."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from prooflops.memory.known_values import keep_values

FSDP = "torch.distributed.fsdp"
PLAIN_TYPES = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)


class Copies:
    """Copies on `device` that lie there as the given tensors do.

    Within `predicted_memory` they are fake, else they have the values. A storage is copied whole
    and once: a view of a larger tensor keeps all of it, and what shares memory goes on sharing it.
    Clone a view to keep its own elements alone.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._storages: MutableMapping[int, Tensor] = {}
        self._tensors: MutableMapping[int, Tensor] = {}
        # No other tensor or storage gets the address of one that is alive.
        self._originals: list[Tensor] = []

    def known(self, tensor: Tensor) -> Tensor:
        """The copy that was made of it; the tensor itself if none was."""
        return self._tensors.get(id(tensor), tensor)

    def has(self, tensors: Iterable[Tensor]) -> bool:
        """True if a copy was made of one of them."""
        return any(id(each) in self._tensors for each in tensors)

    def release(self) -> None:
        """Keeps no copy alive any longer: what a module drops is gone."""
        self._storages = WeakValueDictionary(self._storages)
        self._tensors = WeakValueDictionary(self._tensors)

    def tensor(self, tensor: Tensor, what: str = "a tensor of the inputs or targets") -> Tensor:
        """A leaf, or a parameter of a parameter; the same for the same tensor.

        A tensor on the meta device, which has no values, becomes zeros, which any table can look
        up. Raises TypeError, by name, for a nested or sparse tensor, a quantised one and other
        subclasses, which this cannot lay out.
        """
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        if not _is_plain(tensor):
            kind = f"nested {type(tensor).__name__}" if tensor.is_nested else type(tensor).__name__
            raise TypeError(
                f"{what} must be plain and strided, got a {kind} ({tensor.layout}, {tensor.dtype})"
            )
        with torch.no_grad():
            copied = self._laid_out(tensor)
        if isinstance(tensor, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=False)
        if not _has_values(copied):
            keep_values(copied, tensor)
        self._tensors[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
        self._originals.append(tensor)
        return self._tensors[id(tensor)]

    def _laid_out(self, tensor: Tensor) -> Tensor:
        number = tensor.untyped_storage()._cdata
        if number not in self._storages and _fills_its_storage(tensor):
            copied = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
            )
            if _has_values(copied):
                _fill(copied, tensor)
            self._storages[number] = copied
            return copied
        elements = _bytes_of(self._storage(tensor))
        unaligned = elements.numel() % tensor.element_size()
        elements = elements[: elements.numel() - unaligned].view(tensor.dtype)
        copied = elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            copied = copied.conj()
        if tensor.is_neg():
            copied = torch._neg_view(copied)
        return copied.detach()

    def _storage(self, tensor: Tensor) -> Tensor:
        """A copy that fills the copy of the tensor's storage."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            copied = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self._device)
            if _has_values(copied):
                every_byte = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                _fill(copied, every_byte.set_(storage))
            self._storages[storage._cdata] = copied
        return self._storages[storage._cdata]

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of the module, without its gradients.

        Raises TypeError for a part that cannot be copied (`why_not_copied`), and unless its values
        are copied, for a compiled part and a tensor that cannot be laid out.
        """
        if why_not := why_not_copied(module):
            raise TypeError(why_not)
        has_values = _has_values(torch.empty(0, device=self._device))
        if not has_values:
            _refuse_compiled(module)
        own = [leaf for part in module.modules() for leaf in tree_leaves(vars(part))]
        tensors = [leaf for leaf in own if isinstance(leaf, Tensor)]
        every = {id(each): each for each in (*module.parameters(), *module.buffers(), *tensors)}
        memo: dict[int, Any] = {}
        for number, tensor in every.items():
            if _is_plain(tensor) or not has_values:
                memo[number] = self.tensor(tensor, "a tensor of the module")
        if has_values:
            return _deep_copy(module, memo)
        # Objects within the module may hold more.
        copiers = dict.fromkeys(PLAIN_TYPES, lambda tensor, _: self.tensor(tensor))
        with patch.dict(copy._deepcopy_dispatch, copiers):  # type: ignore[attr-defined]
            return _deep_copy(module, memo)

    def tree(self, tree: Any) -> Any:
        """The tensors of nested tuples, lists and dicts as they lie in memory."""
        return tree_map_only(Tensor, self.tensor, tree)


def copy_of(tree: Any, device: str | torch.device) -> Any:
    """Copies the tensors of nested tuples, lists and dicts, laid out alike: see `Copies`."""
    return Copies(device).tree(tree)


def fake_copy(module: nn.Module, device: str | torch.device) -> nn.Module:
    """A copy of `module` with fake parameters and buffers on `device`, for the block of `memory`.

    A module on the meta device needs no memory, whatever its size. Shared parameters and storages
    stay shared, strides and offsets as they are; gradients are not copied. Raises TypeError for a
    parameter that is no plain tensor, and for TorchScript and compiled parts.
    """
    return Copies(device).module(module)


def _refuse_compiled(module: nn.Module) -> None:
    for where, part in _parts(module):
        if "_orig_mod" in part._modules:
            raise TypeError(
                f"{where} is compiled, and only the compiler knows what its graphs keep and fuse; "
                "pass the module as before torch.compile"
            )


def why_not_taken_apart(module: nn.Module) -> str:
    """The part of `module` that is TorchScript, and what to pass instead; else empty."""
    for where, part in _parts(module):
        if isinstance(part, torch.jit.ScriptModule):
            return (
                f"{where} is TorchScript, which can be neither copied nor taken apart here; "
                "pass the torch.nn.Module from which it was scripted or traced"
            )
    return ""


def why_not_copied(module: nn.Module) -> str:
    """The part of `module` that a copy would lack, and what to pass instead; else empty."""
    if why_not := why_not_taken_apart(module):
        return why_not
    for where, part in _parts(module):
        if any(kind.__module__.startswith(FSDP) for kind in type(part).__mro__):
            return (
                f"{where} is sharded by FSDP and cannot be copied; "
                "pass the module as it was before FSDP"
            )
        if vars(part).get("_compiled_call_impl"):
            return (
                f"{where} is compiled in place, and a copy of it would not be; "
                "pass the module as before .compile()"
            )
    return ""


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy of the module. Raises TypeError that names an attribute that has none."""
    try:
        return copy.deepcopy(module, {**memo})
    except Exception as error:  # each class has its own
        for where, part in _parts(module):
            for name, value in vars(part).items():
                if name != "_modules" and not _is_copied(value, memo):
                    raise TypeError(
                        f"{where} has {name!r} of type {type(value).__name__}, which cannot be "
                        f"copied ({error}); pass the module without it"
                    ) from error
        raise


def _is_copied(value: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, {**memo})
    except Exception:
        return False
    return True


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module and its parts, each with its name in a message."""
    for name, part in module.named_modules():
        yield f"its part {name}" if name else f"the {type(part).__name__}", part


def _fill(copied: Tensor, tensor: Tensor) -> None:
    """Gives the copy its values: zeros where the tensor has none."""
    if tensor.is_meta:
        copied.zero_()
    else:
        copied.copy_(tensor)


def _fills_its_storage(tensor: Tensor) -> bool:
    """True if the tensor is plainly laid out and has all that its storage holds."""
    if tensor.is_conj() or tensor.is_neg():
        return False
    is_packed = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return is_packed and tensor.untyped_storage().nbytes() == tensor.nbytes


def _bytes_of(filling: Tensor) -> Tensor:
    """The bytes of a tensor that fills its storage."""
    return filling.as_strided((filling.numel(),), (1,)).view(torch.uint8)


def _has_values(copied: Tensor) -> bool:
    return not (copied.is_meta or isinstance(copied, FakeTensor))


def _is_plain(tensor: Tensor) -> bool:
    """True if the tensor's bytes follow from its strides."""
    is_strided = tensor.layout == torch.strided and not tensor.is_nested
    return is_strided and type(tensor) in PLAIN_TYPES and not tensor.is_quantized
