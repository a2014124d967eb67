"""Small models of each family as transformers builds them.

Their FLOPs, cache and parameters are the formulas'.

A sample in each run; all families by `make prove`.
"""

import json
from itertools import chain

import pytest
import torch
from torch import nn

from accounting.models import active_parameter_count, cache_bytes, parameter_count, step_flops
from meta_tests.conftest import recorded
from prooflops import counted
from prooflops.counted import library_step
from prooflops.counted.built import from_library, net_of
from prooflops.families import from_config
from prooflops.families.decoders import MODEL_TYPES

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e .[dev]"
)
auto = pytest.importorskip("transformers.models.auto.modeling_auto")

BATCH, TOKENS, SOURCE = 2, 16, 10
# Windows and a tied head; latent attention and experts.
SAMPLE = ("gemma2", "deepseek_v3")
# Their architectures, too.
HEADED = ("llama", "gpt2")
# transformers has no kimi_k2, which is DeepSeek-V3's.
FAMILIES = [name for name in MODEL_TYPES if name in transformers.CONFIG_MAPPING]
PROVED = [pytest.param(name, marks=pytest.mark.prove) for name in FAMILIES if name not in SAMPLE]
SAMPLED = [name for name in SAMPLE if name in FAMILIES]
families = pytest.mark.parametrize("family", [*SAMPLED, *PROVED])
# Any of these keys that a family has.
SMALL = {
    key: json.loads(value)
    for value, keys in recorded("small_models.txt").items()
    for key in keys.split()
}
# What a family needs besides, or (None) does not have of them.
OWN = {
    "deepseek_v2": {"num_key_value_heads": 4, "head_dim": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 4},
    "kimi_linear": {"num_experts_per_token": 2},
}


def config_of(family):
    default = transformers.CONFIG_MAPPING[family]()
    values = {key: value for key, value in SMALL.items() if key in default.to_dict()} | OWN.get(
        family, {}
    )
    if isinstance(default.to_dict().get("layer_types"), list):
        values["layer_types"] = default.layer_types[:4]
    return transformers.CONFIG_MAPPING[family](
        **{key: value for key, value in values.items() if value is not None}
    )


def model_class(family):
    others = {
        "t5": transformers.AutoModelForSeq2SeqLM,
        "whisper": transformers.AutoModelForSpeechSeq2Seq,
        "bert": transformers.AutoModelForMaskedLM,
        "resnet": transformers.AutoModelForImageClassification,
    }
    return others.get(family, transformers.AutoModelForCausalLM)


def built(config):
    """With attention and experts as plain products, of which every one is dispatched."""
    config._experts_implementation = "eager"
    net = model_class(config.model_type).from_config(config, attn_implementation="eager").eval()
    assert isinstance(net, nn.Module)
    return net


def arguments(family):
    if family == "resnet":
        return {"pixel_values": torch.randn(BATCH, 3, 224, 224)}
    ids = torch.randint(3, 50, (BATCH, TOKENS))
    if family == "t5":
        return {"input_ids": ids[:, :SOURCE], "decoder_input_ids": ids}
    if family == "whisper":
        return {"input_features": torch.randn(BATCH, 8, 4 * SOURCE), "decoder_input_ids": ids}
    return {"input_ids": ids}


def sequence_of(family):
    return {"source": SOURCE, "tokens": TOKENS} if family == "t5" else TOKENS


def counted_step(family, net):
    cache = {} if family in ("bert", "resnet") else {"use_cache": False}
    with counted.flops() as count:
        logits = net(**arguments(family), **cache).logits
        logits.backward(torch.ones_like(logits))
    return count.step.forward, count.step.backward


@families
def test_parameters_and_flops_are_those_of_the_model_built(family):
    config = config_of(family)
    net, model = built(config), from_config(config.to_dict())
    assert parameter_count(model) == parameters_of(net)
    normed_behind = any("post_feedforward_layernorm" in name for name, _ in net.named_modules())
    assert MODEL_TYPES[family].get("post_norm", False) == normed_behind, (
        "whether a norm keeps the output of the MLP"
    )
    counts = counted_step(family, net)
    formula = step_flops(model, BATCH, TOKENS)
    got = formula.forward, formula.backward
    assert got == counts
    asked = from_library(config.to_dict())
    assert parameter_count(asked) == parameter_count(model)
    assert active_parameter_count(asked) == active_parameter_count(model)
    step = step_flops(asked, BATCH, TOKENS)
    assert (step.forward, step.backward) == counts


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, names[family], marks=() if family in HEADED else pytest.mark.prove)
        for names in (
            auto.MODEL_MAPPING_NAMES,
            auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
            auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
            auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        )
        for family in FAMILIES
        if family in names
    ],
)
def test_the_architecture_decides_the_head(family, name):
    labels = {"id2label": {"0": "bad", "1": "good", "2": "neither"}}
    values = config_of(family).to_dict() | labels | {"architectures": [name]}
    net = net_of(values, attention="eager", experts="batched_mm")
    model = from_config(values)
    assert (type(net).__name__, parameter_count(model)) == (name, parameters_of(net))
    counts = library_step.counted_step(net, name, BATCH, TOKENS)
    assert step_flops(model, BATCH, TOKENS) == counts


@pytest.mark.parametrize(
    "architectures",
    [["Qwen2ForRewardModel"], ["MistralForCausalLM"], ["Qwen2ForCausalLMEagle3"]],
)
def test_an_architecture_whose_head_is_not_known_is_refused(architectures):
    values = config_of("qwen2").to_dict() | {"architectures": architectures}
    with pytest.raises(ValueError, match=r"^config has architectures=.*not read.*ignore 'arch"):
        from_config(values)
    with pytest.raises(ValueError, match=r"knows no architectures=.*; ignore=\('architectures',\)"):
        from_library(values)


def parameters_of(net):
    """With the router's corrections, which transformers keeps as buffers."""
    corrections = (each for name, each in net.named_buffers() if "correction" in name)
    return sum(each.numel() for each in chain(net.parameters(), corrections))


@families
def test_the_cache_is_that_which_the_model_really_keeps(family):
    config = config_of(family)
    net, model = built(config), from_config(config.to_dict())
    with torch.no_grad():
        cache = net(**arguments(family), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    formula = cache_bytes(model, BATCH, TOKENS, "fp32")
    assert formula == kept
