"""Of a config every key is read, known to change no size, or refused by its name."""

import pytest

from accounting.families import from_config
from accounting.families.config_values import Config, kind, widths
from accounting.models import parameter_count, parameter_counts
from meta_tests.accounting.families.published import MODELS

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
        ({"use_sliding_window": True}, "config has use_sliding_window=True, which is not read for a model of type"),
        ({"qk_layernorm": True}, "config has qk_layernorm=True, which is not read for a model of type 'llama'"),
        ({"sliding_window": 4096}, "config has sliding_window=4096, which may change the shape"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1, got -1"),
        ({"num_key_value_heads": 5}, "heads must be a multiple of kv_heads, got heads=32 and kv_heads=5"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_the_keys_name(changed, message):
    with pytest.raises(ValueError, match=message):
        from_config(LLAMA | changed)


def test_what_any_model_may_say_of_its_origin_and_of_generation_is_no_matter():
    said = {
        "prefix": "</s>",
        "finetuning_task": "sst2",
        "vocab_file": "a.txt",
        "unsloth_version": "2025.1",
        "language": "en",
    }
    assert from_config(LLAMA | said | {"return_dict_in_generate": True, "attn_implementation": "sdpa"}) == from_config(
        LLAMA
    )


EXPERTS = """moe_intermediate_size moe_shared_expert_intermediate_size n_routed_experts n_shared_experts
    num_experts_per_tok num_nextn_predict_layers"""


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("nvidia/Nemotron-H-8B-Base-8K", EXPERTS),
        ("Qwen/Qwen3-30B-A3B", "use_qk_norm sliding_window max_window_layers"),
    ],
)
def test_keys_of_what_no_layer_of_a_model_has_are_no_matter(name, keys):
    config = MODELS[name]["config"]
    assert from_config(config | dict.fromkeys(keys.split(), 8)) == from_config(config)


def test_layers_that_are_listed_by_kind_repeat_the_list():
    listed = Config({"layer_types": ["sliding_attention", "full_attention", "full_attention"]})
    assert [kind(listed, layer)[:4] for layer in range(5)] == ["slid", "full", "full", "slid", "full"]
    assert kind(Config({}), 3) == ""


def test_a_flag_that_is_left_out_is_off():
    assert from_config({key: value for key, value in LLAMA.items() if not key.endswith("_bias")}) == from_config(LLAMA)


QKV, OUT, MLP = 4096 + 2 * 1024, 4096, 14336 + 4096  # elements of LLAMA's biases, if it had any
SPARSE = {"num_experts": 2, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("families", "flag", "default", "biases", "besides"),
    [
        ("cohere cohere2 gemma gemma2 gemma3_text granite", "attention_bias", False, QKV + OUT, {}),
        ("llama olmo olmo2 olmo3 qwen3 smollm3", "attention_bias", False, QKV + OUT, {}),
        ("llama4_text olmoe qwen3_moe", "attention_bias", False, QKV + OUT, SPARSE),
        ("glm4_moe", "attention_bias", False, QKV, SPARSE),
        ("granite llama smollm3", "mlp_bias", False, 14336 + MLP, {}),
        ("gpt_neox", "attention_bias", True, QKV + OUT, {}),
        ("gpt_oss", "attention_bias", True, QKV + OUT, SPARSE),
        ("qwen2_moe", "qkv_bias", True, QKV, SPARSE),
        ("stablelm", "use_qkv_bias", False, QKV, {}),
        ("starcoder2", "use_bias", True, QKV + OUT + MLP, {}),
    ],
)
def test_a_layer_has_biases_where_the_config_or_else_the_family_says_so(families, flag, default, biases, besides):
    sizes = {key: value for key, value in LLAMA.items() if not key.endswith("_bias")} | besides
    for family in families.split():
        config = sizes | {"model_type": family, "num_hidden_layers": 2}
        without, having = (parameter_count(from_config(config | {flag: each})) for each in (False, True))
        assert having - without == 2 * biases, f"{flag} adds {having - without} elements to {family}"
        unsaid = parameter_count(from_config(config))
        assert unsaid == (having if default else without), f"without {flag} {family} has {unsaid} elements"


@pytest.mark.parametrize(("family", "other"), [("cohere2", "cohere"), ("granite", "llama"), ("olmo3", "olmo2")])
def test_a_family_that_differs_from_another_by_windows_or_scales_has_as_many_parameters(family, other):
    counts = [parameter_counts(from_config(LLAMA | {"model_type": each})) for each in (family, other)]
    assert counts[0] == counts[1]


AT_ONE_VALUE = [
    (False, """use_qk_norm qk_layernorm _remove_final_layer_norm add_cross_attention bias normalize_before
        apply_residual_connection_post_layernorm use_bidirectional_attention lm_head_bias add_final_layer_norm
        use_weighted_layer_sum attention_bias mlp_bias tie_encoder_decoder qkv_bias use_sliding_window"""),
    (True, "do_layer_norm_before enable_bias layer_norm_elementwise_affine rms_norm"),
    (0, "moe_latent_size"), ("default", "mlp_type"), ("layer_norm", "norm_type"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "keys"), AT_ONE_VALUE, ids=["off", "on", "size", "mlp", "norm"])
def test_what_a_family_does_not_read_may_have_the_usual_value_and_no_other(value, keys):
    phi = LLAMA | {"model_type": "phi", "num_hidden_layers": 1}
    for key in keys.split():
        assert from_config(phi | {key: value}) == from_config(phi), f"{key}={value} should change nothing"
        other = not value if isinstance(value, bool) else 8 if value == 0 else "another"
        with pytest.raises(ValueError, match=f"config has {key}={other!r}, which is not read for a model of type"):
            from_config(phi | {key: other})


def test_a_key_that_is_unset_is_no_matter():
    assert from_config(LLAMA | {"pruned_heads": {}, "some_option": None}) == from_config(LLAMA)


@pytest.mark.parametrize(
    ("changed", "kv_heads"),
    [
        ({}, 71),
        ({"multi_query": True}, 1),
        ({"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 8}, 8),
    ],
)
def test_falcon_has_as_many_heads_of_keys_and_values_as_it_has_queries_or_one_or_those_it_states(changed, kv_heads):
    falcon = {"model_type": "falcon", "hidden_size": 71 * 64, "num_attention_heads": 71} | changed
    if kv_heads == 8:
        falcon |= {"hidden_size": 128 * 64, "num_attention_heads": 128}
    dim, heads, *rest = widths(Config(falcon))
    assert (heads, *rest) == (dim // 64, kv_heads, 64)
