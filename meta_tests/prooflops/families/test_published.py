"""Public models have the parameters and FLOPs published.

A config that is not understood is refused by its key.

Configs that say `copied_from` are the released file, as that repository on GitHub has it. The
others were typed in; where they say `compared_with` no size differs from that copy of the released
file. Those with `defaults` state what differs from the defaults of the type in transformers, which
are that model's. `figure_from` says where the count, or the rounded `published` one, was found in
print, or that it is from memory.
"""

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from accounting.models import active_parameter_count, forward_flops, parameter_count
from accounting.units import amount
from prooflops import families
from prooflops.counted.built import from_config
from prooflops.families.config import presets
from prooflops.families.decoders import MODEL_TYPES

# Every run counts these models of transformers; `make prove` counts all.
ASKED = (
    "microsoft/swin-tiny-patch4-window7-224",
    "openai/clip-vit-base-patch32",
    "zai-org/GLM-5",
    "google/flan-t5-small",
)
MODELS = presets() | json.loads(Path(__file__).with_name("published.json").read_text())
LLAMA = MODELS["meta-llama/Llama-3.1-8B"]["config"]


@cache
def model_called(name):
    return from_config(MODELS[name]["config"])


def case(name):
    """One of these, or by `make prove` one that takes seconds, since transformers is asked."""
    asked = name not in ASKED and MODELS[name]["config"]["model_type"] not in MODEL_TYPES
    return pytest.param(name, marks=pytest.mark.prove if asked else ())


@pytest.mark.parametrize("name", [case(name) for name, row in MODELS.items() if "published" in row])
@pytest.mark.filterwarnings("ignore:.*ignores")
def test_counts_agree_with_the_figures_printed_for_the_model(name):
    row, model = MODELS[name], model_called(name)
    counts = {"published": parameter_count, "published_active": active_parameter_count}
    for figure in counts.keys() & row:
        printed = row[figure]
        digit = amount("1" + printed[-1], "digit") / 10 ** len(printed[:-1].partition(".")[2])
        got = counts[figure](model)
        assert abs(got - amount(printed, figure)) < digit


@pytest.mark.parametrize(
    "name", [case(name) for name, row in MODELS.items() if "parameters" in row]
)
@pytest.mark.filterwarnings("ignore:.*ignores")
def test_parameters_are_those_published(name):
    row, model = MODELS[name], model_called(name)
    assert parameter_count(model) == row["parameters"]
    if "active" in row:
        assert active_parameter_count(model) == row["active"]


def test_a_reward_model_has_one_score_for_a_vocabulary_of_logits():
    reward = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    assert parameter_count(families.from_config(LLAMA | reward)) == 7_504_928_768


def test_the_text_part_of_a_model_of_text_and_images_is_read_on_demand(monkeypatch):
    gemma = {"model_type": "gemma3", "text_config": MODELS["google/gemma-3-1b-pt"]["config"]}
    assert families.from_config(gemma, text_only=True) == model_called("google/gemma-3-1b-pt")
    classifier = {"architectures": ["Gemma3ForSequenceClassification"], "num_labels": 5}
    text = gemma["text_config"] | classifier
    assert families.from_config(gemma | classifier, text_only=True) == families.from_config(text)
    whole = {"model_type": "llama", "text_config": LLAMA, "vision_config": {"hidden_size": 1408}}
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ValueError, match=r"text_only=True reads .* Install transformers 5 or later"
    ):
        from_config(whole)


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    # The figures are those of torchvision and, with 77 tokens, of open_clip.
    [
        ("microsoft/resnet-50", 4.089e9),
        ("google/vit-base-patch16-224", 17.56e9),
        ("openai/clip-vit-base-patch32", 7.39e9),
    ],
)
def test_whole_networks_take_the_multiply_adds_published(name, multiply_adds):
    flops = forward_flops(model_called(name), 1, 77)
    assert flops == pytest.approx(2 * multiply_adds, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "lama"}, "model_type must be one of .*, got 'lama'; did you mean 'llama'"),
        (
            {"model_type": "mamba"},
            r"got 'mamba'.*; prooflops\.counted\.built\.from_config reads what transformers reads$",
        ),
        (
            {"hidden_size": None},
            "config must have 'hidden_size' or 'n_embd' for a model of type 'llama'",
        ),
        (
            {"hybrid_override_pattern": "M*"},
            "config has hybrid_override_pattern='M\\*', which may change the shape",
        ),
        (
            {"qk_layernorm": True},
            "config has qk_layernorm=True, which is not read for a model of type 'llama'",
        ),
        (
            {"layer_types": ["full_attention"]},
            "layer_types must have an entry for each of 32 layers, got 1",
        ),
        (
            {"layer_types": ["linear_attention"] * 32},
            "layer_types must be of full_attention, sliding_attention .*, got 'linear_attention'",
        ),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_the_keys_name(changed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        families.from_config(LLAMA | changed)


DEEPSEEK = MODELS["deepseek-ai/DeepSeek-V3"]["config"]
MIXTRAL = MODELS["mistralai/Mixtral-8x7B-v0.1"]["config"]
QWEN_MOE = MODELS["Qwen/Qwen3-30B-A3B"]["config"]


@pytest.mark.parametrize(
    ("config", "key", "value", "valid"),
    [
        (LLAMA, "num_hidden_layers", [32], "an integer"),
        (LLAMA, "attention_bias", "no", "True or False"),
        (LLAMA, "num_key_value_heads", 7, "divide num_attention_heads=32"),
        (MIXTRAL, "num_experts_per_tok", 9, "from 1 to num_local_experts=8"),
        (LLAMA, "head_dim", 0, "from 1 to"),
        (QWEN_MOE, "decoder_sparse_step", 0, "from 1 to"),
        (QWEN_MOE, "mlp_only_layers", "all", "a sequence of integers"),
        (DEEPSEEK, "q_lora_rank", -1, "from 0 to"),
        (LLAMA, "vision_config.hidden_size", 1408.5, "an integer"),
    ],
)
def test_a_value_of_nonsense_is_refused_by_its_key_and_the_valid_ones(config, key, value, valid):
    part, _, name = key.rpartition(".")
    changed = {part: {name: value}} if part else {name: value}
    with pytest.raises((TypeError, ValueError), match=rf"^{key} must .*{valid}.*, got"):
        families.from_config(config | changed)
