"""Models from the `config.json` of Hugging Face repositories: plain JSON, read without transformers.

Every key of a config is either read, or known to change no size (`without_size` in `model_types.json`), or refused by
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accounting.checks import checked, validated_instance
from accounting.families.architectures import BUILDERS, Config, decoder_layer, kinds
from accounting.families.networks import Transformer, multi_token
from accounting.parts import Parts


@checked(flags=("multi_token_prediction", "text_only"))
def from_config(
    config: Mapping[str, Any] | str | Path, *, multi_token_prediction: bool = False, text_only: bool = False
) -> Parts:
    """The model that a `config.json`, given as a path or as its content, describes.

    `multi_token_prediction` adds modules that published counts leave out (DeepSeek-V3, GLM-4.5). `text_only` reads the
    text part of a model of text and images, without its encoder (1 to 10 % of the parameters). Exact for the families'
    code in transformers 5; windows count only for "causal" pairs.
    Raises ValueError for an unknown family, a missing key, and a key that is neither read nor known to change nothing.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> sum(each.parameters for each in from_config(llama).linear_maps)  # and the embedding, and the norms
    7504658432
    >>> from_config(llama | {"num_registers": 4})
    Traceback (most recent call last):
    ValueError: config has num_registers=4, which may change the shape and is not read for type 'llama'
    """
    c = Config(_content(config, text_only))
    model = BUILDERS[c.family.get("build", "decoder")](c)
    ahead = c("num_nextn_predict_layers", default=0)
    if multi_token_prediction and ahead:
        model += ahead * multi_token(c.dim, decoder_layer(c, kinds(c)[-1]), c("vocab_size"))
    c.nothing_else()
    return model


def transformer_from_config(config: Mapping[str, Any] | str | Path) -> Transformer | None:
    """The same model as a `Transformer`, which activations and plans need; None if a Transformer lacks its parts.

    Exact: the parts of the two are equal. Raises as `from_config` does.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> transformer_from_config(llama).gated, transformer_from_config(llama | {"attention_bias": True}).qkv_bias
    (True, True)
    """
    content = _content(config, text_only=True)
    parts, c = from_config(content), Config(content)
    norm, sparse = c.family.get("norm", "rmsnorm"), c.family.get("sparse", False)
    with suppress(ValueError):  # a key that a Transformer needs, or sizes that it cannot have
        dim, heads, kv_heads, head_dim = c.widths
        alike = Transformer(
            vocab_size=c("vocab_size"),
            layers=c.layers,
            dim=dim,
            heads=heads,
            hidden=c.hidden or 4 * dim,
            kv_heads=kv_heads,
            head_dim=head_dim,
            gated=c.family.get("gated", True),
            experts=c("num_local_experts", "num_experts") if sparse else 1,
            active_experts=c("num_experts_per_tok") if sparse else 1,
            tied_embedding=c("tie_word_embeddings", default=c.family.get("tied", False)),
            learned_positions=c(c.family["positions"]) if "positions" in c.family else 0,
            norm=norm,
            norm_bias=norm == "layernorm",
            **{name: c.flag(name) for name in ("qkv_bias", "out_bias", "mlp_bias")},
        )
        return alike if alike.parts == parts else None
    return None


def _content(config: Mapping[str, Any] | str | Path, text_only: bool) -> Mapping[str, Any]:
    """The values of a config, or of its text part."""
    if not isinstance(config, (Mapping, str, Path)):
        raise TypeError(f"config must be a mapping or the path of a config.json, got a {type(config).__name__}")
    if not isinstance(config, Mapping):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = validated_instance("config", json.loads(path.read_text(encoding="utf-8")), dict)
        except ValueError as error:
            raise ValueError(f"config must be JSON, got {path}: {error}") from None
    if "text_config" not in config:
        return config
    if not text_only:
        raise ValueError(
            f"config is that of a model of more than text, {config.get('model_type')!r}; text_only=True reads its "
            "text_config, the part that handles text, alone"
        )
    return {"model_type": f"{config.get('model_type')}_text", **config["text_config"]}
