"""Decoders from the `config.json` of Hugging Face repositories: plain JSON, read without
transformers.

Every key of a config is either read, or known to change no size (`without_size` in
`model_types.json`), or refused by name. `prooflops.counted.built` asks transformers for any other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from accounting.checks import checked, validated_choice, validated_instance, validated_int
from accounting.families.decoders import Config, UnreadError, decoder
from accounting.parts import Parts

LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
NEVER_ZERO = (*LAYERS, "hidden_size", "n_embd", "num_attention_heads", "n_head", "vocab_size")
SIZES = (
    *NEVER_ZERO,
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
    "n_positions",
)
# Beyond these a size is a slip of the pen: no released model has a hundredth of them.
MOST_LAYERS = 10_000
LARGEST_SIZE = 10**10


@checked(flags=("text_only",))
def from_config(config: Any, *, text_only: bool = False, ignore: Collection[str] = ()) -> Parts:
    """The decoder that a `config.json` describes: a mapping, a path, a preset's name, or an object
    of transformers.

    `text_only` reads the text part of a model of text and images, without its encoder. `ignore`
    names keys that change no size. Exact for the code in transformers 5; windows count for "causal"
    pairs. For any other model `prooflops.counted.built.from_config` asks transformers.
    Raises ValueError for an unknown type, a missing key, a size that no model can have, and a key
    that is neither read nor known to change nothing.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    ...          "vocab_size": 128256}
    >>> sum(each.parameters for each in from_config(llama).linear_maps)
    7504658432
    >>> from_config(llama | {"num_registers": 4}, ignore=["num_registers"]) == from_config(llama)
    True
    """
    content = content_of(config, text_only, ignore)
    if "_class_name" in content:
        raise UnreadError(f"config is of diffusers, for its {content['_class_name']}")
    if "text_config" in content:
        raise UnreadError(
            f"config is that of a model of more than text, {content.get('model_type')!r}; "
            "text_only=True reads its text_config, the part that handles text, alone"
        )
    c = Config(content)
    model = decoder(c)
    c.nothing_else()
    return model


def content_of(
    config: Any, text_only: bool = False, ignore: Collection[str] = ()
) -> Mapping[str, Any]:
    """The values of a config, or of its text part, but for those to ignore; its sizes are
    checked.
    """
    content = _values(config)
    if text_only and "text_config" in content:
        content = {"model_type": f"{content.get('model_type')}_text", **content["text_config"]}
    if isinstance(ignore, str):
        raise TypeError(f"ignore must be keys, as in [{ignore!r}], got {ignore!r} of type str")
    for key in ignore:
        validated_choice("ignore", key, content)
    kept = {key: value for key, value in content.items() if key not in ignore}
    validate_sizes(kept)
    return kept


def _values(config: Any) -> Mapping[str, Any]:
    """The values of a mapping, of a preset, of a file or its folder, or of transformers' object."""
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, Path)):
        raise TypeError(
            "config must be a mapping, the path of a config.json, a preset's name or a config of "
            f"transformers, got a {type(config).__name__}"
        )
    path = Path(config)
    if not path.exists():
        name = validated_choice("config", str(config), presets())
        return validated_instance("config", presets()[name]["config"], dict)
    path = path / "config.json" if path.is_dir() else path
    try:
        return validated_instance("config", json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError as error:
        raise ValueError(f"config must be JSON, got {path}: {error}") from None


@cache
def presets() -> dict[str, dict[str, Any]]:
    """A dozen released configs by their names on the Hub, each with figures and their source.

    >>> presets()["openai/gpt-oss-20b"]["parameters"]
    20914757184
    """
    text = Path(__file__).with_name("presets.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


def validate_sizes(content: Mapping[str, Any]) -> None:
    """Refuses a size that is not a whole number of at least 1, or that no model can have.

    >>> validate_sizes({"hidden_size": 4096.5})
    Traceback (most recent call last):
    TypeError: hidden_size must be an integer, got 4096.5 of type float
    """
    for name in SIZES:
        value = content.get(name)
        # Some types have a list, with a size for each stage.
        if value is None or isinstance(value, (list, tuple)):
            continue
        most = MOST_LAYERS if name in LAYERS else LARGEST_SIZE
        least = 1 if name in NEVER_ZERO else 0
        if not least <= validated_int(name, value, minimum=None) <= most:
            raise ValueError(f"{name} must be from {least} to {most:,}, got {value!r}")
