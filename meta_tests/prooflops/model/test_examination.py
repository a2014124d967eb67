"""Every figure of the users' models, worked out by hand."""

from dataclasses import replace
from functools import partial
from inspect import signature

import pytest
import torch

import prooflops
from meta_tests.prooflops.model.conftest import model_of
from meta_tests.user_models import own
from meta_tests.user_models.worked import (
    BACKWARD,
    FORWARD,
    GRADIENT_BYTES,
    OWN_TRAINED,
    PARAMETERS,
    PARTS,
    STATE_BYTES,
    TOKENS,
)
from prooflops.model.step_memory import HELD, PEAK, measured_steps

FACTORIES = {
    "convnet": "convnet:factory",
    "gpt": "gpt:factory",
    "own": "own:Factories.factory",
}
each_model = pytest.mark.parametrize("name", FACTORIES)


@pytest.fixture
def facts(examined, name):
    return examined(FACTORIES[name])


@each_model
def test_parameters_gradients_and_optimizer_state_have_their_size(facts, name):
    whole = facts.breakdown.whole
    assert whole.parameters == PARAMETERS[name]
    assert whole.trained == (OWN_TRAINED if name == "own" else PARAMETERS[name])
    assert facts.memory.row("gradients").measured_bytes == GRADIENT_BYTES[name]
    assert facts.memory.row("optimizer state").measured_bytes == STATE_BYTES[name]


@each_model
def test_the_flops_and_their_reasons_are_those_of_the_formulas(facts, name):
    flops = facts.flops
    assert (flops.batch.number, flops.batch.unit) == TOKENS[name]
    assert (flops.forward, flops.backward) == (FORWARD[name], BACKWARD[name])
    assert flops.rule("step") == 6 * PARAMETERS[name] * TOKENS[name][0]
    assert flops.unknown == {}
    assert {part.name: (part.forward, part.backward) for part in flops.parts} == PARTS[name]


@each_model
def test_the_modules_and_operators_sum_to_the_step(facts, name):
    rows = [row for row in facts.breakdown.modules if not row.depth]
    assert sum(row.forward_flops for row in rows) == FORWARD[name]
    assert sum(row.backward_flops for row in rows) == BACKWARD[name]
    executed = sum(row.flops for row in facts.breakdown.operators)
    assert executed == FORWARD[name] + BACKWARD[name]
    assert next(row.parameters for row in rows if row.name == "") == PARAMETERS[name]
    # Except boxed numbers and the loss.
    held = facts.memory.row(HELD).measured_bytes
    assert sum(row.kept_bytes for row in rows) == pytest.approx(held, rel=0.02)
    assert facts.breakdown.is_timed


def test_what_is_recomputed_is_executed_and_not_needed(examined):
    flops = examined("own:checkpointed").flops
    forward = 2 * 2 * 8 * own.WIDTH**2
    # The first layer's input needs no gradient.
    needed = forward + 2 * forward - forward // 2
    assert (flops.model, flops.executed) == (needed, needed + forward)
    assert [part.step for part in flops.parts if part.name.startswith("recomputed")] == [-forward]


@pytest.mark.parametrize(
    "factory",
    [
        *FACTORIES.values(),
        *("gpt:in_bf16", "own:checkpointed", "own:bag", "own:converted"),
    ],
)
def test_a_step_that_is_not_run_has_the_figures_of_one_that_is(examined, factory):
    """Except times and what is measured."""
    ran = examined(factory)
    instance, optimizer = ran.instance, ran.instance.optimizer
    known = signature(type(optimizer)).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in known}
    given = {instance.stated_tokens[1]: instance.stated_tokens[0]} if instance.stated_tokens else {}
    found = prooflops.model_report(
        instance.module,
        instance.arguments or instance.keywords,
        partial(type(optimizer), **options),
        instance.loss,
        **given,
    ).examination
    assert found.flops == ran.flops
    timeless = {"forward_s": 0.0, "backward_s": 0.0}
    assert found.breakdown.modules == tuple(
        replace(each, **timeless) for each in ran.breakdown.modules
    )

    for name in ("gradients", "optimizer state", HELD, PEAK):
        row = ran.memory.row(name)
        predicted, measured = row.predicted_bytes, row.measured_bytes
        least_share = {HELD: 0.98, PEAK: 0.85}.get(name, 1)
        assert least_share * measured <= predicted <= measured, f"{name}: {row}"


def test_the_measured_steps_attend_without_cudnn_as_the_predicted_ones_do():
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    user_model = model_of("own:checkpointed")
    before = enabled()
    seen = set()
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.add(enabled())):
        measured_steps(user_model)
    assert (before, seen, enabled()) == (True, {False}, True), (
        "cuDNN's attention is off during the steps alone"
    )
