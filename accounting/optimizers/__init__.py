"""What training keeps of each parameter, as data: a row for each optimizer and each recipe of dtypes, had by name."""

from accounting.optimizers.recipes import RECIPES, Recipe, recipe_of
from accounting.optimizers.rows import (
    IMPLEMENTATIONS,
    LEAST_IN_8_BITS,
    OPTIMIZERS,
    SCRATCH,
    STEP_BYTES,
    TABLE_BYTES,
    Optimizer,
    Scratch,
    optimizer_of,
)

__all__ = [
    "IMPLEMENTATIONS",
    "LEAST_IN_8_BITS",
    "OPTIMIZERS",
    "RECIPES",
    "SCRATCH",
    "STEP_BYTES",
    "TABLE_BYTES",
    "Optimizer",
    "Recipe",
    "Scratch",
    "optimizer_of",
    "recipe_of",
]
