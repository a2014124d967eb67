"""Shapes in annotations: what Python does with them (nothing), and a reader that checks them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def documented_shapes(function: Callable[..., Any]) -> dict[str, str]:
    """The shape that each annotation `Annotated[Tensor, "batch 4"]` states, by argument."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def checked(function: Function) -> Function:
    """Has the documented shapes of the arguments checked: numbers to the letter, equal names to equal sizes."""
    shapes, signature = documented_shapes(function), inspect.signature(function)

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        sizes: dict[str, int] = {}
        arguments = signature.bind(*args, **kwargs).arguments
        for name, documented in shapes.items():
            value, dims = arguments[name], documented.split()
            if len(dims) != value.dim():
                raise TypeError(f"{name} must have the dimensions {dims}, got {tuple(value.shape)}")
            for dim, size in zip(dims, value.shape, strict=True):
                if size != sizes.setdefault(dim, int(dim) if dim.isdigit() else size):
                    raise TypeError(f"{name} must have {dim}={sizes[dim]}, got {size} in {tuple(value.shape)}")
        return function(*args, **kwargs)

    return typing.cast(Function, checking)
