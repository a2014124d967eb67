"""Models built from a config.json: 44 public ones of 39 types, to the last digit of their parameters.

Of those that say `copied_from` the config is the released file, as that repository on GitHub has it. The others were
typed in, with the keys that size a model and a selection of the rest; where they say `compared_with` no size differs
from that copy of the released file. `test_decoder_config.py` and `test_encoder_config.py` hold the counts of parameters
to those published. They are held once more, against what transformers builds of the same config,
in test_transformers.py.
"""

import json

import pytest

from accounting.families import GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B, from_config, transformer_from_config
from accounting.families.config import BUILDERS
from accounting.families.config_values import MODEL_TYPES
from accounting.models import active_parameter_count, matmul_parameter_count, parameter_count, step_flops
from meta_tests.accounting.families.published import MODELS, assert_published, model_called


def test_every_reader_of_configs_makes_the_model_published():
    readers = {MODEL_TYPES[row["config"]["model_type"]].get("build", "decoder"): name for name, row in MODELS.items()}
    assert readers.keys() == BUILDERS.keys()
    for name in readers.values():
        assert_published(name)


def test_what_the_code_of_a_family_fixes_is_refused_where_a_config_says_otherwise():
    bert = MODELS["google-bert/bert-base-uncased"]["config"]
    for changed in ({"tie_word_embeddings": False}, {"position_embedding_type": "relative_key"}):
        [(name, value)] = changed.items()
        with pytest.raises(ValueError, match=f"config has {name}={value!r}, which is not read for a model of type"):
            from_config(bert | changed)


def test_what_is_no_config_is_refused_with_what_one_is(tmp_path):
    (path := tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ValueError, match=r"config must be JSON, got .*config\.json: Expecting value: line 1 column 16"):
        from_config(path)
    with pytest.raises(ValueError, match=r"config must have .model_type., the name of its family, got hidden_size$"):
        from_config({"hidden_size": 8})
    with pytest.raises(TypeError, match=r"config must be a mapping or the path of a config\.json, got a list"):
        from_config([{"model_type": "llama"}])
    path.write_text("[1]")
    with pytest.raises(TypeError, match=r"config must be a dict, got \[1\] of type list"):
        from_config(path)


@pytest.mark.parametrize(
    "name", [name for name, row in MODELS.items() if row.keys() & {"active", "active_without_embedding"}]
)
def test_active_parameters_are_those_published(name):
    row, model = MODELS[name], model_called(name)
    if "active" in row:
        assert active_parameter_count(model) == row["active"]
    else:
        assert active_parameter_count(model, input_embedding=False) == row["active_without_embedding"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("openai/gpt-oss-20b", 3.6), ("openai/gpt-oss-120b", 5.1), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 3.6)],
)
def test_active_parameters_without_the_input_embedding_are_the_billions_published(name, billions):
    active = active_parameter_count(model_called(name), input_embedding=False)
    assert round(active / 1e9, 1) == billions


def test_every_family_is_built_from_a_public_model():
    # The config of these is that of transformers' own defaults, in test_transformers.py.
    elsewhere = {"cohere2", "glm4_moe", "granite", "mamba2", "olmo", "olmo3", "qwen2_moe"}
    assert {row["config"]["model_type"] for row in MODELS.values()} | elsewhere == MODEL_TYPES.keys()


def test_at_least_25_public_models_have_the_sizes_of_the_released_file():
    held = [row for row in MODELS.values() if row.keys() & {"copied_from", "compared_with"}]
    assert len(held) >= 25
    assert len({row["config"]["model_type"] for row in held}) >= 12


def test_multi_token_prediction_is_added_on_demand():
    row = MODELS["deepseek-ai/DeepSeek-V3"]
    whole = from_config(row["config"], multi_token_prediction=True)
    assert parameter_count(whole) == row["with_mtp"]


def test_a_config_is_read_from_its_file_or_the_folder_of_it(tmp_path):
    config = MODELS["openai-community/gpt2"]["config"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert from_config(path) == from_config(str(tmp_path)) == from_config(config)


# Of the public models above those whose layers are alike, without windows, latents or norms of queries and keys.
PLAIN = {
    "Qwen/Qwen2.5-7B", "google/gemma-7b", "HuggingFaceTB/SmolLM3-3B", "meta-llama/Llama-3.1-405B",
    "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "openai-community/gpt2", "openai-community/gpt2-xl",
    "stabilityai/stablelm-3b-4e1t",
}  # fmt: skip


def test_a_plain_decoder_is_had_as_a_transformer_of_the_same_parts_and_no_other_model():
    found = {name: transformer_from_config(row["config"]) for name, row in MODELS.items()}
    assert {name for name, model in found.items() if model} == PLAIN
    assert found["openai-community/gpt2"] == GPT2_SMALL
    assert found["meta-llama/Llama-3.1-8B"] == LLAMA3_8B
    assert found["mistralai/Mixtral-8x7B-v0.1"] == MIXTRAL_8X7B


# FLOPs a token of a training step as torchtitan states them: without the look-up of the embedding, attention in full.
@pytest.mark.parametrize(
    ("name", "sequence", "flops"),
    [("Qwen/Qwen3-30B-A3B", 8192, 37_578_559_488), ("openai/gpt-oss-20b", 4096, 26_481_681_792)],
)
def test_flops_of_a_token_are_those_that_torchtitan_reports(name, sequence, flops):
    model = model_called(name)
    ours = step_flops(model, 1, sequence).model // sequence
    elementwise = 6 * (active_parameter_count(model, input_embedding=False) - matmul_parameter_count(model))
    assert ours + elementwise == flops


@pytest.mark.parametrize("named", [{}, {"model_type": "llama4_text"}])
def test_of_a_model_of_text_and_images_the_text_part_is_read_on_demand(named):
    name = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    text = {key: value for key, value in MODELS[name]["config"].items() if key != "model_type"} | named
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}
    assert parameter_count(from_config(whole, text_only=True)) == MODELS[name]["parameters"]
    message = "config is that of a model of more than text, 'llama4'; text_only=True reads its text_config"
    with pytest.raises(ValueError, match=message):
        from_config(whole)
