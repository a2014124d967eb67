"""Each operator that the lecture's programs call, and each optimizer's step, with one property wrong.

TABLE gives an operator, the names under which programs call it, and for each property in the order of PROPERTIES the
claim that notices when it is wrong; "-" where the claims say nothing of it: how an optimizer outside the lecture
updates parameters, one drawn number of many, the dtype of some results, or what is right all the same (1.5 times 0).
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
    "optimizers": ("value", "element", "gradient", "dtype", "strides"),
}
TABLE = {
    "creates": """
matmul torch.matmul torch.mm torch.Tensor.matmul torch.Tensor.mm torch.Tensor.__matmul__ matmul.2d matmul.4d-by-2d
    grad.six-micro-ops amp.autocast
bmm torch.bmm torch.Tensor.bmm torch.baddbmm grad.no-manual grad.no-manual grad.no-manual amp.autocast
mv torch.mv torch.Tensor.mv torch.dot torch.Tensor.dot grad.no-manual grad.no-manual grad.no-manual amp.autocast
einsum torch.einsum matmul.einsum-unnamed-summed matmul.einsum-unnamed-summed grad.no-manual -
linear torch.nn.functional.linear module.linear-class module.linear-class grad.no-manual amp.ex-bf16-linear-32
conv2d torch.nn.functional.conv2d torch.nn.functional.conv1d grad.no-manual grad.no-manual grad.no-manual amp.autocast
layer_norm torch.nn.functional.layer_norm grad.no-manual grad.no-manual grad.no-manual grad.graph-built-in-forward
softmax torch.softmax torch.Tensor.softmax grad.no-manual grad.no-manual grad.no-manual amp.recipe-not-switch
log_softmax torch.log_softmax torch.Tensor.log_softmax grad.no-manual grad.no-manual grad.no-manual amp.autocast
attention torch.nn.functional.scaled_dot_product_attention grad.no-manual grad.no-manual grad.no-manual amp.autocast
triu torch.triu torch.Tensor.triu torch.tril torch.Tensor.tril grad.no-manual storage.triu-causal grad.no-manual -
where torch.where torch.Tensor.where torch.Tensor.masked_fill grad.no-manual grad.no-manual grad.no-manual -
embedding torch.nn.functional.embedding grad.no-manual grad.no-manual grad.no-manual -
gelu torch.nn.functional.gelu flops.elementwise flops.elementwise grad.no-manual flops.elementwise
relu torch.relu torch.Tensor.relu torch.nn.functional.relu grad.no-manual grad.no-manual grad.no-manual -
tanh torch.tanh torch.Tensor.tanh grad.no-manual grad.no-manual grad.no-manual grad.graph-built-in-forward
dropout torch.nn.functional.dropout loop.train-mode loop.train-mode loop.train-mode storage.elementwise-new
cross_entropy torch.nn.functional.cross_entropy grad.no-manual grad.no-manual grad.no-manual amp.autocast
mse_loss torch.nn.functional.mse_loss grad.no-manual grad.no-manual grad.no-manual amp.autocast
cumsum torch.cumsum torch.Tensor.cumsum grad.no-manual grad.no-manual grad.no-manual amp.autocast
sum torch.sum torch.Tensor.sum dtype.e5m2-layout dtype.e5m2-layout amp.gradscaler -
mean torch.mean torch.Tensor.mean dtype.bf16-sweet-spot dtype.bf16-sweet-spot grad.no-manual -
amax torch.amax torch.Tensor.amax quant.minimal-loss quant.minimal-loss grad.no-manual -
norm torch.norm torch.Tensor.norm torch.linalg.vector_norm dtype.bf16-resolution dtype.bf16-resolution grad.no-manual
    amp.autocast
gather torch.gather torch.Tensor.gather grad.no-manual grad.no-manual grad.no-manual -
add torch.add torch.Tensor.add torch.Tensor.__add__ flops.add flops.add grad.quadratic-example roof.gelu
sub torch.sub torch.Tensor.sub torch.Tensor.__sub__ storage.stride-4x4 storage.stride-4x4 grad.linear-mse-example -
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
contiguous torch.Tensor.contiguous storage.mutation-propagates storage.mutation-propagates grad.no-manual
    storage.contiguous-copies storage.contiguous-copies storage.contiguous-copies
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
    "optimizers": """
SGD torch.optim.SGD.step device.all-on-gpu optim.sgd-none optim.sgd-none optim.state-keyed optim.state-keyed
Adam torch.optim.Adam.step optim.adam-combo optim.adam-combo optim.adam-combo optim.state-keyed optim.state-keyed
AdamW torch.optim.AdamW.step optim.adam-combo optim.adam-combo optim.adam-combo optim.state-fp32-auto optim.adam-2
Adagrad torch.optim.Adagrad.step optim.adagrad-update optim.adagrad-update optim.adagrad-update optim.adagrad-1
    optim.adagrad-1
RMSprop torch.optim.RMSprop.step optim.rmsprop-ema optim.rmsprop-ema optim.rmsprop-ema optim.rmsprop-1 optim.rmsprop-1
Adadelta torch.optim.Adadelta.step - - - mem.total-formula mem.total-formula
Adamax torch.optim.Adamax.step - - - mem.total-formula mem.total-formula
NAdam torch.optim.NAdam.step - - - mem.total-formula mem.total-formula
RAdam torch.optim.RAdam.step - - - mem.total-formula mem.total-formula
Adafactor torch.optim.Adafactor.step - - - optim.state-ON rows
Muon torch.optim.Muon.step - - - rows rows
""",
}
# Not of all operators: the gradient of a weight and of keys, the mask's own diagonal.
FURTHER = (
    ("creates", "linear", "torch.nn.functional.linear", "weight-gradient", "grad.no-manual"),
    ("creates", "attention", "torch.nn.functional.scaled_dot_product_attention", "key-gradient", "grad.no-manual"),
    ("creates", "triu", "torch.triu torch.Tensor.triu", "diagonal", "storage.triu-causal"),
)
ALIASES = {
    "rows": "meta_tests/accounting/optimizers/test_rows.py::"
    "test_state_appears_when_the_optimizer_allocates_it_under_the_names_it_has_there",
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
        if wrong == "diagonal":
            return original(*args[:1], (args[1:] or (kwargs.get("diagonal", 0),))[0] - 1)
        if wrong.endswith("gradient"):
            position = {"weight-gradient": 1, "key-gradient": 1}.get(wrong, 0)
            args = scaled(args, position, 2.0)
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


def scaled(args: tuple[Any, ...], position: int, factor: float) -> tuple[Any, ...]:
    """The arguments, of which the first from `position` on that is differentiated gets a wrong gradient."""
    for place, x in enumerate(args[position:], position):
        if isinstance(x, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in x):
            return (*args[:place], scaled(tuple(x), 0, factor), *args[place + 1 :])
        if isinstance(x, torch.Tensor) and x.requires_grad:
            wrong = ScaledGradient.apply(x, factor)  # type: ignore[no-untyped-call]
            return (*args[:place], wrong, *args[place + 1 :])
    return args


def change_state(optimizer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for state in optimizer.state.values():
        for name, buffer in state.items():
            if isinstance(buffer, torch.Tensor) and buffer.dim():
                state[name] = change(buffer)


def spoil_step(wrong: str) -> Call:
    """A stand-in for an optimizer's step that leaves this property of parameters, gradients or state wrong."""

    def step(original: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
        with unseen():
            parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            before = [RIGHT["clone"](p) for p in parameters]
        result = original(self, *args, **kwargs)
        with unseen():
            for p, was in zip(parameters, before, strict=True):
                if wrong == "value":
                    RIGHT["add_"](p.data, p.data - was)
                elif wrong == "element":
                    one_more(p.data, 1.0)
                elif wrong == "gradient" and p.grad is not None:
                    RIGHT["mul_"](p.grad, 2)
            if parameters and wrong in ("dtype", "strides"):
                change_state(self, of_another_type if wrong == "dtype" else every_second)
        return result

    return step


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


def register(kind: str, operator: str, targets: list[str], wrong: str, check: str) -> None:
    optimizer = kind == "optimizers"
    if check == "-" or (optimizer and not hasattr(torch.optim, operator)):
        return
    stand_in = spoil_step(wrong) if optimizer else spoil(kind, wrong)
    fault(ALIASES.get(check, check), name=f"{operator}-{wrong}")(functools.partial(plant, stand_in, targets))


for kind, table in TABLE.items():
    for row in table.strip().replace("\n    ", " ").splitlines():
        operator, *words = row.split()
        targets = [word for word in words if word.startswith("torch.")]
        for wrong, check in zip(PROPERTIES[kind], words[len(targets) :], strict=True):
            register(kind, operator, targets, wrong, check)
for kind, operator, names, wrong, check in FURTHER:
    register(kind, operator, names.split(), wrong, check)
