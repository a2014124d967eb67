"""What the formulas do not read, transformers is asked.

It gives the parameters, and the FLOPs of a run without values.
"""

import sys
from itertools import chain

import pytest

from accounting.models import cache_bytes, forward_flops, parameter_count, step_flops
from meta_tests.accounting.test_activations import saved_bytes
from meta_tests.prooflops.families.test_transformers import (
    BATCH,
    TOKENS,
    arguments,
    built,
    config_of,
    corrections,
    counted_step,
    held_bytes,
    sequence_of,
    transformers,
)
from prooflops import families
from prooflops.counted.built import CountedModel, activation_bytes, from_config
from prooflops.families.decoders import MODEL_TYPES

# Encoders with decoders; turns without gradients; hybrids of two kinds of layers, with experts;
# encoders; images.
SAMPLE = ("t5", "hrm_text", "qwen3_next", "bert", "resnet")
PROVED = [pytest.param(name, marks=pytest.mark.prove) for name in ("whisper", "exaone4")]
# Of which a cache is known.
DECODERS = ("t5", "whisper", "exaone4", "qwen3_next")


@pytest.mark.parametrize("type_", [*SAMPLE, *PROVED])
def test_the_model_asked_for_is_that_which_transformers_builds_and_runs(type_):
    assert type_ not in MODEL_TYPES
    config = config_of(type_)
    net, model = built(config), from_config(config)
    assert parameter_count(model) == sum(
        each.numel() for each in chain(net.parameters(), corrections(net))
    )
    step = step_flops(model, BATCH, sequence_of(type_))
    assert (step.forward, step.backward) == counted_step(type_, net)
    if type_ in DECODERS:
        assert cache_bytes(model, BATCH, sequence_of(type_), "fp32") == held_bytes(type_, net)
    assert (
        repr(model) == f"<counted: {type(net).__name__} of transformers {transformers.__version__}>"
    )


@pytest.mark.parametrize("type_", ["llama", "deepseek_v3", "phimoe", "mamba2"])
def test_activations_are_the_tensors_that_the_model_really_keeps(type_):
    config = config_of(type_)
    config.dtype = "bfloat16"
    got = activation_bytes(config, BATCH, TOKENS, "bf16", attention="unfused")
    should = kept_bytes(type_, built(config), "eager")
    assert got == should, f"activation_bytes={got}, but {should} are kept [{type_}]"


@pytest.mark.parametrize("type_", ["qwen3_next", "gemma3_text", "t5"])
def test_a_long_cache_follows_from_short_runs(type_):
    config = config_of(type_)
    config.max_position_embeddings = 128
    model, net = from_config(config.to_dict()), built(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meta_tests.prooflops.families.test_transformers.TOKENS", 50)
        patch.setattr("meta_tests.prooflops.families.test_transformers.SOURCE", 30)
        held, sequence = held_bytes(type_, net), sequence_of(type_)
    assert cache_bytes(model, BATCH, sequence, "fp32") == held
    if type_ == "qwen3_next":
        of_state = cache_bytes(model, 1, 65_536) - cache_bytes(model, 1, 65_535)
        assert 0 < of_state < cache_bytes(model, 1, 1), "only keys and values grow with the context"


@pytest.mark.parametrize(("type_", "tokens"), [("qwen3_next", 329), ("minimax", 47), ("mamba", 25)])
def test_a_long_step_of_a_net_that_loops_is_that_of_its_whole_run(type_, tokens, monkeypatch):
    config = looping(type_)
    net, model = built(config), from_config(config.to_dict())
    monkeypatch.setattr("meta_tests.prooflops.families.test_transformers.TOKENS", tokens)
    step = step_flops(model, BATCH, tokens)
    assert (step.forward, step.backward) == counted_step(type_, net)
    config.dtype = "bfloat16"
    kept = activation_bytes(config, BATCH, tokens, "bf16", attention="unfused")
    assert kept == kept_bytes(type_, built(config), "eager")


def test_a_step_of_a_million_tokens_is_no_slower_than_a_short_one():
    model = from_config(looping("qwen3_next").to_dict())
    lengths = [64 * (15_625 + more) for more in range(4)]
    first, second, third, fourth = (forward_flops(model, 1, each) for each in lengths)
    assert fourth - 3 * third + 3 * second - first == 0, "FLOPs are of degree 2 in the tokens"


def looping(type_):
    config = config_of(type_)
    if type_ == "minimax":
        config.block_size = 8
    return config


def kept_bytes(family, net, attention):
    for module in net.modules():
        if hasattr(module, "config"):
            # Experts as they train: no matrix is kept for every token.
            module.config._experts_implementation = "grouped_mm"
            module.config._attn_implementation = attention
    given = arguments(family)
    cache = {"use_cache": False} if hasattr(net.config, "use_cache") else {}
    held = [*net.parameters(), *net.buffers(), *given.values()]
    return saved_bytes(lambda: net(**given, **cache), held)


def test_keys_that_the_library_ignores_are_named():
    config = config_of("exaone4").to_dict() | {"num_registers": 4, "early_stopping": True}
    with pytest.warns(UserWarning, match=r"of transformers .* ignores num_registers=4$"):
        model = from_config(config)
    assert isinstance(model, CountedModel)
    assert model.ignored == ("num_registers",)
    assert from_config(config, ignore=["num_registers"]).linear_maps == model.linear_maps


@pytest.mark.parametrize(
    ("type_", "key", "values"),
    [
        ("kimi_linear", "first_k_dense_replace", (1, 3)),
        ("kimi_linear", "linear_attn_config", ({"head_dim": 8}, {"head_dim": 16})),
        ("qwen3_5_text", "full_attention_interval", (2, 4)),
    ],
)
@pytest.mark.filterwarnings("error:.*ignores")
def test_a_key_that_the_library_reads_at_building_is_not_called_ignored(type_, key, values):
    config = config_of(type_).to_dict()
    for stated in ("layer_types", "mlp_layer_types"):
        config.pop(stated, None)
    counts = {parameter_count(from_config(config | {key: value})) for value in values}
    assert len(counts) == 2, f"{counts} parameters with {key} of {values}"


def test_a_key_that_nets_read_as_they_run_is_not_refused():
    windowed = from_config(config_of("olmoe").to_dict() | {"sliding_window": 4})
    assert isinstance(windowed, CountedModel)
    assert windowed.ignored == ()


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [
        ("qwen3_5_text", "attn_output_gate", False),
        ("nemotron_h", "mamba_proj_bias", True),
        ("nemotron_h", "n_shared_experts", 2),
        ("deepseek_v32", "mlp_bias", True),
        ("mpt", "no_bias", False),
    ],
)
def test_a_key_that_the_library_keeps_and_no_net_reads_is_named(type_, key, value):
    config = config_of(type_).to_dict()
    with pytest.warns(UserWarning, match=rf"ignores {key}={value}$"):
        model = from_config(config | {key: value})
    assert model.linear_maps == from_config(config).linear_maps


def test_more_chosen_experts_than_there_are_are_refused_by_each_of_their_names():
    config = {"model_type": "kimi_linear", "num_experts": 4, "num_experts_per_token": 8}
    with pytest.raises(ValueError, match=r"num_experts_per_tok must be at most .*=4, got 8"):
        from_config(config)


def test_a_key_that_nobody_reads_is_refused_until_it_is_ignored():
    config = config_of("llama").to_dict() | {"num_registers": 4}
    with pytest.raises(
        ValueError,
        match=r"num_registers=4, .* it reads no num_registers; ignore=\('num_registers',\)",
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
    with pytest.raises(
        ValueError, match=r"for its UNet2DModel(. With diffusers installed|; diffusers .* refuses)"
    ):
        from_config({"_class_name": "UNet2DModel", "layers_per_block": "two"})
    with pytest.raises(
        ValueError, match=r"pairs must be 'full' for counted: Exaone4.*, got 'causal'"
    ):
        step_flops(from_config(config_of("exaone4")), 1, 8, pairs="causal")
    # A type that has several classes.
    assert parameter_count(from_config({"model_type": "deit"})) == 85_801_730
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ValueError, match=r"model_type must be one of .*With transformers 5 or later installed"
    ):
        from_config({"model_type": "exaone4"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_attention_heads": 33}, "num_attention_heads must divide .*32.*, got 33"),
        ({"hidden_size": True}, "hidden_size must be an integer, got True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be from 1 to 10,000, got"),
        ({"intermediate_size": -1}, "intermediate_size must be from 0 to .*, got -1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide .*=4, got 3"),
        ({"sliding_window": -1}, "sliding_window must be from 0 to .*, got -1"),
    ],
)
@pytest.mark.parametrize("type_", ["llama", "exaone4"])
def test_a_size_that_no_model_can_have_is_refused_by_its_key(type_, changed, message):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 48, "vocab_size": 50, "model_type": type_}
    with pytest.raises((TypeError, ValueError), match=message):
        from_config(sizes | changed)
