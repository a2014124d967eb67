"""Public decoders have the parameters published, and the layers and windows that their config and family say."""

import pytest

from accounting.families import from_config, transformer_from_config
from accounting.families.config_values import MODEL_TYPES
from accounting.models import parameter_counts
from meta_tests.accounting.families.published import MODELS, assert_published

LLAMA = MODELS["meta-llama/Llama-3.1-8B"]["config"]


@pytest.mark.parametrize(
    "name", [name for name, row in MODELS.items() if "build" not in MODEL_TYPES[row["config"]["model_type"]]]
)
def test_parameters_are_those_published(name):
    assert_published(name)


@pytest.mark.parametrize("biased", ["attention_bias", "mlp_bias"])
def test_biases_of_attention_and_mlp_are_those_of_a_transformer(biased):
    assert transformer_from_config(LLAMA | {biased: True}), "the parts are not those of a Transformer with biases"


def test_olmo_has_norms_without_parameters():
    assert parameter_counts(from_config(LLAMA | {"model_type": "olmo"})).keys() == {
        "embedding", "attention", "mlp", "head"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "keys"),
    [("state-spaces/mamba-130m-hf", ["use_conv_bias", "expand"]), ("ai21labs/Jamba-v0.1", ["mamba_conv_bias"])],
)
def test_mamba_has_its_defaults_where_the_config_leaves_them_out(name, keys):
    config = MODELS[name]["config"]
    assert from_config({key: value for key, value in config.items() if key not in keys}) == from_config(config)


def test_nemotrons_layers_may_be_listed_by_name_instead_of_by_a_pattern():
    config = dict(MODELS["nvidia/Nemotron-H-8B-Base-8K"]["config"])
    listed = config | {"layers_block_type": [NAMES[kind] for kind in config["hybrid_override_pattern"]]}
    short = {key: listed[key] for key in listed if key not in ("hybrid_override_pattern", "num_hidden_layers")}
    assert from_config(short) == from_config(config)


NAMES = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}


def test_of_qwen_the_layers_from_the_stated_one_on_have_the_window():
    late = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    windows = from_config(MODELS["Qwen/Qwen2.5-7B"]["config"] | late).attentions
    assert {each.window: each.layers for each in windows} == {0: 20, 4096: 8}


def test_windows_leave_mistral_at_32k_a_quarter_of_its_attention():
    model = from_config(MODELS["mistralai/Mistral-7B-v0.1"]["config"])
    [attention] = model.attentions
    full, windowed = (attention.shape(1, 32768, 32768, pairs).scores for pairs in ("full", "causal"))
    assert windowed == 32 * 32 * (32768 * 4096 - 4096 * 4095 // 2)
    assert 8.4 < full / windowed < 8.6


def test_of_llama_4_every_fourth_layer_attends_to_all_and_the_others_to_their_own_chunk():
    attentions = from_config(MODELS["meta-llama/Llama-4-Scout-17B-16E-Instruct"]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in (0, 8192)}
    assert counted == {0: 12, 8192: 36}
