"""Planning formulas: their inverses, ZeRO shards dealt out element by element, and a plan by its parts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import memory, optimizers, planning
from accounting.models import Transformer, step_flops
from accounting.parallel import KINDS, Parallelism, collectives, device_parameters
from accounting.planning import device_state, largest_model_parameters

STAGES = st.sampled_from(sorted(planning.ZERO_SHARDS))
OPTIMIZERS = st.sampled_from(
    sorted({*optimizers.OPTIMIZERS} - {"adafactor"})
)  # whose state needs shapes
SMALLEST = optimizers.Recipe("fp4_e2m1", "fp4_e2m1", "fp4_e2m1")
RECIPES = st.sampled_from([*sorted(optimizers.RECIPES), SMALLEST])


@given(parameters=st.integers(1, 200), devices=st.integers(1, 40), stage=STAGES)
def test_a_stage_holds_what_the_fullest_device_gets_when_elements_are_dealt_out(
    parameters, devices, stage
):
    fp32 = torch.zeros(parameters)
    shard = max(part.nbytes for part in fp32.chunk(devices))
    held = {
        "parameters": shard if stage == 3 else fp32.nbytes,
        "gradients": shard if stage >= 2 else fp32.nbytes,
    }
    held["state"] = 2 * (shard if stage >= 1 else fp32.nbytes)
    got = device_state(parameters, devices, stage)
    assert got == memory.ModelState(**held, master=0), (
        f"{got=}, but should be {held} [{parameters=}, {devices=}]"
    )


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
    assert device_state(largest, **setting).total <= memory_bytes, (
        f"{largest} parameters do not fit [{setting}]"
    )
    assert device_state(largest + 1, **setting).total > memory_bytes, (
        f"{largest + 1} parameters fit too [{setting}]"
    )


MODEL = Transformer(vocab_size=1000, layers=8, dim=256, heads=8, hidden=1024)
DEVICE = {"memory_bytes": 10**9, "peak_flop_per_s": 1e12, "wire_bytes_per_s": 1e9}


def test_the_plan_of_a_step_adds_up_what_the_parts_say():
    split = Parallelism(data=2, tensor=2, pipeline=2, micro_batches=4, zero_stage=1)
    plan = planning.step_plan(MODEL, split, 16, 512, recompute="full", **DEVICE)
    flops = step_flops(MODEL, 16, 512, checkpoint_every=1).hardware
    assert plan.compute_s == pytest.approx(flops / 8 / 1e12 * (1 + 1 / 4))
    sent = sum(each.sent_bytes for each in collectives(MODEL, split, 16, 512, recompute="full"))
    assert sum(plan.wire_s.values()) == pytest.approx(sent / 1e9)
    assert set(plan.wire_s) == {"tensor", "pipeline", "data"}
    of_device = sum(device_parameters(MODEL, split))
    assert plan.state.total == of_device * (2 + 4) + -(-of_device // 2) * 12
    slow_data = {"wire_bytes_per_s": dict.fromkeys(KINDS, 1e9) | {"data": 1}}
    slow = planning.step_plan(MODEL, split, 16, 512, **DEVICE | slow_data)
    assert slow.bound == "data"
    assert slow.seconds == slow.wire_s["data"] > slow.compute_s
    too_little = {"memory_bytes": plan.held_bytes - 1, "recompute": "full"}
    small = planning.step_plan(MODEL, split, 16, 512, **DEVICE | too_little)
    assert small.bound == "memory"
