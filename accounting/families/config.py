"""Models from the `config.json` of Hugging Face repositories: plain JSON, read without transformers.

`model_types.json` states each family's fixed choices: norms, biases, layers with a window. `decoder_config` and
`encoder_config` read the sizes, under each family's keys. Every key of a config is either read, or known to change no
size (`without_size`), or refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accounting.checks import checked, validated_choice, validated_instance
from accounting.families.config_values import MODEL_TYPES, Config, widths
from accounting.families.decoder_config import decoder, decoder_layer
from accounting.families.encoder_config import bert, modern_bert, resnet, speech_or_text, t5, vit
from accounting.families.layers import other
from accounting.families.networks import Transformer, multi_token
from accounting.parts import Parts

BUILDERS: dict[str, Callable[..., Parts]] = {
    "decoder": decoder,
    "bert": bert,
    "modern_bert": modern_bert,
    "t5": t5,
    "speech_or_text": speech_or_text,
    "vit": vit,
    "resnet": resnet,
}


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
    values = Config(_content(config))
    if "text_config" in values.values:
        if not text_only:
            raise ValueError(
                f"config is that of a model of more than text, {values.type!r}; text_only=True reads its text_config, "
                "the part that handles text, alone"
            )
        values = Config({"model_type": f"{values.type}_text", **_content(values("text_config"))})
    if "model_type" not in values.values:
        raise ValueError(f"config must have 'model_type', the name of its family, got {', '.join(values.values)}")
    options = dict(MODEL_TYPES[validated_choice("model_type", values.type, MODEL_TYPES)])
    values.read.update(options.pop("ignored", ()))  # of no matter to this family, or to layers that it need not have
    for key, value in options.pop("fixed", {}).items():  # fixed by the family's code
        values.only(key, value)
    model = BUILDERS[options.pop("build", "decoder")](values, **options)
    ahead = values("num_nextn_predict_layers", default=0)
    if multi_token_prediction and ahead:
        dim = values("hidden_size")
        late = 10**6  # a layer as all behind the first dense ones
        layer = decoder_layer(values, late, norm=other("norms", dim), **options)
        model += ahead * multi_token(dim, layer, values("vocab_size"))
    values.nothing_else()
    return model


def transformer_from_config(config: Mapping[str, Any] | str | Path) -> Transformer | None:
    """The same model as a `Transformer`, which activations and plans need; None if a Transformer lacks its parts.

    Exact: the parts of the two are equal. Raises as `from_config` does.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> transformer_from_config(llama).gated, transformer_from_config(llama | {"attention_bias": True}).qkv_bias
    (True, True)
    """
    content = _content(config)
    parts, c = from_config(content, text_only=True), Config(content)
    options = MODEL_TYPES.get(c.type, {"build": ""})
    norm, sparse = options.get("norm", "rmsnorm"), options.get("sparse", False)
    with suppress(ValueError):  # a key that a Transformer needs, or sizes that it cannot have
        dim, heads, kv_heads, head_dim = widths(c)
        alike = Transformer(
            vocab_size=c("vocab_size"),
            layers=c("num_hidden_layers", "n_layer", "num_layers"),
            dim=dim,
            heads=heads,
            hidden=c("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0) or 4 * dim,
            kv_heads=kv_heads,
            head_dim=head_dim,
            gated=options.get("gated", True),
            experts=c("num_local_experts", "num_experts") if sparse else 1,
            active_experts=c("num_experts_per_tok") if sparse else 1,
            tied_embedding=c("tie_word_embeddings", default=options.get("tied", False)),
            learned_positions=c(options["positions"]) if "positions" in options else 0,
            norm=norm,
            norm_bias=norm == "layernorm",
            **{name: c.flag(options.get(name, False)) for name in ("qkv_bias", "out_bias", "mlp_bias")},
        )
        return alike if alike.parts == parts else None
    return None


def _content(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, Path)):
        raise TypeError(f"config must be a mapping or the path of a config.json, got a {type(config).__name__}")
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        return validated_instance("config", json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError as error:
        raise ValueError(f"config must be JSON, got {path}: {error}") from None
