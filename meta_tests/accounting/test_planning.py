"""Planning formulas: their inverses, ZeRO shards dealt out element by element, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import memory, optimizers, planning
from accounting.models import Transformer, parameter_count, step_flops
from accounting.parallel import KINDS, Parallelism, collectives, device_parameters
from accounting.planning import device_state, largest_model_parameters
from meta_tests.accounting.refusals import refuses

STAGES = st.sampled_from(sorted(planning.ZERO_SHARDS))
OPTIMIZERS = st.sampled_from(sorted({*optimizers.OPTIMIZERS} - {"adafactor"}))  # whose state needs shapes
SMALLEST = optimizers.Recipe("fp4_e2m1", "fp4_e2m1", "fp4_e2m1")
RECIPES = st.sampled_from([*sorted(optimizers.RECIPES), SMALLEST])


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_paper_s_figure_is_reproduced(stage, gigabytes):
    state = device_state(7_500_000_000, 64, stage, recipe="bf16-fp32-master")
    assert round(state.total / 1e9, 1) == gigabytes


def test_without_a_stage_every_device_holds_everything():
    assert device_state(10, 2) == memory.model_state(10)


@given(parameters=st.integers(1, 200), devices=st.integers(1, 40), stage=STAGES)
def test_a_stage_holds_what_the_fullest_device_gets_when_elements_are_dealt_out(parameters, devices, stage):
    fp32 = torch.zeros(parameters)
    shard = max(part.nbytes for part in fp32.chunk(devices))
    held = {"parameters": shard if stage == 3 else fp32.nbytes, "gradients": shard if stage >= 2 else fp32.nbytes}
    held["state"] = 2 * (shard if stage >= 1 else fp32.nbytes)
    got = device_state(parameters, devices, stage)
    assert got == memory.ModelState(**held, master=0), f"{got=}, but should be {held} [{parameters=}, {devices=}]"


@given(
    memory_bytes=st.integers(0, 10**15),
    devices=st.integers(1, 4096),
    stage=STAGES,
    optimizer=OPTIMIZERS,
    recipe=RECIPES,
)
@example(memory_bytes=1000, devices=2, stage=3, optimizer="sgd", recipe=SMALLEST)
def test_the_largest_model_fits_and_one_with_a_parameter_more_does_not(memory_bytes, devices, stage, optimizer, recipe):
    setting = {"devices": devices, "zero_stage": stage, "optimizer": optimizer, "recipe": recipe}
    largest = largest_model_parameters(memory_bytes, **setting)
    assert device_state(largest, **setting).total <= memory_bytes, f"{largest} parameters do not fit [{setting}]"
    assert device_state(largest + 1, **setting).total > memory_bytes, f"{largest + 1} parameters fit too [{setting}]"


@given(devices=st.integers(1, 512), stages=st.tuples(STAGES, STAGES).map(sorted))
def test_a_higher_stage_never_holds_more(devices, stages):
    lower, higher = (device_state(10**9, devices, stage).total for stage in stages)
    assert higher <= lower


def test_tokens_per_second_for_the_days_of_a_run_are_its_tokens():
    cluster = (1024, 1979e12 / 2, 0.5)
    seconds = planning.training_days(70 * 10**9, 15 * 10**12, *cluster) * 24 * 60 * 60
    assert planning.tokens_per_s(70 * 10**9, *cluster) * seconds == pytest.approx(15e12)


def test_the_flops_of_the_days_of_a_run_are_those_it_needs():
    cluster = (1024, 1979e12 / 2, 0.5)
    days = planning.training_days(70 * 10**9, 15 * 10**12, *cluster)
    assert planning.affordable_flops(days, *cluster) == pytest.approx(6 * 70e9 * 15e12)


def test_cost_is_every_hour_of_every_device():
    assert planning.training_cost(2.5, 3, price_per_device_hour=4) == sum(4 for _ in range(3) for _ in range(60))


test_an_impossible_plan_is_refused_with_the_value = refuses(
    (lambda: planning.training_days(70.5, 1, 1, 1e12, 0.5), TypeError, "parameters must be an integer, got 70.5"),
    (lambda: planning.training_days(1, -1, 1, 1e12, 0.5), ValueError, "tokens must be at least 0, got -1"),
    (lambda: planning.training_days(1, 1, 0, 1e12, 0.5), ValueError, "devices must be at least 1, got 0"),
    (lambda: planning.training_days(1, 1, 1, 0, 0.5), ValueError, "peak_flop_per_s must be a finite number above"),
    (lambda: planning.training_days(1, 1, 1, None, 0.5), TypeError, "peak_flop_per_s must be a number, got None"),
    (lambda: planning.training_days(1, 1, 1, 1e12, 50), ValueError, "mfu must be at most 1, got 50"),
    (lambda: planning.training_days(1, 1, 1, 1e12, 0), ValueError, "mfu must be a finite number above 0, got 0"),
    (lambda: planning.affordable_flops(-7, 1, 1e12), ValueError, "days must be a finite number above 0, got -7"),
    (lambda: planning.tokens_per_s(0, 1, 1e12, 0.5), ValueError, "parameters must be at least 1, got 0"),
    (lambda: planning.training_cost(1, 1, 0), ValueError, "price_per_device_hour must be a finite number above 0"),
    (lambda: device_state(1, 1, 4), ValueError, "zero_stage must be one of 0, 1, 2, 3, got 4"),
    (lambda: device_state(1, 0), ValueError, "devices must be at least 1, got 0"),
    (lambda: device_state(-1), ValueError, "parameters must be at least 0, got -1"),
    (lambda: device_state(1.5), TypeError, "parameters must be an integer, got 1.5"),
    (lambda: largest_model_parameters(0.5), TypeError, "memory_bytes must be an integer, got 0.5"),
    (lambda: largest_model_parameters(1, optimizer="adan"), ValueError, "optimizer must be one of .*got 'adan'"),
    (lambda: largest_model_parameters(0, recipe="fp12"), ValueError, "recipe must be one of .*got 'fp12'"),
    (lambda: largest_model_parameters(0, zero_stage=9), ValueError, "zero_stage must be one of 0, 1, 2, 3, got 9"),
)


# ---- many devices ------------------------------------------------------------------------------------------------

MODEL = Transformer(vocab_size=1000, layers=8, dim=256, heads=8, hidden=1024)
MIXTURE = replace(MODEL, experts=8, active_experts=2)
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


def test_experts_are_sharded_among_the_devices_that_hold_the_same():
    split = Parallelism(data=8, expert=4, zero_stage=1)
    plan = planning.step_plan(MIXTURE, split, 16, 512, **DEVICE)
    experts = 8 * 8 * 2 * 256 * 1024
    dense = parameter_count(MIXTURE) - experts
    assert plan.state.total == 6 * (dense + experts // 4) + 12 * (dense // 8 + experts // 4 // 2)


def test_the_plans_that_fit_are_all_that_do_the_fastest_first():
    plans = planning.fitting_plans(MODEL, 8, 16, 512, **DEVICE)
    assert all(plan.held_bytes <= 10**9 and plan.split.devices == 8 for plan in plans)
    times = [plan.seconds for plan in plans]
    assert times == sorted(times)
    most = max(plan.held_bytes for plan in plans)
    fewer = planning.fitting_plans(MODEL, 8, 16, 512, **DEVICE | {"memory_bytes": most - 1})
    assert {plan.split for plan in plans if plan.held_bytes < most} == {plan.split for plan in fewer}
    splits = {(each.split.data, each.split.tensor, each.split.context, each.split.pipeline) for each in plans}
    assert len(splits) == 20, "8 = 2·2·2 among four, each of them alone, two of them 4 and 2"
    alone = [plan.split.zero_stage for plan in plans if plan.split.replicas == 1]
    assert set(alone) == {1}, "a stage that shards nothing is listed beside the one before"
    assert len(plans) == 2 * len(splits) - len(alone)


def test_no_tensor_group_divides_a_head():
    tensors = {plan.split.tensor for plan in planning.fitting_plans(MODEL, 12, 12, 512, **DEVICE)}
    assert tensors == {1, 2, 4}, f"of 12 devices {tensors} share {MODEL.heads} heads"


def test_one_device_alone_takes_the_time_of_its_arithmetic():
    plan = planning.step_plan(MODEL, Parallelism(), 2, 8, **DEVICE)
    assert (plan.seconds, plan.wire_s) == (plan.compute_s, {})


def test_memory_that_is_just_enough_bounds_nothing():
    plan = planning.step_plan(MODEL, Parallelism(), 2, 8, **DEVICE)
    assert replace(plan, memory_bytes=plan.held_bytes).bound == "compute"
    assert replace(plan, memory_bytes=plan.held_bytes - 1).bound == "memory"


def test_the_ways_that_are_tried_stay_few_on_many_devices(monkeypatch):
    tried, step_plan = [], planning.step_plan
    monkeypatch.setattr(planning, "step_plan", lambda *args, **kwargs: tried.append(1) or step_plan(*args, **kwargs))
    planning.fitting_plans(MODEL, 15120, 15120, 512, **DEVICE)  # of 80 divisors
    assert len(tried) <= 8 * 5 * 8 * 2, "tensor up to 8, context in 512, pipeline up to 8 layers, two stages"


test_an_impossible_step_is_refused_with_the_value = refuses(
    (lambda: planning.fitting_plans(MODEL, 0, 16, 512, **DEVICE), ValueError, "devices must be at least 1, got 0"),
    (lambda: planning.fitting_plans(MODEL, 8, 0, 512, **DEVICE), ValueError, "batch must be at least 1, got 0"),
    (lambda: planning.fitting_plans(MODEL, 8, 16, 512, recompute="half", **DEVICE), ValueError, "got 'half'"),
    (lambda: planning.fitting_plans(MODEL, 8, 16, 512, recipe="fp12", **DEVICE), ValueError, "got 'fp12'"),
    (
        lambda: planning.step_plan(MODEL, Parallelism(data=2), 2, 8, **DEVICE | {"wire_bytes_per_s": 0}),
        ValueError,
        "wire_bytes_per_s must be a finite number above 0, got 0",
    ),
)
