"""Configs that the formulas do not read are built by transformers, and a step is counted."""

import sys

import pytest

from accounting.models import cache_bytes, parameter_count, step_flops
from meta_tests.prooflops.families.test_published import model_called
from meta_tests.prooflops.families.test_transformers import (
    BATCH,
    built,
    config_of,
    counted_step,
    parameters_of,
    sequence_of,
)
from prooflops import families
from prooflops.counted.built import CountedModel, from_config
from prooflops.families.decoders import MODEL_TYPES

# Encoders with decoders; turns without gradients; hybrids of two kinds of layers, with experts;
# encoders; images.
SAMPLE = ("t5", "hrm_text", "qwen3_next", "bert", "resnet")
PROVED = [pytest.param(name, marks=pytest.mark.prove) for name in ("whisper", "exaone4")]


@pytest.mark.parametrize("type_", [*SAMPLE, *PROVED])
def test_the_model_is_that_which_transformers_builds_and_runs(type_):
    assert type_ not in MODEL_TYPES
    config = config_of(type_)
    net, model = built(config), from_config(config)
    assert parameter_count(model) == parameters_of(net)
    step = step_flops(model, BATCH, sequence_of(type_))
    assert (step.forward, step.backward) == counted_step(type_, net)


@pytest.mark.parametrize(("type_", "longest"), [("qwen3_next", 2048), ("mamba", 256)])
def test_a_loop_too_long_to_count_is_refused_with_the_length_that_can_be(type_, longest):
    model = from_config(config_of(type_))
    message = rf"sequence must be at most {longest:,} to count .*, got {longest + 1:,}"
    with pytest.raises(ValueError, match=message):
        step_flops(model, 1, longest + 1)


@pytest.mark.parametrize(
    ("name", "longest"),
    # Two more positions of the first two are for padding.
    [
        ("facebook/opt-125m", 2048),
        ("FacebookAI/roberta-base", 512),
        ("openai/clip-vit-base-patch32", 77),
    ],
)
def test_a_sequence_beyond_the_learned_positions_is_refused(name, longest):
    message = f"sequence must be at most learned_positions={longest}, got {longest + 1}"
    with pytest.raises(ValueError, match=message):
        step_flops(model_called(name), 1, longest + 1)


def test_what_is_not_counted_of_a_model_is_refused():
    model = from_config(config_of("exaone4"))
    with pytest.raises(ValueError, match=r"the cache of counted: Exaone4.* is unknown"):
        cache_bytes(model, 1, 8)
    with pytest.raises(ValueError, match=r"pairs must be 'full' for counted: Exaone4.*, got 'caus"):
        step_flops(model, 1, 8, pairs="causal")


def test_keys_that_the_library_ignores_are_named():
    unread = {"architectures": ["ExaoneForRewardModel"], "num_registers": 4}
    config = config_of("exaone4").to_dict() | unread | {"early_stopping": True}
    with pytest.warns(UserWarning, match=r"of transformers .* ignores architectures, num_reg.*s$"):
        model = from_config(config)
    assert isinstance(model, CountedModel)
    assert model.ignored == (*unread,)
    assert from_config(config, ignore=[*unread]).linear_maps == model.linear_maps


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("first_k_dense_replace", (1, 3)),
        ("linear_attn_config", ({"head_dim": 8}, {"head_dim": 16})),
    ],
)
@pytest.mark.filterwarnings("error:.*ignores")
def test_a_key_that_the_library_reads_at_building_is_not_called_ignored(key, values):
    config = config_of("kimi_linear").to_dict()
    for stated in ("layer_types", "mlp_layer_types"):
        config.pop(stated, None)
    counts = {parameter_count(from_config(config | {key: value})) for value in values}
    assert len(counts) == 2


def test_a_key_that_nobody_reads_is_refused_until_it_is_ignored():
    config = config_of("llama").to_dict() | {"num_registers": 4}
    with pytest.raises(
        ValueError,
        match=r"num_registers=4, .* knows no num_registers=4; ignore=\('num_registers',\)",
    ):
        from_config(config)
    whole = families.from_config(config_of("llama"))
    assert from_config(config, ignore=("num_registers",)) == whole
    with pytest.raises(ValueError, match=r"ignore must be one of .*, got 'num_register'; did you"):
        from_config(config, ignore=("num_register",))
    with pytest.raises(TypeError, match="ignore must be keys"):
        from_config(config, ignore="num_registers")


def test_what_the_library_refuses_and_its_absence_are_said(monkeypatch):
    wrong = config_of("exaone4").to_dict() | {"rope_parameters": "wide"}
    with pytest.raises(ValueError, match=r"got 'exaone4'.*; transformers .* refuses this config"):
        from_config(wrong)
    with pytest.raises(ValueError, match=r"transformers .* does not know model_type 'of-mars'"):
        from_config({"model_type": "of-mars"})
    # A type that has several classes.
    assert parameter_count(from_config({"model_type": "deit"})) == 85_801_730
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ValueError, match=r"model_type must be one of .*Install transformers 5 or later to count it"
    ):
        from_config({"model_type": "exaone4"})
