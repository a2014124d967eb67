"""`python -m prooflops` prints the figures of the formulas, and names a wrong request."""

import json
import re
import sys

import pytest

from accounting.activations import activation_bytes
from accounting.models import LLAMA3_70B, cache_bytes, parameter_count, step_flops
from accounting.units import with_unit
from prooflops.__main__ import KNOWN, USUAL_SEQUENCE, main
from prooflops.families.config import presets

MODELS = presets()


def printed(capsys, *words):
    """The text of each line by its label, which has the first 20 columns."""
    assert main(words) == 0, capsys.readouterr().err
    return {line[:20].strip(): line[20:] for line in capsys.readouterr().out.splitlines()}


def test_the_figures_are_those_of_the_formulas(capsys):
    said = printed(
        capsys,
        "llama-3-70b",
        "--devices",
        "1024",
        "--tokens",
        "15T",
        "--batch",
        "2048",
        "--mfu",
        "0.5",
    )
    step = step_flops(LLAMA3_70B, 2048, USUAL_SEQUENCE, pairs="causal").model
    steps = -(-15 * 10**12 // (2048 * USUAL_SEQUENCE))
    assert said["parameters"] == f"{parameter_count(LLAMA3_70B):,}"
    assert said["a step"].startswith("2,048 sequences of 8,192 tokens (the model's context is 131,")
    assert said["a step"].endswith(f": {with_unit(step, 'FLOP')}")
    assert said["the run"].startswith(
        f"{steps:,} steps: {with_unit(steps * step, 'FLOP')} (6ND says 0.9"
    )
    days = steps * step / (1024 * 989.4e12 * 0.5) / 86400
    devices = "1,024 × H100 SXM5 80GB of 989 TFLOP/s"
    assert said["time"] == f"{days:,.1f} days at an MFU of 50% on {devices}"
    assert said["memory: state"] == with_unit(8 * parameter_count(LLAMA3_70B), "B")
    assert said["cache"].startswith(with_unit(cache_bytes(LLAMA3_70B, 1, USUAL_SEQUENCE), "B"))
    assert "does not fit into 80.0 GiB" in said["ZeRO stage 2"]
    assert "fits into 80.0 GiB" in said["ZeRO stage 3"]
    kept = with_unit(activation_bytes(LLAMA3_70B, 1, USUAL_SEQUENCE, "bf16", fused_norms=True), "B")
    assert said["memory: activations"] == f"{kept} of one sequence in bf16, nothing recomputed"


@pytest.mark.parametrize(
    "name", ["openai-community/gpt2", "google/gemma-2-9b", "deepseek-ai/DeepSeek-V3"]
)
def test_a_config_file_is_read(capsys, tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name]["config"]))
    for path in (tmp_path, tmp_path / "config.json"):
        said = printed(capsys, str(path))
        assert said["parameters"].startswith(f"{MODELS[name]['parameters']:,}")


def config(name, **changes):
    return json.dumps(MODELS[name]["config"] | changes)


def test_another_config_needs_transformers_and_says_so(capsys, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    mamba = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(mamba))
    said = printed(capsys, str(tmp_path), "--sequence", "8")
    assert {"parameters", "a step", "memory: total", "cache"} <= said.keys()
    assert said["memory: activations"].startswith("unknown: ")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in (str(tmp_path), "Qwen/Qwen3-7B"):
        assert main([name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert re.search("need transformers 5 or later, torch and prooflops: pip", error), error


def test_a_name_of_the_hub_is_read_from_the_local_cache(capsys, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    found = dict(MODELS["Qwen/Qwen3-8B"]["config"])
    monkeypatch.setattr(
        transformers.PretrainedConfig, "get_config_dict", lambda name, **_: (dict(found), {})
    )
    said = printed(capsys, "Qwen/Qwen3-7B")
    assert said["parameters"] == f"{MODELS['Qwen/Qwen3-8B']['parameters']:,}"


def test_programs_get_the_same_figures_and_the_help_has_examples(capsys):
    assert main(["llama-3-70b", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["parameters"] == parameter_count(LLAMA3_70B)
    assert figures["step_flops"] == step_flops(LLAMA3_70B, 1, USUAL_SEQUENCE, pairs="causal").model
    assert len(figures["zero_state_bytes"]) == 4
    with pytest.raises(SystemExit):
        main(["--help"])
    examples = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  python -m prooflops ")
    ]
    assert len(examples) == 4
    words = examples[0].partition("prooflops ")[2].split()
    assert main(words) == 0


@pytest.mark.parametrize("name", [*KNOWN, *MODELS])
def test_every_preset_has_all_figures(capsys, name):
    said = printed(capsys, name)
    labels = {"parameters", "a step", "the run", "time", "memory: activations", "cache"}
    assert labels <= said.keys()
    assert MODELS[KNOWN.get(name, name)]["figure_from"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lama-3-8b"],
            r"got 'lama-3-8b'; did you mean 'llama-3-8b'\?; or give the path of a config\.json",
        ),
        (
            ["gpt2", "--device", "H100"],
            "device must be one of H100 SXM5 80GB, H100 PCIe 80GB, .* got 'H100'",
        ),
        (["gpt2", "--tokens", "many"], "tokens must be a number such as 15T, .* got 'many'"),
    ],
)
def test_what_is_not_valid_is_named_with_what_is(capsys, words, message):
    assert main(words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.search(message, said.err), said.err


def test_cards_are_predicted_from_transformers_net_and_devices_by_formula(
    capsys, tmp_path, monkeypatch
):
    pytest.importorskip("transformers")
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    # Up to a short context few sizes are tried.
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(config("meta-llama/Llama-3.1-8B", **small, **heads))
    words = [str(tmp_path), "--fits", "--sequence", "256", "--device", "RTX 4090"]
    assert main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    card = figures["RTX 4090, predicted"]
    # Logits of 256 tokens and 128,256 words in fp32, a lower bound of what a sequence takes.
    logits_bytes = 256 * 128_256 * 4
    assert card["largest_batch"] > 1
    assert logits_bytes < card["reserved_bytes"] < card["usable_bytes"] < 24 * 2**30
    assert card["largest_batch"] * logits_bytes < card["usable_bytes"]
    assert card["longest_sequence"] == 1024 < 256 * 2 * card["largest_batch"]
    assert figures["RTX 4090, FSDP, by formula"] == 1
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = printed(capsys, "llama-3-70b", "--fits", "--device", "H100 SXM")
    assert said["predicted"].startswith("one card is not predicted: that needs transformers 5")
    assert "FSDP takes 32 devices" in said["H100 SXM5 80GB"]
