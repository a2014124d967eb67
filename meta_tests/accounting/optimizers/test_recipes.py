"""Recipes are those that people name, and one of an unknown dtype is refused."""

import pytest

from accounting import optimizers


def test_each_recipe_keeps_parameters_gradients_state_and_master_in_its_dtypes():
    kept = {
        name: (each.parameters, each.gradients, each.state, each.master) for name, each in optimizers.RECIPES.items()
    }
    assert kept == {
        "fp32": ("fp32", "fp32", "fp32", None),
        "bf16": ("bf16", "bf16", "bf16", None),
        "bf16-fp32-state": ("bf16", "bf16", "fp32", None),
        "bf16-fp32-master": ("bf16", "bf16", "fp32", "fp32"),
        "bf16-fp32-gradients-master": ("bf16", "fp32", "fp32", "fp32"),
    }, f"the recipes keep {kept}"


def test_a_recipe_takes_any_spelling_of_a_dtype_and_only_the_master_may_be_absent():
    assert optimizers.Recipe("float32", "FP32", "torch.float32", master="float32") == optimizers.Recipe(
        "fp32", "fp32", "fp32", master="fp32"
    )
    with pytest.raises(ValueError, match=r"gradients must be one of .*, got 'None'"):
        optimizers.Recipe("fp32", None, "fp32")


def test_a_recipe_of_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match=r"state must be one of .*fp32.*, got 'fp31'"):
        optimizers.Recipe("fp32", "fp32", "fp31")
