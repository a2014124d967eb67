"""Each optimizer's step, and what can be wrong with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from meta_tests.faults.generated.operators import RIGHT, every_second, of_another_type, one_more, unseen

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Adafactor", "Muon")
PROPERTIES = ("value", "element", "gradient", "dtype", "strides", "aliasing")


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def change_state(optimizer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for state in optimizer.state.values():
        for name, buffer in state.items():
            if isinstance(buffer, torch.Tensor) and buffer.dim():
                state[name] = change(buffer)


def spoilt(original: Callable[..., Any], wrong: str, control: bool, self: Any, *args: Any, **kwargs: Any) -> Any:
    with unseen():
        parameters = [] if control else parameters_of(self)
        before = [RIGHT["clone"](p) for p in parameters] if wrong == "value" else []
    result = original(self, *args, **kwargs)
    with unseen():
        for p, was in zip(parameters, before or parameters, strict=True):
            if wrong == "value":
                RIGHT["add_"](p.data, p.data - was)
            elif wrong == "element":
                one_more(p.data, 1.0)
            elif wrong == "gradient" and p.grad is not None:
                RIGHT["mul_"](p.grad, 2)
            elif wrong == "aliasing":
                p.data = RIGHT["clone"](p.data)
        if parameters and wrong in ("dtype", "strides"):
            change_state(self, of_another_type if wrong == "dtype" else every_second)
    return result


def plant(name: str, wrong: str, patch: pytest.MonkeyPatch, *, control: bool = False) -> None:
    holder = getattr(torch.optim, name)
    original = holder.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return spoilt(original, wrong, control, self, *args, **kwargs)

    patch.setattr(holder, "step", functools.wraps(original)(step))


CELLS = {
    f"{name} {wrong}": functools.partial(plant, name, wrong)
    for name in OPTIMIZERS
    if hasattr(torch.optim, name)
    for wrong in PROPERTIES
}
