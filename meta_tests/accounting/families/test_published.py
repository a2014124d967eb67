"""Public models have the parameters and FLOPs published; a config that is not understood is refused by its key.

Configs that say `copied_from` are the released file, as that repository on GitHub has it. The others were typed in;
where they say `compared_with` no size differs from that copy of the released file.
"""

import pytest

from accounting.families import (
    GPT2_SMALL,
    LLAMA3_8B,
    MIXTRAL_8X7B,
    attention,
    diffusion_transformer,
    embedding,
    from_config,
    linear,
    mlp,
    other,
    transformer_from_config,
    vision_transformer,
)
from accounting.families.config_values import MODEL_TYPES
from accounting.models import active_parameter_count, forward_flops, matmul_parameter_count, parameter_count, step_flops
from meta_tests.accounting.families.published import MODELS, model_called

LLAMA = MODELS["meta-llama/Llama-3.1-8B"]["config"]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_published(name):
    row, model = MODELS[name], model_called(name)
    assert parameter_count(model) == row["parameters"]
    if "active" in row:
        assert active_parameter_count(model) == row["active"]
    if "active_without_embedding" in row:
        assert active_parameter_count(model, input_embedding=False) == row["active_without_embedding"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("openai/gpt-oss-20b", 3.6), ("openai/gpt-oss-120b", 5.1), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 3.6)],
)
def test_active_parameters_without_the_input_embedding_are_the_billions_published(name, billions):
    active = active_parameter_count(model_called(name), input_embedding=False)
    assert round(active / 1e9, 1) == billions


def test_every_family_is_built_from_a_public_model():
    # test_transformers.py builds these from transformers' own default config.
    elsewhere = {"cohere2", "glm4_moe", "granite", "mamba2", "olmo", "olmo3", "qwen2_moe"}
    assert {row["config"]["model_type"] for row in MODELS.values()} | elsewhere == MODEL_TYPES.keys()


# The public models whose layers are alike, without windows, latents or norms of queries and keys.
PLAIN = {
    "Qwen/Qwen2.5-7B", "google/gemma-7b", "HuggingFaceTB/SmolLM3-3B", "meta-llama/Llama-3.1-405B",
    "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "openai-community/gpt2", "openai-community/gpt2-xl",
    "stabilityai/stablelm-3b-4e1t",
}  # fmt: skip


def test_only_a_plain_decoder_is_a_transformer():
    found = {name: transformer_from_config(row["config"]) for name, row in MODELS.items()}
    assert {name for name, model in found.items() if model} == PLAIN
    assert found["openai-community/gpt2"] == GPT2_SMALL
    assert found["meta-llama/Llama-3.1-8B"] == LLAMA3_8B
    assert found["mistralai/Mixtral-8x7B-v0.1"] == MIXTRAL_8X7B


# FLOPs per token of a training step as torchtitan states them: without embedding look-ups, with full attention.
@pytest.mark.parametrize(
    ("name", "sequence", "flops"),
    [("Qwen/Qwen3-30B-A3B", 8192, 37_578_559_488), ("openai/gpt-oss-20b", 4096, 26_481_681_792)],
)
def test_flops_of_a_token_are_those_that_torchtitan_reports(name, sequence, flops):
    model = model_called(name)
    ours = step_flops(model, 1, sequence).model // sequence
    elementwise = 6 * (active_parameter_count(model, input_embedding=False) - matmul_parameter_count(model))
    assert ours + elementwise == flops


def test_the_text_part_of_a_model_of_text_and_images_is_read_on_demand():
    row = MODELS["meta-llama/Llama-4-Scout-17B-16E-Instruct"]
    text = {key: value for key, value in row["config"].items() if key != "model_type"}
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}
    assert parameter_count(from_config(whole, text_only=True)) == row["parameters"]
    with pytest.raises(ValueError, match="text_only=True reads"):
        from_config(whole)


def test_windows_and_chunks_are_those_of_the_papers():
    [mistral] = model_called("mistralai/Mistral-7B-v0.1").attentions
    scores = mistral.shape(1, 32768, 32768, "causal").scores
    assert scores == 32 * 32 * (32768 * 4096 - 4096 * 4095 // 2)
    llama4 = model_called("meta-llama/Llama-4-Scout-17B-16E-Instruct").attentions
    layers = {size: sum(each.layers for each in llama4 if each.window == size) for size in (0, 8192)}
    assert layers == {0: 12, 8192: 36}, "every fourth layer attends to all tokens"


def test_whole_networks_take_the_multiply_adds_published():
    assert forward_flops(model_called("microsoft/resnet-50"), 1) / 2 == pytest.approx(4.089e9, rel=1e-3)  # torchvision
    # 118.64 billion multiply-adds of DiT-XL/2 on latents of 32 × 32: arXiv:2212.09748, table 1
    model = diffusion_transformer(1152, 28, 16, 256, 16, 1000)
    assert forward_flops(model, 1) / 2 == pytest.approx(118.64e9, rel=5e-4)
    # 17.6 billion multiply-adds of ViT-B/16 at 224 × 224; torchvision prints 17.56
    model = vision_transformer(768, 12, 12, 3072, 196, 768, 1000)
    assert parameter_count(model) == 86_567_656
    assert forward_flops(model, 1, 999) == forward_flops(model, 1) == pytest.approx(2 * 17.56e9, rel=0.01)
    # arXiv:2204.02311, table 1: PaLM has parallel layers of one norm, one head of keys and values, SwiGLU, no biases
    dim, norm = 18432, other("norms", 18432)
    layer = norm + (attention(dim, 48, 256, 1) | mlp(dim, 4 * dim, gated=True))
    palm = embedding(256_000, dim) + 118 * layer + norm + linear("head", dim, 256_000, copies=0)
    assert parameter_count(palm) == pytest.approx(540.35e9, rel=2e-5)


def test_a_sequence_beyond_the_learned_positions_is_refused():
    model = model_called("FacebookAI/roberta-base")  # two of its 514 positions are for padding
    assert step_flops(model, 1, 512).forward > 0
    with pytest.raises(ValueError, match="sequence must be at most learned_positions=512, got 513"):
        step_flops(model, 1, 513)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "lama"}, "model_type must be one of .*, got 'lama'; did you mean 'llama'"),
        ({"hidden_size": None}, "config must have 'hidden_size' or 'n_embd' or 'n_embed' for a model of type 'llama'"),
        ({"num_registers": 4}, "config has num_registers=4, which may change the shape and is not read"),
        ({"hybrid_override_pattern": "M*"}, "config has hybrid_override_pattern='M\\*', which may change the shape"),
        ({"qk_layernorm": True}, "config has qk_layernorm=True, which is not read for a model of type 'llama'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1, got -1"),
        ({"num_key_value_heads": 5}, "heads must be a multiple of kv_heads, got heads=32 and kv_heads=5"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_the_keys_name(changed, message):
    with pytest.raises(ValueError, match=message):
        from_config(LLAMA | changed)
