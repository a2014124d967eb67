"""The state that training keeps per parameter, as rows of optimizers and recipes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from accounting.checks import validated_choice
from accounting.formats import dtype_name


@dataclass(frozen=True)
class Optimizer:
    """State that an optimizer keeps per parameter tensor.

    `buffers` have its shape, and `scalars` have four bytes. `class_name` is in torch.optim, or
    names its module. Buffers are named by their keys in `optimizer.state[parameter]`; `options` are
    the constructor's arguments. `eager` state is allocated by the constructor, all other state at
    the first step for which the parameter has a gradient.

    If `factored` is given, tensors of two or more dimensions keep only two sums: over the last
    dimension, and over the one before. `matrices_only` optimizers refuse other shapes. 8-bit
    buffers have a 4-byte scale per `block` of elements; tensors below 4,096 elements stay in fp32.
    `history` counts pairs of further buffers.

    >>> from accounting.memory import optimizer_state_bytes
    >>> optimizer_state_bytes(1000, Optimizer("mine.Adamax", ("exp_avg", "exp_inf")), "bf16")
    4000
    """

    class_name: str
    buffers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    scalars: tuple[str, ...] = ("step",)
    eager: bool = False
    factored: tuple[str, ...] = ()
    matrices_only: bool = False
    block: int = 0
    history: int = 0

    @property
    def needs_shapes(self) -> bool:
        """True if the state depends on the shapes of the parameters."""
        return bool(self.factored) or self.matrices_only


_ROWS = Path(__file__).with_name("optimizers.json")
# A test compares each row with the optimizer itself, built from `class_name` and `options`.
OPTIMIZERS: dict[str, Optimizer] = {
    name: Optimizer(
        **{
            key: cast("Any", tuple(each) if isinstance(each, list) else each)
            for key, each in row.items()
        }
    )
    for name, row in json.loads(_ROWS.read_text(encoding="utf-8"))["optimizers"].items()
}

# Torch keeps each scalar as a 0-dimensional fp32 tensor (fp64 only if that is the default dtype).
STEP_BYTES = 4
LEAST_IN_8_BITS = 4096  # bitsandbytes keeps smaller tensors in fp32
# Each 8-bit buffer has the values of its 256 codes.
TABLE_BYTES = 1024


# Temporary elements per parameter element inside step(), over all tensors or, in a loop, of the
# tensor before the current one and of the current one; a fused kernel needs none.
SCRATCH = {
    "Adam": {"foreach": 1, "for-loop": (1, 2)},
    "AdamW": {"foreach": 1, "for-loop": (1, 2)},
}
# How torch performs a step.
IMPLEMENTATIONS = ("fused", "foreach", "for-loop")


def optimizer_of(optimizer: Any) -> Optimizer:
    """The row of `OPTIMIZERS` for a name in any case, a class or an instance.

    An `Optimizer` is its own row.

    >>> optimizer_of("AdamW").buffers
    ('exp_avg', 'exp_avg_sq')
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    given = getattr(optimizer, "defaults", {})
    rows = [row for row in OPTIMIZERS.values() if _is_class(kind, row.class_name)]
    options = {option for row in rows for option in row.options if len(rows) > 1}
    for row in rows:
        if all(bool(given.get(option)) == (option in row.options) for option in options):
            return row
    name = str(optimizer).lower()
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    return OPTIMIZERS[validated_choice("optimizer", optimizer, OPTIMIZERS)]


def _is_class(kind: type, name: str) -> bool:
    library, _, called = name.rpartition(".")
    return kind.__name__ == called and kind.__module__.startswith(library or "torch.optim")


@dataclass(frozen=True)
class Recipe:
    """The dtype of each class of tensors that training keeps.

    `master` is a copy of the parameters to update.

    >>> from accounting.memory import model_state
    >>> model_state(1000, "sgd", Recipe("bf16", "float32", "fp32", master="fp32"))
    ModelState(parameters=2000, gradients=4000, state=0, master=4000)
    """

    parameters: str
    gradients: str
    state: str
    master: str | None = None

    def __post_init__(self) -> None:
        for name, dtype in vars(self).items():
            if name != "master" or dtype is not None:
                object.__setattr__(self, name, dtype_name(dtype, argument=name))


# torch.optim gives the state the parameters' dtype ("fp32", "bf16"); the others need an optimizer
# of their own.
RECIPES: dict[str, Recipe] = {
    "fp32": Recipe("fp32", "fp32", "fp32"),
    "bf16": Recipe("bf16", "bf16", "bf16"),
    "bf16-fp32-state": Recipe("bf16", "bf16", "fp32"),
    "bf16-fp32-master": Recipe("bf16", "bf16", "fp32", master="fp32"),
    "bf16-fp32-gradients-master": Recipe("bf16", "fp32", "fp32", master="fp32"),
}


def recipe_of(recipe: str | Recipe) -> Recipe:
    """The row of `RECIPES` called `recipe`, or `recipe` itself if it is one.

    >>> recipe_of("bf16-fp32-master").state
    'fp32'
    """
    return (
        recipe
        if isinstance(recipe, Recipe)
        else RECIPES[validated_choice("recipe", recipe, RECIPES)]
    )
