"""Training steps: the same steps predicted and measured, and recipes of dtypes, accumulation and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from accounting import memory, optimizers, predicted
from accounting.measured import one_thread
from accounting.models import GPT2_SMALL, LLAMA3_8B
from meta_tests.accounting.predicted.predicting import (
    OPTIMIZERS,
    RECIPES,
    Net,
    assert_alike,
    both,
    built,
    fewer,
    next_token_loss,
)


@one_thread()
def test_the_same_steps_measured_by_the_same_module_are_those_of_the_plain_loop():
    net = Net(("linear", "gelu", "layernorm"), 48, 96, False, False, torch.float32)
    given = {"loss": torch.mean, "optimizer": OPTIMIZERS["adamw foreach"], "micro_batches": 2}
    same = predicted.TrainingStep(net.build, net.batch(), **given).measure()
    _, held = both(net.build, net.batch(), optimizer="adamw foreach", micro_batches=2, scratch=False)
    for name, real in held.phases.items():
        assert (same.phases[name].live_bytes, same.phases[name].peak_bytes) == (real.live_bytes, real.peak_bytes), name


def test_what_each_phase_leaves_is_of_its_class_and_no_kernel_runs_unasked():
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4))
    step = predicted.TrainingStep(net, torch.empty(4, 2, 8), torch.mean, optimizer=torch.optim.AdamW).predict()
    classes = {name: set(phase.live_by_class) for name, phase in step.phases.items()}
    kept = {"parameters", "buffers", "inputs"}
    assert classes["built"] == kept - {"inputs"}
    assert classes["inputs"] == classes["optimizer"] == kept
    assert classes["forward"] == {*kept, "activations"}
    assert classes["backward"] == {*kept, "gradients"}
    assert classes["step"] == {*kept, "gradients", "optimizer state"}
    assert classes["zero_grad"] == {*kept, "optimizer state"}
    assert step.peak_bytes_with_scratch is None


def test_a_batch_is_split_only_along_a_dimension_in_common():
    given = {"loss": lambda out, targets: (out.sum() * targets).sum(), "targets": torch.empty(3)}
    whole = predicted.TrainingStep(partial(nn.Linear, 4, 4), torch.empty(4, 4), **given)
    assert whole.predict().phases["inputs"].allocated_bytes == 4 * (16 + 3)
    for micro_batches, message in ((2, r"=2 in common, got {[34], [34]}"), (0, "micro_batches")):
        with pytest.raises(ValueError, match=message):
            replace(whole, micro_batches=micro_batches).predict()
    numbered = replace(whole, targets=2.0, loss=lambda out, number: out.sum() * number)
    assert "second backward 2" in replace(numbered, micro_batches=2).predict().phases


def test_a_frozen_parameter_has_no_gradient():
    net = nn.Linear(8, 8)
    net.weight.requires_grad_(False)
    step = predicted.TrainingStep(net, torch.empty(4, 8), torch.mean).predict()
    assert step.phases["backward"].live_by_class["gradients"] == net.bias.nbytes


# ---- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.prove(sample=1)
@pytest.mark.parametrize("recipe", RECIPES)
@fewer
@given(
    preset=st.sampled_from([GPT2_SMALL, LLAMA3_8B]),
    checkpoint_every=st.integers(0, 1),
    micro_batches=st.integers(1, 3),
)
@example(GPT2_SMALL, 1, 2)
def test_dtype_recipes_are_predicted_with_accumulation_and_checkpoints(
    workloads, recipe, preset, checkpoint_every, micro_batches
):
    dtype, optimizer, autocast = RECIPES[recipe]
    small = workloads.reduced(preset, layers=1)
    guess, held = both(
        partial(built, workloads, small, checkpoint_every, dtype),
        torch.zeros(6, 16, dtype=torch.long),
        optimizer=optimizer,
        loss=next_token_loss,
        micro_batches=micro_batches,
        autocast=autocast,
    )
    assert_alike(
        guess, held, without_scratch=False, given=f"[{recipe=}, {preset=}, {checkpoint_every=}, {micro_batches=}]"
    )


@pytest.mark.prove(sample=2)
@pytest.mark.parametrize("recipe", optimizers.RECIPES)
def test_what_a_recipe_holds_is_that_of_the_formula(workloads, recipe):
    dtype, optimizer, _ = RECIPES[recipe]
    build = partial(built, workloads, workloads.reduced(GPT2_SMALL, layers=1), 1, dtype)
    guess = predicted.TrainingStep(
        build, torch.empty(2, 8, dtype=torch.long), loss=next_token_loss, optimizer=optimizer, micro_batches=2
    ).predict()
    sizes = [tensor.numel() for tensor in build().parameters()]
    counts = 0 if recipe == "bf16-fp32-state" else len(sizes)  # that optimizer counts no steps
    state = memory.model_state(sum(sizes), "adamw", recipe, tensors=counts)
    formula = {
        "parameters": state.parameters,
        "inputs": 2 * 8 * 8,
        "gradients": state.gradients,
        "optimizer state": state.state + state.master,
    }
    got = guess.phases["second step"].live_by_class
    assert formula == got, f"model_state={state}, but should be {got}"
