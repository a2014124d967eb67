"""Models built from a config.json: 44 public ones of 39 types, to the last digit of their parameters.

Of those that say `copied_from` the config is the released file, as that repository on GitHub has it. The others were
typed in, with the keys that size a model and a selection of the rest; where they say `compared_with` no size differs
from that copy of the released file. The counts are held once more, against what transformers builds of the same config,
in test_transformers.py.
"""

import json
from pathlib import Path

import pytest

from accounting.config import MODEL_TYPES, from_config
from accounting.models import active_parameter_count, matmul_parameter_count, parameter_count, step_flops

MODELS = json.loads(Path(__file__).with_name("published_models.json").read_text())
published = pytest.mark.parametrize("name", MODELS)


@pytest.mark.prove(sample=10)
@published
def test_parameters_are_those_published(name):
    formula, should = parameter_count(from_config(MODELS[name]["config"])), MODELS[name]["parameters"]
    assert formula == should, f"{formula=}, but published are {should} [{name}]"


@pytest.mark.parametrize(
    "name", [name for name, row in MODELS.items() if row.keys() & {"active", "active_without_embedding"}]
)
def test_active_parameters_are_those_published(name):
    row, model = MODELS[name], from_config(MODELS[name]["config"])
    if "active" in row:
        assert active_parameter_count(model) == row["active"]
    else:
        assert active_parameter_count(model, input_embedding=False) == row["active_without_embedding"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("openai/gpt-oss-20b", 3.6), ("openai/gpt-oss-120b", 5.1), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 3.6)],
)
def test_active_parameters_without_the_input_embedding_are_the_billions_published(name, billions):
    active = active_parameter_count(from_config(MODELS[name]["config"]), input_embedding=False)
    assert round(active / 1e9, 1) == billions


def test_every_family_is_built_from_a_public_model():
    # The config of these is that of transformers' own defaults, in test_transformers.py.
    elsewhere = {"cohere2", "glm4_moe", "granite", "mamba2", "olmo", "olmo3", "qwen2_moe"}
    assert {row["config"]["model_type"] for row in MODELS.values()} | elsewhere == MODEL_TYPES.keys()


def test_multi_token_prediction_is_added_on_demand():
    row = MODELS["deepseek-ai/DeepSeek-V3"]
    whole = from_config(row["config"], multi_token_prediction=True)
    assert parameter_count(whole) == row["with_mtp"]


def test_a_config_is_read_from_its_file_or_the_folder_of_it(tmp_path):
    config = MODELS["openai-community/gpt2"]["config"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert from_config(path) == from_config(str(tmp_path)) == from_config(config)


# FLOPs a token of a training step as torchtitan states them: without the look-up of the embedding, attention in full.
@pytest.mark.parametrize(
    ("name", "sequence", "flops"),
    [("Qwen/Qwen3-30B-A3B", 8192, 37_578_559_488), ("openai/gpt-oss-20b", 4096, 26_481_681_792)],
)
def test_flops_of_a_token_are_those_that_torchtitan_reports(name, sequence, flops):
    model = from_config(MODELS[name]["config"])
    ours = step_flops(model, 1, sequence).model // sequence
    elementwise = 6 * (active_parameter_count(model, input_embedding=False) - matmul_parameter_count(model))
    assert ours + elementwise == flops


def test_windows_leave_mistral_at_32k_a_quarter_of_its_attention():
    model = from_config(MODELS["mistralai/Mistral-7B-v0.1"]["config"])
    [attention] = model.attentions
    full, windowed = (attention.shape(1, 32768, 32768, pairs).scores for pairs in ("full", "causal"))
    assert windowed == 32 * 32 * (32768 * 4096 - 4096 * 4095 // 2)
    assert 8.4 < full / windowed < 8.6


LLAMA = MODELS["meta-llama/Llama-3.1-8B"]["config"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "lama"}, "model_type must be one of .*, got 'lama'; did you mean 'llama'"),
        ({"hidden_size": None}, "config must have 'hidden_size' or 'n_embd' or 'n_embed' for a model of type 'llama'"),
        (
            {"num_registers": 4},
            "config has num_registers=4, which may change the shape and is not read for type 'llama'",
        ),
        ({"use_side_gate": False}, "config has use_side_gate=False, which may change the shape"),
        ({"expand_factor": 4}, "config has expand_factor=4, which may change the shape"),
        ({"hybrid_override_pattern": "M*"}, "config has hybrid_override_pattern='M\\*', which may change the shape"),
        ({"qk_layernorm": True}, "config has qk_layernorm=True, which is not read for a model of type 'llama'"),
        ({"sliding_window": 4096}, "config has sliding_window=4096, which may change the shape"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1, got -1"),
        ({"num_key_value_heads": 5}, "heads must be a multiple of kv_heads, got heads=32 and kv_heads=5"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_the_keys_name(changed, message):
    with pytest.raises(ValueError, match=message):
        from_config(LLAMA | changed)


@pytest.mark.parametrize("named", [{}, {"model_type": "llama4_text"}])
def test_of_a_model_of_text_and_images_the_text_part_is_read_on_demand(named):
    name = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    text = {key: value for key, value in MODELS[name]["config"].items() if key != "model_type"} | named
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}
    assert parameter_count(from_config(whole, text_only=True)) == MODELS[name]["parameters"]
    message = "config is that of a model of more than text, 'llama4'; text_only=True reads its text_config"
    with pytest.raises(ValueError, match=message):
        from_config(whole)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        # every fourth layer attends to all, the others to their own chunk of 8,192
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {0: 12, 8192: 36}),
        # every third to all, the others to the 64 tokens on either side and the token itself
        ("answerdotai/ModernBERT-base", {0: 8, 65: 14}),
    ],
)
def test_windows_are_those_of_the_layers(name, windows):
    attentions = from_config(MODELS[name]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in windows}
    assert counted == windows


def test_a_key_that_is_unset_is_no_matter():
    assert from_config(LLAMA | {"pruned_heads": {}, "some_option": None}) == from_config(LLAMA)
