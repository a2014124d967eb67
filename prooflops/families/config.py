"""Reads decoders from the `config.json` of Hugging Face repositories, without transformers.

Every key of a config is read, or known to change no size (`without_size` in `model_types.json`), or
refused by name. `prooflops.counted.built` reads any other config by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from accounting.checks import checked, validated_choice, validated_instance
from accounting.parts import Parts
from prooflops.families.decoders import (
    CLASSIFIERS,
    EXPERTS,
    LAYERS,
    Config,
    UnreadError,
    decoder,
    validated_size,
)

SIZES = (
    *LAYERS,
    *EXPERTS,
    "hidden_size",
    "n_embd",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "vocab_size",
    "decoder_sparse_step",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "max_position_embeddings",
    "n_positions",
    "sliding_window",
)


@checked(flags=("text_only",))
def from_config(config: Any, *, text_only: bool = False, ignore: Collection[str] = ()) -> Parts:
    """The decoder that a `config.json` describes.

    `config` is a mapping, a path, a preset's name, or an object of transformers. `text_only` reads
    the text part of a model of text and images, without its encoder. `ignore` names keys that
    change no size. Exact for the code in transformers 5; windows count for "causal" pairs. For any
    other model see `prooflops.counted.built.from_config`.
    Raises ValueError for an unknown type, a missing key or an impossible size. Raises it also for a
    key that is neither read nor known to change nothing.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    ...          "vocab_size": 128256}
    >>> sum(each.parameters for each in from_config(llama).linear_maps)
    7504658432
    >>> from_config(llama | {"num_registers": 4}, ignore=["num_registers"]) == from_config(llama)
    True
    """
    try:
        return decoder_of(content_of(config, text_only, ignore))
    except UnreadError as unread:
        raise UnreadError(
            f"{unread}; prooflops.counted.built.from_config reads what transformers reads"
        ) from None


def decoder_of(content: Mapping[str, Any]) -> Parts:
    """The decoder of checked values. Raises UnreadError for what the formulas do not read."""
    if "text_config" in content:
        raise UnreadError(
            f"config describes a model of more than text, {content.get('model_type')!r}; "
            "text_only=True reads its text_config, the part that handles text, alone"
        )
    keys = Config(content)
    model = decoder(keys)
    keys.nothing_else()
    return model


def content_of(
    config: Any, text_only: bool = False, ignore: Collection[str] = ()
) -> Mapping[str, Any]:
    """The checked values of a config, or of its text part, without the keys to ignore."""
    content = _values(config)
    if text_only and "text_config" in content:
        whole = content
        content = {"model_type": f"{whole.get('model_type')}_text", **whole["text_config"]}
        named = [str(name) for name in whole.get("architectures") or ()]
        # The whole's classifier reads the text part's last state.
        if heads := [task for task in CLASSIFIERS for name in named if name.endswith(task)]:
            labels = {key: whole[key] for key in ("id2label", "num_labels") if key in whole}
            content |= {"architectures": heads, **labels}
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
    """Released configs by their names on the Hub, each with figures and their source.

    >>> presets()["openai/gpt-oss-20b"]["parameters"]
    20914757184
    """
    text = Path(__file__).with_name("presets.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


def validate_sizes(content: Mapping[str, Any], part: str = "") -> None:
    """Refuses a size that is no `validated_size`, or that contradicts another one.

    `part` precedes the keys of a model's part, as in "text_config.".

    >>> validate_sizes({"num_attention_heads": 32, "num_key_value_heads": 7})
    Traceback (most recent call last):
    ValueError: num_key_value_heads must divide num_attention_heads=32, got 7
    """
    sizes = {}
    for name in SIZES:
        value = content.get(name)
        # In some types this has a size for each stage, and latent attention leaves the
        # width of a head at 0.
        is_unused = name == "head_dim" and value == 0 and "kv_lora_rank" in content
        if value is not None and not isinstance(value, (list, tuple, Mapping)) and not is_unused:
            sizes[name] = validated_size(name, value, part)
    heads, groups = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if heads and groups and heads % groups:
        raise ValueError(
            f"{part}num_key_value_heads must divide num_attention_heads={heads}, got {groups}"
        )
    active = sizes.get("num_experts_per_tok")
    for name in EXPERTS:
        experts = sizes.get(name)
        if active is None or experts is None:
            continue
        least = min(experts, 1)
        if not least <= active <= experts:
            raise ValueError(
                f"{part}num_experts_per_tok must be from {least} to {name}={experts}, got {active}"
            )
    for name, value in content.items():
        if name.endswith("_config") and isinstance(value, Mapping):
            validate_sizes(value, f"{part}{name}.")
