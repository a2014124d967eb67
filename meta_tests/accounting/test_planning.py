"""Planning formulas: their inverses, and ZeRO shards dealt out element by element."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import optimizers, planning
from accounting.planning import device_state, largest_model_parameters

STAGES = st.sampled_from(sorted(planning.ZERO_SHARDS))
NEED_SHAPES = ("adafactor", "muon")
OPTIMIZERS = st.sampled_from(sorted({*optimizers.OPTIMIZERS} - {*NEED_SHAPES}))
SMALLEST = optimizers.Recipe("fp4_e2m1", "fp4_e2m1", "fp4_e2m1")
RECIPES = st.sampled_from([*sorted(optimizers.RECIPES), SMALLEST])


@pytest.mark.parametrize("optimizer", NEED_SHAPES)
def test_a_number_of_parameters_is_refused_where_the_state_depends_on_shapes(optimizer):
    with pytest.raises(ValueError, match=r"^parameters must be shapes of .*, got the number 1000$"):
        device_state(1000, 1, 0, optimizer)


@given(
    memory_bytes=st.integers(0, 10**15),
    devices=st.integers(1, 4096),
    stage=STAGES,
    optimizer=OPTIMIZERS,
    recipe=RECIPES,
)
@example(memory_bytes=1000, devices=2, stage=3, optimizer="sgd", recipe=SMALLEST)
def test_the_largest_model_fits_and_one_with_a_parameter_more_does_not(
    memory_bytes, devices, stage, optimizer, recipe
):
    setting = {"devices": devices, "zero_stage": stage, "optimizer": optimizer, "recipe": recipe}
    largest = largest_model_parameters(memory_bytes, **setting)
    assert device_state(largest, **setting).total <= memory_bytes
    assert device_state(largest + 1, **setting).total > memory_bytes
