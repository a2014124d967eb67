"""Each operator that the lecture's programs call, with one property wrong.

meta_tests/recorded/operators.txt lists them: a kind, the functions that reach the operator, and for
each property of the kind the check that must notice.
"""

from contextlib import contextmanager
from functools import partial

import torch
from torch.utils._python_dispatch import _disable_current_modes

from meta_tests.conftest import recorded
from meta_tests.faults import fault, stand_in

# The properties that can be wrong, by kind of operator.
PROPERTIES = {
    "creates": ("value", "element", "gradient", "dtype"),
    "views": ("value", "element", "gradient", "dtype", "strides", "aliasing"),
    "draws": ("value", "element", "dtype"),
    "writes": ("value", "element", "aliasing"),
}
# torch's own methods, taken before a fault breaks one that the fault itself calls.
RIGHT = {
    name: getattr(torch.Tensor, name)
    for name in ("mul_", "add_", "clone", "to", "as_strided", "copy_", "view_as")
}


@contextmanager
def unseen():
    """Neither counts nor differentiates what the fault itself does."""
    with _disable_current_modes(), torch.no_grad():
        yield


class ScaledGradient(torch.autograd.Function):
    """Its argument, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return RIGHT["view_as"](x, x)

    @staticmethod
    def backward(ctx, *gradients):
        with unseen():
            return RIGHT["mul_"](RIGHT["clone"](gradients[0]), ctx.factor), None


def times(y, factor):
    """Multiplies in place: floats by the factor, integers by a whole number; fp8 stays."""
    with unseen():
        if y.dtype.is_floating_point and y.element_size() > 1:
            RIGHT["mul_"](y.data, factor)
        elif y.dtype != torch.bool and not y.dtype.is_floating_point:
            RIGHT["mul_"](y.data, int(2 * factor - 1))


def one_more(y):
    """Adds one to the first element alone; fp8 stays."""
    with unseen():
        if y.numel() and (y.element_size() > 1 or not y.dtype.is_floating_point):
            first = RIGHT["as_strided"](y.data, (1,), (1,))
            RIGHT["add_"](first, y.dtype == torch.bool or 1)


def of_another_type(y):
    return RIGHT["to"](y, torch.float64 if y.dtype == torch.float32 else torch.float32)


def every_second(y):
    """The same values, each two apart from the next one in memory."""
    if y.dim() == 0 or y.is_meta:
        return y
    with _disable_current_modes():
        room = torch.empty((*y.shape, 2), dtype=y.dtype, device=y.device)[..., 0]
        return RIGHT["copy_"](room, y)


def spoil(kind, wrong):
    """A stand-in for an operator of this kind with this property wrong."""

    def spoilt(original, *args, **kwargs):
        if wrong == "gradient":
            args = scaled(args, 2.0)
        if wrong == "aliasing" and kind == "writes":
            args = (RIGHT["clone"](args[0]), *args[1:])
        result = original(*args, **kwargs)
        # A list of tensors and a subclass of tensors stay as they are.
        if type(result) not in (torch.Tensor, torch.nn.Parameter):
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


def scaled(args, factor):
    """The arguments; the first that requires a gradient gets a wrong one."""
    for place, x in enumerate(args):
        if isinstance(x, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in x):
            return (*args[:place], scaled(tuple(x), factor), *args[place + 1 :])
        if isinstance(x, torch.Tensor) and x.requires_grad:
            wrong = ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call]
            return (*args[:place], wrong, *args[place + 1 :])
    return args


def plant_all(plants, patch):
    for plant in plants:
        plant(patch)


for operator, row in recorded("operators.txt").items():
    kind, *words = row.split()
    targets = [word for word in words if word.startswith("torch.")]
    checks = words[len(targets) :]
    for wrong, check in zip(PROPERTIES[kind], checks, strict=True):
        if check == "-":
            continue
        plants = [stand_in(target, spoil(kind, wrong)) for target in targets]
        fault(check, name=f"{operator}-{wrong}")(partial(plant_all, plants))
