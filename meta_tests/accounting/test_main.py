"""`python -m accounting` prints the figures of the formulas, and names a wrong request."""

import json
import re

import pytest

from accounting.__main__ import KNOWN, USUAL_SEQUENCE, main
from accounting.activations import activation_bytes
from accounting.models import LLAMA3_70B, cache_bytes, parameter_count, step_flops
from accounting.units import with_unit
from meta_tests.accounting.families.published import MODELS


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The text of each line by its label."""
    assert main(words) == 0, capsys.readouterr().err
    return {line[:20].strip(): line[20:] for line in capsys.readouterr().out.splitlines()}


def test_the_figures_are_those_of_the_formulas(capsys):
    said = printed(capsys, "llama-3-70b", "--devices", "1024", "--tokens", "15T", "--batch", "2048", "--mfu", "0.5")
    step = step_flops(LLAMA3_70B, 2048, USUAL_SEQUENCE, pairs="causal").model
    steps = -(-15 * 10**12 // (2048 * USUAL_SEQUENCE))
    assert said["parameters"] == f"{parameter_count(LLAMA3_70B):,}"
    assert said["a step"] == f"2,048 sequences of 8,192 tokens: {with_unit(step, 'FLOP')}"
    assert said["the run"].startswith(f"{steps:,} steps: {with_unit(steps * step, 'FLOP')} (6ND says 0.9")
    days = steps * step / (1024 * 989.4e12 * 0.5) / 86400
    assert said["time"] == f"{days:,.1f} days at an MFU of 50% on 1,024 × H100 SXM5 80GB of 989 TFLOP/s"
    assert said["memory: state"] == with_unit(8 * parameter_count(LLAMA3_70B), "B")
    assert said["cache"].startswith(with_unit(cache_bytes(LLAMA3_70B, 1, USUAL_SEQUENCE), "B"))
    assert "does not fit into 80.0 GiB" in said["ZeRO stage 2"]
    assert "fits into 80.0 GiB" in said["ZeRO stage 3"]
    kept = with_unit(activation_bytes(LLAMA3_70B, 1, USUAL_SEQUENCE, "bf16"), "B")
    assert said["memory: activations"] == f"{kept} of one sequence in bf16, nothing recomputed"
    assert said["fastest"].startswith("data ")


@pytest.mark.parametrize("name", ["answerdotai/ModernBERT-base", "google-t5/t5-base", "deepseek-ai/DeepSeek-V3"])
def test_a_config_file_is_read(capsys, tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name]["config"]))
    for path in (tmp_path, tmp_path / "config.json"):
        assert printed(capsys, str(path))["parameters"].split(",")[0] == f"{MODELS[name]['parameters']:,}".split(",")[0]


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_model_has_all_figures(capsys, name):
    said = printed(capsys, name)
    assert {"parameters", "a step", "the run", "time", "memory: activations", "cache", "fastest"} <= said.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lama-3-8b"], r"got 'lama-3-8b'; did you mean 'llama-3-8b'\?; or give the path of a config\.json"),
        (["gpt2", "--device", "H100"], "device must be one of H100 SXM5 80GB, H100 PCIe 80GB, .* got 'H100'"),
        (["gpt2", "--tokens", "many"], "tokens must be a number such as 15T, .* got 'many'"),
        (["gpt2", "--devices", "0"], "devices must be at least 1, got 0"),
        (["gpt2", "--optimizer", "adafactor"], "optimizer must be one of sgd, .*, got 'adafactor'"),
    ],
)
def test_what_is_not_valid_is_named_with_what_is(capsys, words, message):
    assert main(words) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.search(message, said.err), said.err
