"""The dtypes in which people train: a row for each recipe, looked up by name."""

from __future__ import annotations

from dataclasses import dataclass

from accounting.checks import validated_choice
from accounting.formats import dtype_name


@dataclass(frozen=True)
class Recipe:
    """The dtype of each class of tensors that training keeps; `master` is a copy of the parameters to update.

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


# torch.optim gives the state the dtype of the parameters ("fp32", "bf16"); the others need an optimizer of their own.
RECIPES: dict[str, Recipe] = {
    "fp32": Recipe("fp32", "fp32", "fp32"),
    "bf16": Recipe("bf16", "bf16", "bf16"),
    "bf16-fp32-state": Recipe("bf16", "bf16", "fp32"),
    "bf16-fp32-master": Recipe("bf16", "bf16", "fp32", master="fp32"),
    "bf16-fp32-gradients-master": Recipe("bf16", "fp32", "fp32", master="fp32"),
}


def recipe_of(recipe: str | Recipe) -> Recipe:
    """A recipe of `RECIPES` by name, or the given one.

    >>> recipe_of("bf16-fp32-master").state
    'fp32'
    """
    return recipe if isinstance(recipe, Recipe) else RECIPES[validated_choice("recipe", recipe, RECIPES)]
