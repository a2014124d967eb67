"""Each operator that the lecture's programs call (meta_tests/recorded/operators.txt), with one property wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from meta_tests.conftest import recorded
from meta_tests.faults import fault, stand_in

PROPERTIES = {
    "creates": ("value", "element", "gradient", "dtype"),
    "views": ("value", "element", "gradient", "dtype", "strides", "aliasing"),
    "draws": ("value", "element", "dtype"),
    "writes": ("value", "element", "aliasing"),
}
Call = Callable[..., Any]
RIGHT = {
    name: getattr(torch.Tensor, name)
    for name in ("mul_", "add_", "clone", "to", "as_strided", "copy_", "view_as")
}


@contextmanager
def unseen() -> Iterator[None]:
    """What is spoilt here is neither counted nor differentiated."""
    with _disable_current_modes(), torch.no_grad():
        yield


class ScaledGradient(torch.autograd.Function):
    """Its argument, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return RIGHT["view_as"](x, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        with unseen():
            return RIGHT["mul_"](RIGHT["clone"](gradients[0]), ctx.factor), None


def times(y: torch.Tensor, factor: float) -> None:
    with unseen():
        if y.dtype.is_floating_point and y.element_size() > 1:
            RIGHT["mul_"](y.data, factor)
        elif y.dtype != torch.bool and not y.dtype.is_floating_point:
            RIGHT["mul_"](y.data, int(2 * factor - 1))


def one_more(y: torch.Tensor) -> None:
    with unseen():
        if y.numel() and (y.element_size() > 1 or not y.dtype.is_floating_point):
            first = RIGHT["as_strided"](y.data, (1,), (1,))
            RIGHT["add_"](first, y.dtype == torch.bool or 1)


def of_another_type(y: torch.Tensor) -> torch.Tensor:
    return RIGHT["to"](y, torch.float64 if y.dtype == torch.float32 else torch.float32)


def every_second(y: torch.Tensor) -> torch.Tensor:
    """The same values, each two apart from the next one in memory."""
    if y.dim() == 0 or y.is_meta:
        return y
    with _disable_current_modes():
        room = torch.empty((*y.shape, 2), dtype=y.dtype, device=y.device)[..., 0]
        return RIGHT["copy_"](room, y)


def spoil(kind: str, wrong: str) -> Call:
    """A stand-in for an operator of this kind with this property wrong."""

    def spoilt(original: Call, *args: Any, **kwargs: Any) -> Any:
        if wrong == "gradient":
            args = scaled(args, 2.0)
        if wrong == "aliasing" and kind == "writes":
            args = (RIGHT["clone"](args[0]), *args[1:])
        result = original(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or type(result) not in (
            torch.Tensor,
            torch.nn.Parameter,
        ):
            return result
        if wrong == "value":
            times(result, 1.5)
        elif wrong == "element":
            one_more(result)
        elif wrong == "dtype":
            return of_another_type(result)
        elif wrong == "strides":
            return every_second(result)
        elif wrong == "aliasing" and kind == "views":
            return RIGHT["clone"](result)
        return result

    return spoilt


def scaled(args: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    """The arguments, of which the first that is differentiated gets a wrong gradient."""
    for place, x in enumerate(args):
        if isinstance(x, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in x):
            return (*args[:place], scaled(tuple(x), factor), *args[place + 1 :])
        if isinstance(x, torch.Tensor) and x.requires_grad:
            wrong = ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call]
            return (*args[:place], wrong, *args[place + 1 :])
    return args


for operator, row in recorded("operators.txt").items():
    kind, *words = row.split()
    targets = [word for word in words if word.startswith("torch.")]
    for wrong, check in zip(PROPERTIES[kind], words[len(targets) :], strict=True):
        plants = [stand_in(target, spoil(kind, wrong)) for target in targets]
        if check != "-":
            fault(check, name=f"{operator}-{wrong}")(
                lambda patch, plants=plants: [plant(patch) for plant in plants]
            )
