"""Public encoders and models of images have the sizes and work published; windows, positions and heads of encoders."""

import pytest

from accounting.families import from_config
from accounting.families.config_values import MODEL_TYPES
from accounting.models import forward_flops, parameter_count, step_flops
from meta_tests.accounting.families.published import MODELS, assert_published, model_called


@pytest.mark.parametrize(
    "name", [name for name, row in MODELS.items() if "build" in MODEL_TYPES[row["config"]["model_type"]]]
)
def test_parameters_are_those_published(name):
    assert_published(name)


def test_resnet_50_takes_the_multiply_adds_that_torchvision_prints():
    assert forward_flops(model_called("microsoft/resnet-50"), 1) / 2 == pytest.approx(4.089e9, rel=1e-3)


def test_an_encoder_handles_the_source_alone_and_the_decoder_its_keys_and_values_too():
    model, dim, inner = model_called("google-t5/t5-base"), 768, 3072
    source = 12 * (2 * 10 * (4 * dim**2 + 2 * dim * inner) + 4 * 10 * 10 * dim)
    cross = 12 * 2 * 10 * 2 * dim**2
    assert forward_flops(model, 1, {"source": 10, "tokens": 0}) == source + cross


def test_t5_1_1_has_a_gate_where_its_activation_is_called_gated():
    config = {key: value for key, value in MODELS["google-t5/t5-base"]["config"].items() if key != "is_gated_act"}
    gated, plain = (
        parameter_count(from_config(config | {"feed_forward_proj": each})) for each in ("gated-gelu", "relu")
    )
    assert gated - plain == 24 * config["d_model"] * config["d_ff"]


@pytest.mark.parametrize(
    ("name", "left_out", "instead"),
    [
        ("answerdotai/ModernBERT-base", "global_attn_every_n_layers", {}),
        ("google/vit-base-patch16-224", "id2label", {"num_labels": 1000}),
    ],
)
def test_an_encoder_has_its_defaults_where_the_config_leaves_them_out(name, left_out, instead):
    config = {key: value for key, value in MODELS[name]["config"].items() if key != left_out} | instead
    assert from_config(config) == model_called(name)


def test_of_modernbert_every_third_layer_attends_to_all_and_the_others_to_64_tokens_on_either_side():
    attentions = from_config(MODELS["answerdotai/ModernBERT-base"]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in (0, 65)}
    assert counted == {0: 8, 65: 14}


def test_roberta_has_positions_for_512_tokens_as_two_of_its_514_are_for_none():
    model = from_config(MODELS["FacebookAI/roberta-base"]["config"])
    assert step_flops(model, 1, 512).forward > 0
    with pytest.raises(ValueError, match="sequence must be at most learned_positions=512, got 513"):
        step_flops(model, 1, 513)


@pytest.mark.parametrize(("name", "tables"), [("google-t5/t5-base", 1), ("facebook/bart-large", 3)])
def test_untied_t5_has_a_head_of_its_own_and_bart_a_table_on_either_side_besides(name, tables):
    config = MODELS[name]["config"]
    untied, tied = (parameter_count(from_config(config | {"tie_word_embeddings": each})) for each in (False, True))
    assert untied - tied == tables * config["vocab_size"] * config["d_model"]
