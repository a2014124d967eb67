"""Autocast on a CUDA device that is not there: the casts that torch makes in C++ for CUDA tensors.

C++ casts only tensors that it sees on CUDA, and fake ones without a GPU are on the meta device to
it. Here the same operators are wrapped in Python, with the same rules. Some run in the lower
precision, some in fp32, some in the widest dtype of their arguments. The cast of a parameter is
kept until autocast ends.
Source: autocast.json, from aten/src/ATen/autocast_mode.h (torch 2.13).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

OPERATORS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("autocast.json").read_text(encoding="utf-8")
)
_KEY = torch._C.DispatchKey.AutocastCUDA
Wrapped = Callable[..., Any]


class Casts:
    """The casts that one block of code makes, and those of parameters that it keeps."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def to_lower(self, tensor: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda")
        if not _is_eligible(tensor) or tensor.dtype == dtype:
            return tensor
        is_kept = tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        if not (is_kept and tensor.dtype == torch.float32 and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = tensor, tensor.to(dtype)
        return self._kept[id(tensor)][1]

    def clear(self) -> None:
        self._kept.clear()


def to_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if _is_eligible(tensor) else tensor


def _is_eligible(tensor: Tensor) -> bool:
    is_number = tensor.is_floating_point() and tensor.dtype != torch.float64
    return is_number and tensor.device.type == "cuda"


@contextmanager
def autocast_of_cuda() -> Iterator[None]:
    """Makes `torch.autocast("cuda")` do for fake CUDA tensors what it does on a device."""
    casts = Casts()
    clear_autocast_cache = torch.clear_autocast_cache

    def cleared() -> None:
        casts.clear()
        clear_autocast_cache()

    with ExitStack() as stack:
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        # Torch warns that its own kernels are replaced.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        for name, wrapped in _wrapped(casts).items():
            library.impl(name, wrapped, "AutocastCUDA")
        common = torch.cuda.amp.common
        stack.enter_context(patch.object(common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch.cuda, "is_bf16_supported", lambda *_: True))
        stack.enter_context(patch.object(torch, "clear_autocast_cache", cleared))
        yield


def _wrapped(casts: Casts) -> dict[str, Wrapped]:
    ways: dict[str, Callable[[Any], Wrapped]] = {
        "lower precision": partial(_cast, casts.to_lower),
        "fp32": partial(_cast, to_fp32),
        "fp32 by dtype": _with_dtype,
        "widest": _promoted,
    }
    found = {}
    for way, names in OPERATORS.items():
        for name in names:
            operator = _operator(name)
            if operator is not None:
                found[name] = ways[way](operator)
    return found


def _operator(name: str) -> Any:
    """The operator of this name and overload; None on a torch without it."""
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return getattr(found, overload or "default", None)


def _without_autocast(operator: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
        return operator(*args, **kwargs)


def _cast(cast: Callable[[Tensor], Tensor], operator: Any) -> Wrapped:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # Casts are made with autocast off, as they must not be cast themselves.
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
            return operator(*args, **kwargs)

    return wrapped


def _with_dtype(operator: Any) -> Wrapped:
    """Requests a result in fp32 from the operator itself, unless a dtype is requested."""
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype", args[place] if len(args) > place else None)
        if given is None and _is_eligible(args[0]):
            args = args[:place]
            kwargs = {**kwargs, "dtype": torch.float32}
        return _without_autocast(operator, args, kwargs)

    return wrapped


def _promoted(operator: Any) -> Wrapped:
    """Casts all tensors to fp32 where one is, else to the lower precision that they are in."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_wide = any(each.dtype == torch.float32 for each in tensors if _is_eligible(each))
        if is_wide:
            return _cast(to_fp32, operator)(*args, **kwargs)
        return _without_autocast(operator, args, kwargs)

    return wrapped
