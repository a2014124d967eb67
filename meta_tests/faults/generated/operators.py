"""The operators, by the names under which programs call them, and what can be wrong with each."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

CREATES, DRAWS, VIEWS, WRITES = "creates", "draws", "views", "writes"

# How a result comes about, and the names of the operator. A gradient is that of the first floating argument.
OPERATORS: dict[str, tuple[str, str]] = {
    "matmul": (CREATES, "torch.matmul torch.mm torch.Tensor.matmul torch.Tensor.mm torch.Tensor.__matmul__"),
    "bmm": (CREATES, "torch.bmm torch.Tensor.bmm torch.baddbmm"),
    "mv": (CREATES, "torch.mv torch.Tensor.mv torch.dot torch.Tensor.dot"),
    "einsum": (CREATES, "torch.einsum"),
    "linear": (CREATES, "torch.nn.functional.linear"),
    "conv2d": (CREATES, "torch.nn.functional.conv2d torch.nn.functional.conv1d"),
    "layer_norm": (CREATES, "torch.nn.functional.layer_norm"),
    "softmax": (CREATES, "torch.softmax torch.Tensor.softmax"),
    "log_softmax": (CREATES, "torch.log_softmax torch.Tensor.log_softmax"),
    "attention": (CREATES, "torch.nn.functional.scaled_dot_product_attention"),
    "triu": (CREATES, "torch.triu torch.Tensor.triu torch.tril torch.Tensor.tril"),
    "where": (CREATES, "torch.where torch.Tensor.where torch.Tensor.masked_fill"),
    "embedding": (CREATES, "torch.nn.functional.embedding"),
    "gelu": (CREATES, "torch.nn.functional.gelu"),
    "relu": (CREATES, "torch.relu torch.Tensor.relu torch.nn.functional.relu"),
    "tanh": (CREATES, "torch.tanh torch.Tensor.tanh"),
    "dropout": (CREATES, "torch.nn.functional.dropout"),
    "cross_entropy": (CREATES, "torch.nn.functional.cross_entropy"),
    "mse_loss": (CREATES, "torch.nn.functional.mse_loss"),
    "cumsum": (CREATES, "torch.cumsum torch.Tensor.cumsum"),
    "sum": (CREATES, "torch.sum torch.Tensor.sum"),
    "mean": (CREATES, "torch.mean torch.Tensor.mean"),
    "amax": (CREATES, "torch.amax torch.Tensor.amax"),
    "norm": (CREATES, "torch.norm torch.Tensor.norm torch.linalg.vector_norm"),
    "gather": (CREATES, "torch.gather torch.Tensor.gather"),
    "add": (CREATES, "torch.add torch.Tensor.add torch.Tensor.__add__"),
    "sub": (CREATES, "torch.sub torch.Tensor.sub torch.Tensor.__sub__"),
    "mul": (CREATES, "torch.mul torch.Tensor.mul torch.Tensor.__mul__"),
    "div": (CREATES, "torch.div torch.Tensor.div torch.Tensor.__truediv__"),
    "sqrt": (CREATES, "torch.sqrt torch.Tensor.sqrt torch.Tensor.rsqrt"),
    "pow": (CREATES, "torch.pow torch.Tensor.pow torch.Tensor.__pow__ torch.Tensor.square"),
    "cat": (CREATES, "torch.cat torch.stack"),
    "clone": (CREATES, "torch.clone torch.Tensor.clone"),
    "cast": (CREATES, "torch.Tensor.to torch.Tensor.float torch.Tensor.half torch.Tensor.bfloat16 torch.Tensor.double"),
    "ones": (DRAWS, "torch.ones torch.ones_like torch.full torch.full_like"),
    "zeros": (DRAWS, "torch.zeros torch.zeros_like torch.Tensor.new_zeros"),
    "arange": (DRAWS, "torch.arange"),
    "rand": (DRAWS, "torch.rand torch.rand_like"),
    "randn": (DRAWS, "torch.randn torch.randn_like"),
    "randint": (DRAWS, "torch.randint"),
    "randperm": (DRAWS, "torch.randperm"),
    "index": (VIEWS, "torch.Tensor.__getitem__"),
    "view": (VIEWS, "torch.Tensor.view torch.Tensor.reshape torch.Tensor.flatten torch.reshape"),
    "transpose": (VIEWS, "torch.Tensor.transpose torch.transpose torch.Tensor.t torch.Tensor.permute"),
    "expand": (VIEWS, "torch.Tensor.expand torch.Tensor.expand_as"),
    "detach": (VIEWS, "torch.Tensor.detach"),
    "contiguous": (VIEWS, "torch.Tensor.contiguous"),
    "copy_": (WRITES, "torch.Tensor.copy_"),
    "normal_": (WRITES, "torch.Tensor.normal_ torch.nn.init.normal_ torch.nn.init.trunc_normal_"),
    "uniform_": (WRITES, "torch.Tensor.uniform_ torch.nn.init.uniform_ torch.nn.init.kaiming_uniform_"),
    "scatter_": (WRITES, "torch.Tensor.scatter_ torch.Tensor.scatter torch.Tensor.put_"),
    "add_": (WRITES, "torch.Tensor.add_"),
    "mul_": (WRITES, "torch.Tensor.mul_"),
    "zero_": (WRITES, "torch.Tensor.zero_"),
}
PROPERTIES = {
    CREATES: ("value", "element", "gradient", "dtype", "strides", "aliasing"),
    VIEWS: ("value", "element", "gradient", "dtype", "strides", "aliasing"),
    DRAWS: ("value", "element", "dtype", "strides", "aliasing"),
    WRITES: ("value", "element", "aliasing"),
}
# Not one of all operators: that of a weight, the mask's own diagonal.
FURTHER = ("linear weight-gradient", "attention key-gradient", "triu diagonal")

Call = Callable[..., Any]
RIGHT = {
    name: getattr(torch.Tensor, name) for name in ("mul_", "add_", "clone", "to", "as_strided", "copy_", "view_as")
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


def one_more(y: torch.Tensor, amount: float) -> None:
    with unseen():
        if y.numel() and (y.element_size() > 1 or not y.dtype.is_floating_point):
            first = RIGHT["as_strided"](y.data, (1,), (1,))
            RIGHT["add_"](first, amount if y.dtype != torch.bool else bool(amount))


def of_another_type(y: torch.Tensor) -> torch.Tensor:
    return RIGHT["to"](y, torch.float64 if y.dtype == torch.float32 else torch.float32)


def every_second(y: torch.Tensor) -> torch.Tensor:
    """The same values, each two apart from the next one in memory."""
    if y.dim() == 0 or y.is_meta:
        return y
    with _disable_current_modes():
        room = torch.empty((*y.shape, 2), dtype=y.dtype, device=y.device)[..., 0]
        return RIGHT["copy_"](room, y)


def spoil(kind: str, wrong: str, control: bool) -> Callable[..., Any]:
    """A stand-in for an operator of this kind with this property wrong; with `control` it is as it was."""
    memory: dict[Any, torch.Tensor] = {}

    def stand_in(original: Call, *args: Any, **kwargs: Any) -> Any:
        if wrong == "diagonal" and not control:
            return original(*args[:1], (args[1:] or (kwargs.get("diagonal", 0),))[0] - 1)
        if wrong.endswith("gradient"):
            position = {"weight-gradient": 1, "key-gradient": 1}.get(wrong, 0)
            args = scaled(args, position, 1.0 if control else 2.0)
        if wrong == "aliasing" and kind == WRITES and not control:
            args = (RIGHT["clone"](args[0]), *args[1:])
        result = original(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or type(result) not in (torch.Tensor, torch.nn.Parameter):
            return result
        if wrong == "value":
            times(result, 1.0 if control else 1.5)
        elif wrong == "element":
            one_more(result, 0.0 if control else 1.0)
        elif control:
            return result
        elif wrong == "dtype":
            return of_another_type(result)
        elif wrong == "strides":
            return every_second(result)
        elif wrong == "aliasing" and kind == VIEWS:
            return RIGHT["clone"](result)
        elif wrong == "aliasing" and kind != WRITES and not result.is_meta:
            share(result, memory)
        return result

    return stand_in


def scaled(args: tuple[Any, ...], position: int, factor: float) -> tuple[Any, ...]:
    """The arguments, of which the first from `position` on that is differentiated gets a wrong gradient."""
    for place, x in enumerate(args[position:], position):
        if isinstance(x, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in x):
            return (*args[:place], scaled(tuple(x), 0, factor), *args[place + 1 :])
        if isinstance(x, torch.Tensor) and x.requires_grad:
            wrong = ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call]
            return (*args[:place], wrong, *args[place + 1 :])
    return args


def share(result: torch.Tensor, memory: dict[Any, torch.Tensor]) -> None:
    """Puts a result where the last one of its shape lies."""
    with unseen():
        last = memory.setdefault((result.shape, result.stride(), result.dtype, result.device), result.data)
        if last.data_ptr() != result.data_ptr():
            RIGHT["copy_"](last, result.data)
            result.data = last


def plant(kind: str, names: str, wrong: str, patch: pytest.MonkeyPatch, *, control: bool = False) -> None:
    stand_in = spoil(kind, wrong, control)
    for target in names.split():
        holder = pkgutil.resolve_name(target.rpartition(".")[0])
        original = getattr(holder, target.rpartition(".")[2])

        def replacement(*args: Any, _original: Call = original, **kwargs: Any) -> Any:
            return stand_in(_original, *args, **kwargs)

        patch.setattr(holder, target.rpartition(".")[2], functools.wraps(original)(replacement))


def cell(name: str) -> Callable[..., None]:
    operator, wrong = name.split()
    return functools.partial(plant, *OPERATORS[operator], wrong)


NAMES = [f"{name} {wrong}" for name, (kind, _) in OPERATORS.items() for wrong in PROPERTIES[kind]]
CELLS = {name: cell(name) for name in [*NAMES, *FURTHER]}
