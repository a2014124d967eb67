"""What the families do not read, transformers is asked: its modules' parameters, and FLOPs of a run without values."""

import sys  # noqa: I001
from itertools import chain

import pytest

from accounting.activations import activation_bytes
from prooflops.counted.built import CountedModel
from accounting.families import from_config
from accounting.families.architectures import MODEL_TYPES
from accounting.models import cache_bytes, parameter_count, step_flops
from accounting.parallel import Parallelism
from accounting.planning import step_plan
from meta_tests.accounting.families.test_transformers import (
    BATCH, TOKENS, arguments, built, config_of, corrections, counted_step, families, held_bytes, sequence_of,
    transformers,
)  # fmt: skip
from meta_tests.accounting.test_activations import saved_bytes

# Of no family: layers of two kinds, experts, turns without gradients; pairs of encoder and decoder, encoders, images,
# speech.
UNKNOWN = (
    "exaone4",
    "phimoe",
    "hrm_text",
    "bart",
    "bert",
    "resnet",
    "roberta",
    "t5",
    "vit",
    "whisper",
)


@pytest.mark.parametrize("type_", UNKNOWN)
def test_the_model_asked_for_is_that_which_transformers_builds_and_runs(type_):
    assert type_ not in MODEL_TYPES
    config = config_of(type_)
    net, model = built(config), from_config(config)
    assert parameter_count(model) == sum(
        each.numel() for each in chain(net.parameters(), corrections(net))
    )
    step = step_flops(model, BATCH, sequence_of(type_))
    assert (step.forward, step.backward) == counted_step(type_, net)
    if type_ in ("exaone4", "bart", "t5", "whisper"):
        assert cache_bytes(model, BATCH, sequence_of(type_), "fp32") == held_bytes(type_, net)
    assert (
        repr(model) == f"<counted: {type(net).__name__} of transformers {transformers.__version__}>"
    )


@families
def test_activations_are_the_tensors_that_the_model_really_keeps(family):
    config = config_of(family)
    config.dtype = "bfloat16"
    got = activation_bytes(
        from_config(config.to_dict()), BATCH, TOKENS, "bf16", attention="unfused"
    )
    should = kept_bytes(family, built(config), "eager")
    assert got == should, f"activation_bytes={got}, but {should} are kept [{family}]"


def test_activations_with_flash_attention_are_those_kept_where_heads_share_no_keys():
    config = config_of("llama")
    config.num_key_value_heads = (
        config.num_attention_heads
    )  # which the CPU's flash attention takes without repeating
    got = activation_bytes(from_config(config.to_dict()), BATCH, TOKENS)
    should = kept_bytes("llama", built(config), "sdpa")
    assert got == should, f"activation_bytes={got}, but {should} are kept"
    latent = activation_bytes(from_config("deepseek-ai/DeepSeek-V2-Lite"), 1, 4096, "bf16")
    assert latent < activation_bytes(
        from_config("deepseek-ai/DeepSeek-V2-Lite"), 1, 4096, "bf16", attention="unfused"
    )


def test_a_model_that_was_asked_for_is_planned_by_its_experts_and_saved_tensors():
    model, split = from_config(config_of("phimoe")), Parallelism(data=2, expert=2)
    rates = {
        "memory_bytes": 10**9,
        "peak_flop_per_s": 1e12,
        "wire_bytes_per_s": 1e9,
        "recipe": "bf16",
    }
    plan = step_plan(model, split, 2, TOKENS, **rates)
    experts = sum(maps.parameters for maps in model.linear_maps if maps.part == "experts")
    assert plan.state.parameters == 2 * (parameter_count(model) - experts // 2)
    assert plan.activation_bytes == activation_bytes(model, 1, TOKENS, "bf16")
    with pytest.raises(
        ValueError, match="tensor and context must be 1 for a model whose heads are unknown, got 2"
    ):
        step_plan(model, Parallelism(tensor=2), 2, TOKENS, **rates)


@pytest.mark.prove
def test_a_model_that_cannot_do_without_an_image_is_given_one():
    one, more = (step_flops(from_config(config_of("blip")), 1, tokens).forward for tokens in (1, 9))
    assert one > 100 * (more - one) / 8 > 0, (
        f"{one:,} FLOPs with one token, of which the image has most; {more:,} with 9"
    )


def kept_bytes(family, net, attention):
    for module in net.modules():
        if hasattr(module, "config"):  # experts as they train: no matrix is kept for every token
            module.config._experts_implementation, module.config._attn_implementation = (
                "grouped_mm",
                attention,
            )
    given, cache = (
        arguments(family),
        {"use_cache": False} if hasattr(net.config, "use_cache") else {},
    )
    return saved_bytes(
        lambda: net(**given, **cache), [*net.parameters(), *net.buffers(), *given.values()]
    )


def test_keys_that_the_library_ignores_are_named():
    config = config_of("exaone4").to_dict() | {"num_registers": 4, "early_stopping": True}
    with pytest.warns(UserWarning, match=r"of transformers .* ignores num_registers=4$"):
        model = from_config(config)
    assert isinstance(model, CountedModel)
    assert model.ignored == ("num_registers",)
    assert from_config(config, ignore=["num_registers"]).linear_maps == model.linear_maps  # type: ignore[attr-defined]


def test_a_key_of_a_family_that_nobody_reads_is_refused_until_it_is_ignored():
    config = config_of("llama").to_dict() | {"num_registers": 4}
    with pytest.raises(
        ValueError,
        match=r"num_registers=4, .* it reads no num_registers; ignore=\('num_registers',\)",
    ):
        from_config(config)
    assert from_config(config, ignore=("num_registers",)) == from_config(config_of("llama"))
    with pytest.raises(
        ValueError, match=r"ignore must be one of .*, got 'num_register'; did you mean"
    ):
        from_config(config, ignore=("num_register",))
    with pytest.raises(TypeError, match="ignore must be keys"):
        from_config(config, ignore="num_registers")


def test_what_the_library_refuses_and_its_absence_are_said(monkeypatch):
    wrong = config_of("exaone4").to_dict() | {"hidden_size": "wide"}
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
    assert (
        parameter_count(from_config({"model_type": "deit"})) == 85_801_730
    )  # which has several classes
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ValueError, match=r"model_type must be one of .*With transformers 5 or later installed"
    ):
        from_config({"model_type": "exaone4"})
