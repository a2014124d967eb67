"""Each operator that the lecture's programs call, with one property wrong.

TABLE gives an operator, the names under which programs call it, and for each property in the order of PROPERTIES the
claim that notices when it is wrong; "-" where the claims say nothing of it: one drawn number of many, the dtype of some
results, or what is right all the same (1.5 times 0).
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from meta_tests.faults import fault

PROPERTIES = {
    "creates": ("value", "element", "gradient", "dtype"),
    "views": ("value", "element", "gradient", "dtype", "strides", "aliasing"),
    "draws": ("value", "element", "dtype"),
    "writes": ("value", "element", "aliasing"),
}
TABLE = {
    "creates": """
matmul torch.matmul torch.mm torch.Tensor.matmul torch.Tensor.mm torch.Tensor.__matmul__ matmul.2d matmul.4d-by-2d
    grad.six-micro-ops amp.autocast
linear torch.nn.functional.linear module.linear-class module.linear-class grad.no-manual amp.ex-bf16-linear-32
layer_norm torch.nn.functional.layer_norm grad.no-manual grad.no-manual grad.no-manual grad.graph-built-in-forward
softmax torch.softmax torch.Tensor.softmax grad.no-manual grad.no-manual grad.no-manual amp.recipe-not-switch
attention torch.nn.functional.scaled_dot_product_attention grad.no-manual grad.no-manual grad.no-manual amp.autocast
triu torch.triu torch.Tensor.triu torch.tril torch.Tensor.tril grad.no-manual storage.triu-causal grad.no-manual -
where torch.where torch.Tensor.where torch.Tensor.masked_fill grad.no-manual grad.no-manual grad.no-manual -
gelu torch.nn.functional.gelu flops.elementwise flops.elementwise grad.no-manual flops.elementwise
dropout torch.nn.functional.dropout loop.train-mode loop.train-mode loop.train-mode storage.elementwise-new
cross_entropy torch.nn.functional.cross_entropy grad.no-manual grad.no-manual grad.no-manual amp.autocast
sum torch.sum torch.Tensor.sum dtype.e5m2-layout dtype.e5m2-layout amp.gradscaler -
mean torch.mean torch.Tensor.mean dtype.bf16-sweet-spot dtype.bf16-sweet-spot grad.no-manual -
norm torch.norm torch.Tensor.norm torch.linalg.vector_norm dtype.bf16-resolution dtype.bf16-resolution grad.no-manual
    amp.autocast
add torch.add torch.Tensor.add torch.Tensor.__add__ flops.add flops.add grad.quadratic-example roof.gelu
mul torch.mul torch.Tensor.mul torch.Tensor.__mul__ dtype.bf16-sweet-spot dtype.bf16-resolution
    dtype.fp16-not-for-big-models dtype.bf16-sweet-spot
div torch.div torch.Tensor.div torch.Tensor.__truediv__ dtype.fp8-tradeoff dtype.fp8-tradeoff grad.no-manual
    dtype.lower-is-less-accurate
sqrt torch.sqrt torch.Tensor.sqrt torch.Tensor.rsqrt storage.pow-sqrt-rsqrt storage.pow-sqrt-rsqrt grad.no-manual -
pow torch.pow torch.Tensor.pow torch.Tensor.__pow__ torch.Tensor.square grad.linear-mse-example grad.linear-mse-example
    grad.linear-mse-example amp.autocast
cat torch.cat torch.stack dtype.bf16-resolution dtype.bf16-resolution grad.no-manual data.batch-shift
clone torch.clone torch.Tensor.clone optim.history optim.history grad.no-manual storage.views-free
cast torch.Tensor.to torch.Tensor.float torch.Tensor.half torch.Tensor.bfloat16 torch.Tensor.double
    dtype.bf16-resolution dtype.bf16-resolution grad.no-manual device.move-forms
""",
    "draws": """
ones torch.ones torch.ones_like torch.full torch.full_like dtype.fp8-h100-only dtype.fp8-h100-only tensor.ex-5x10-fp16
zeros torch.zeros torch.zeros_like torch.Tensor.new_zeros - optim.adam-combo tensor.example-4x8
arange torch.arange storage.arange-3x4 storage.arange-3x4 tensor.default-float32
rand torch.rand torch.rand_like dtype.fp4-block-scale-range - grad.backward-4BN
randn torch.randn torch.randn_like dtype.bf16-sweet-spot - device.allocated-8192
randint torch.randint data.batch-shift data.batch-shift data.batch-shift
randperm torch.randperm matmul.tensor-cores-default matmul.tensor-cores-default matmul.tensor-cores-default
""",
    "views": """
index torch.Tensor.__getitem__ grad.no-manual grad.no-manual grad.no-manual tensor.nbytes-formula amp.autocast
    storage.slices-are-views
view torch.Tensor.view torch.Tensor.reshape torch.Tensor.flatten torch.reshape storage.view-2x3-3x2 storage.view-2x3-3x2
    grad.no-manual storage.view-2x3-3x2 storage.view-2x3-3x2 storage.view-2x3-3x2
transpose torch.Tensor.transpose torch.transpose torch.Tensor.t torch.Tensor.permute matmul.rearrange-inverse
    matmul.rearrange-inverse grad.no-manual dtype.fp8-h100-only storage.transpose-noncontig storage.mutation-propagates
expand torch.Tensor.expand torch.Tensor.expand_as storage.mutation-propagates grad.no-manual grad.no-manual
    tensor.nbytes-formula tensor.nbytes-formula tensor.nbytes-formula
detach torch.Tensor.detach optim.sgd-none optim.sgd-none - module.parameter storage.views-free storage.views-free
""",
    "writes": """
copy_ torch.Tensor.copy_ module.linear-class module.linear-class tensor.uninitialised-then-init
normal_ torch.Tensor.normal_ torch.nn.init.normal_ torch.nn.init.trunc_normal_ init.trunc-3 init.0.02
    tensor.uninitialised-then-init
uniform_ torch.Tensor.uniform_ torch.nn.init.uniform_ torch.nn.init.kaiming_uniform_ init.xavier-constant -
    device.default-cpu
scatter_ torch.Tensor.scatter_ torch.Tensor.scatter torch.Tensor.put_ rand.as-well-as-you-can rand.as-well-as-you-can
    rand.as-well-as-you-can
add_ torch.Tensor.add_ optim.sgd-none optim.sgd-none optim.sgd-none
mul_ torch.Tensor.mul_ optim.history optim.history optim.state-keyed
zero_ torch.Tensor.zero_ - init.0.02 tensor.uninitialised-then-init
""",
}
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


def spoil(kind: str, wrong: str) -> Call:
    """A stand-in for an operator of this kind with this property wrong."""

    def stand_in(original: Call, *args: Any, **kwargs: Any) -> Any:
        if wrong == "gradient":
            args = scaled(args, 2.0)
        if wrong == "aliasing" and kind == "writes":
            args = (RIGHT["clone"](args[0]), *args[1:])
        result = original(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or type(result) not in (torch.Tensor, torch.nn.Parameter):
            return result
        if wrong == "value":
            times(result, 1.5)
        elif wrong == "element":
            one_more(result, 1.0)
        elif wrong == "dtype":
            return of_another_type(result)
        elif wrong == "strides":
            return every_second(result)
        elif wrong == "aliasing" and kind == "views":
            return RIGHT["clone"](result)
        return result

    return stand_in


def scaled(args: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    """The arguments, of which the first that is differentiated gets a wrong gradient."""
    for place, x in enumerate(args):
        if isinstance(x, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in x):
            return (*args[:place], scaled(tuple(x), factor), *args[place + 1 :])
        if isinstance(x, torch.Tensor) and x.requires_grad:
            wrong = ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call]
            return (*args[:place], wrong, *args[place + 1 :])
    return args


def stand_in_for(original: Call, stand_in: Call) -> Call:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return stand_in(original, *args, **kwargs)

    return replacement


def plant(stand_in: Call, targets: list[str], patch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in for each of these functions."""
    for target in targets:
        path, _, name = target.rpartition(".")
        holder = pkgutil.resolve_name(path)
        original = getattr(holder, name)
        patch.setattr(holder, name, stand_in_for(original, stand_in))


for kind, table in TABLE.items():
    for row in table.strip().replace("\n    ", " ").splitlines():
        operator, *words = row.split()
        targets = [word for word in words if word.startswith("torch.")]
        for wrong, check in zip(PROPERTIES[kind], words[len(targets) :], strict=True):
            if check != "-":
                fault(check, name=f"{operator}-{wrong}")(functools.partial(plant, spoil(kind, wrong), targets))
