"""Models from the `config.json` that Hugging Face's repositories hold: plain JSON, read without transformers.

`model_types.json` states what the code of each family fixes and its config does not: which norms, which biases, where a
window holds. The functions here read the sizes, under the keys that the families give them.
Of a config every key is either read, or known to change no size (`without_size`); any other is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.checks import checked, validated_choice, validated_instance, validated_int
from accounting.families import (
    attention,
    convolution,
    delta_rule,
    embedding,
    encoder,
    latent_attention,
    linear,
    mixture,
    mlp,
    multi_token,
    other,
    selective_scan,
    state_space,
    vision_transformer,
)
from accounting.parts import Parts, Rows

_TABLE = json.loads(Path(__file__).with_name("model_types.json").read_text(encoding="utf-8"))
MODEL_TYPES: dict[str, dict[str, Any]] = _TABLE["types"]
READ_AT_ONE_VALUE: dict[str, Any] = _TABLE["read_at_one_value"]
# Keys that change neither a parameter, nor a product, nor what is attended to.
WITHOUT_SIZE = re.compile("|".join(pattern for patterns in _TABLE["without_size"].values() for pattern in patterns))
UNSET: tuple[Any, ...] = (None, [], {}, ())
NORM_VECTORS = {"none": 0, "rmsnorm": 1, "layernorm": 2}

_REQUIRED = object()
Flag = bool | str | list[Any]  # a fixed one, a key whose default is False, or a key and its default


@dataclass
class _Config:
    """The values of a config; it remembers which keys were read."""

    values: Mapping[str, Any]
    read: set[str] = field(default_factory=lambda: {"model_type"})

    def __call__(self, *names: str, default: Any = _REQUIRED) -> Any:
        """The value of the first of these keys that is set."""
        self.read.update(names)
        found = [self.values[name] for name in names if self.values.get(name) is not None]
        if not found and default is _REQUIRED:
            raise ValueError(f"config must have {' or '.join(map(repr, names))} for a model of type {self.type!r}")
        value = found[0] if found else default
        return value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else value

    @property
    def type(self) -> str:
        return str(self.values.get("model_type"))

    def flag(self, value: Flag) -> bool:
        if isinstance(value, bool):
            return value
        key, default = (value, False) if isinstance(value, str) else value
        return bool(self(key, default=default))

    def only(self, name: str, *values: Any) -> None:
        """Refuses a key whose value changes the shape in a way that is not read; one that was read is no matter."""
        if name not in self.read and self(name, default=None) not in (None, *values):
            raise ValueError(f"config has {name}={self(name)!r}, which is not read for a model of type {self.type!r}")

    def nothing_else(self) -> None:
        """Refuses keys that were not read and may change the shape."""
        for key, value in READ_AT_ONE_VALUE.items():
            self.only(key, value)
        unread = sorted(key for key in self.values.keys() - self.read if not WITHOUT_SIZE.fullmatch(key))
        named = ", ".join(f"{key}={self.values[key]!r}" for key in unread if self.values[key] not in UNSET)
        if named:
            raise ValueError(f"config has {named}, which may change the shape and is not read for type {self.type!r}")


@checked
def from_config(
    config: Mapping[str, Any] | str | Path, *, multi_token_prediction: bool = False, text_only: bool = False
) -> Parts:
    """The model that a `config.json`, given as a path or as its content, describes.

    `multi_token_prediction` adds the modules that published counts leave out (DeepSeek-V3, GLM-4.5). Of a model of text
    and images only the text part can be read (`text_only`): it lacks the encoder, some 1 to 10 % of the parameters.
    Exact where the family's code in transformers 5 is; a window counts as one for "causal" pairs alone.

    Raises ValueError for a family that is not known, for a key that is missing, and for one that is neither read nor
    known to change nothing: it is named, as it may change the shape.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> sum(each.parameters for each in from_config(llama).linear_maps)  # and the embedding, and the norms
    7504658432
    >>> from_config(llama | {"num_registers": 4})
    Traceback (most recent call last):
    ValueError: config has num_registers=4, which may change the shape and is not read for type 'llama'
    """
    values = _Config(_content(config))
    if "text_config" in values.values:
        if not text_only:
            raise ValueError(
                f"config is that of a model of more than text, {values.type!r}; text_only=True reads its text_config, "
                "the part that handles text, alone"
            )
        values = _Config({"model_type": f"{values.type}_text", **_content(values("text_config"))})
    options = dict(MODEL_TYPES[validated_choice("model_type", values.type, MODEL_TYPES)])
    values.read.update(options.pop("ignored", ()))  # of no matter to this family, or to layers that it need not have
    model = BUILDERS[options.pop("build", "decoder")](values, **options)
    ahead = values("num_nextn_predict_layers", default=0)
    if multi_token_prediction and ahead:
        dim = values("hidden_size")
        layer = _layer(values, 10**6, norm=other("norms", dim), **options)  # as every layer behind the first dense ones
        model += ahead * multi_token(dim, layer, values("vocab_size"))
    values.nothing_else()
    return model


def _content(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    path = Path(config if isinstance(config, Path) else validated_instance("config", config, str))
    text = (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")
    return validated_instance("config", json.loads(text), dict)


# Decoders


def _widths(c: _Config) -> tuple[int, int, int, int]:
    """Width, heads, heads of keys and values, width of a head."""
    dim, heads = c("hidden_size", "n_embd", "n_embed"), c("num_attention_heads", "n_head")
    kv_heads, falcons = c("num_key_value_heads", default=heads), c("num_kv_heads", default=heads)
    if c("new_decoder_architecture", default=False):
        kv_heads = falcons
    elif c("multi_query", default=False):
        kv_heads = 1
    return dim, heads, kv_heads, c("head_dim", "attention_head_dim", default=dim // heads)


def _kind(c: _Config, layer: int) -> str:
    """What a config that lists its layers one by one has in that place."""
    listed = c("layer_types", default=None)
    return str(listed[layer % len(listed)]) if listed else ""


def _window(c: _Config, layer: int, rule: str | int) -> int:
    """The window of a layer, by the family's rule: in "all" layers, in "late" ones, or (n) in all but each n-th."""
    size = c("sliding_window", "sliding_window_size", "attention_chunk_size", default=0)
    first = c("max_window_layers", default=0) if rule == "late" else 0
    if c("use_sliding_window", default=True) is False or not size:
        return 0
    every = c("sliding_window_pattern", "_sliding_window_pattern", default=rule)
    windowed = (layer + 1) % every != 0 if isinstance(every, int) else layer >= first
    stated = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
    return int(size) if stated.get(_kind(c, layer), windowed) else 0


def _mixing(
    c: _Config,
    layer: int,
    *,
    qkv_bias: Flag = False,
    out_bias: Flag = False,
    qk_norm: str = "",
    window: str | int = "",  # "": no layer has one
    chunked: bool = False,
    sinks: bool = False,
    gated_output: bool = False,
    latent: bool = False,
) -> Parts:
    """What a layer has in the place of attention."""
    dim, heads, kv_heads, head_dim = _widths(c)
    if latent:
        ranks = c("q_lora_rank", default=0), c("kv_lora_rank"), c("qk_nope_head_dim"), c("qk_rope_head_dim")
        return latent_attention(dim, heads, *ranks, c("v_head_dim"), bias=c.flag("attention_bias"))
    interval = c("full_attention_interval", default=1)
    if (_kind(c, layer) or ("linear_attention" if (layer + 1) % interval else "")) == "linear_attention":
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
        return delta_rule(dim, *(c(f"linear_{name}") for name in names))
    norms = {"heads": 2 * head_dim, "all": (heads + kv_heads) * head_dim}.get(qk_norm, 0)
    size = _window(c, layer, window) if window else 0
    if chunked and (rotary := c("no_rope_layers", default=None)):  # those without rotary positions attend to all
        size *= rotary[layer]
    options: dict[str, Any] = {
        "bias": c.flag(qkv_bias),
        "out_bias": c.flag(out_bias),
        "window": size,
        "chunked": chunked,
    }
    mixed = attention(dim, heads, head_dim, kv_heads, extra=norms, **options)
    if gated_output:
        mixed = linear("attention", dim, heads * head_dim, "gate", bias=c.flag(qkv_bias)) | mixed
    return mixed | other("sinks", sinks * heads)


def _is_sparse(c: _Config, layer: int) -> bool:
    """Whether a layer has experts, in a family whose layers have them."""
    c.only("moe_layer_freq", 1)
    listed = c("moe_layers", default=None)
    return (
        layer >= c("first_k_dense_replace", default=0)
        and layer not in c("mlp_only_layers", default=())
        and (layer - c("expert_layer_offset", default=0)) % c("expert_layer_period", default=1) == 0
        and (layer + 1) % c("decoder_sparse_step", "interleave_moe_layer_step", default=1) == 0
        and (not listed or layer in listed)
    )


def _feeding(
    c: _Config,
    layer: int,
    *,
    gated: bool = True,
    mlp_bias: Flag = False,
    sparse: bool = False,
    post_norm: bool = False,
    shared_expert: bool = False,
    **options: Any,
) -> Parts:
    """The MLP of a layer, or its experts."""
    dim = _widths(c)[0]
    common: dict[str, Any] = {"gated": gated, "bias": c.flag(mlp_bias)}
    hidden = c("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0)
    dense = c("intermediate_size_mlp", default=hidden) or 4 * dim
    if not sparse or not _is_sparse(c, layer):
        return mlp(dim, dense, ends_layer=False if post_norm else None, **common)  # a norm behind it keeps its output
    width = c("moe_intermediate_size", default=hidden)
    shared = c("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0)
    shared = shared or width * c("n_shared_experts", default=int(shared_expert))
    experts = c("num_local_experts", "num_experts", "n_routed_experts")
    return mixture(dim, width, experts, c("num_experts_per_tok"), shared=shared, **common, **options)


_OF_MIXING = ("qkv_bias", "out_bias", "qk_norm", "window", "chunked", "sinks", "gated_output", "latent")


def _layer(c: _Config, layer: int, *, norm: Parts, norms: int = 2, parallel: Flag = False, **options: Any) -> Parts:
    """A layer with as many norms; `parallel` attention and MLP read the same input."""
    mixed = _mixing(c, layer, **{name: options.pop(name) for name in _OF_MIXING if name in options})
    fed = _feeding(c, layer, **options)
    if c.flag(parallel):
        return norms * norm + (mixed | fed)
    return norm + mixed + norm + fed + (norms - 2) * norm


def _recurrence(c: _Config, *, jamba: bool = False) -> Parts:
    """Mamba-2 where there are heads, else Mamba."""
    dim, conv_bias = c("hidden_size"), c("use_conv_bias", "mamba_conv_bias", default=True)
    state, kernel = c("state_size", "ssm_state_size", "mamba_d_state"), c("conv_kernel", "mamba_d_conv")
    rank, inner = c("time_step_rank", "mamba_dt_rank", default=0), c("expand", "mamba_expand", default=2) * dim
    biases = {"bias": c.flag("mamba_proj_bias" if jamba else "use_bias"), "conv_bias": conv_bias}
    c.only("mamba_proj_bias", False)
    if heads := c("mamba_num_heads", "num_heads", default=0):
        sizes = heads, c("mamba_head_dim", "head_dim"), state, c("n_groups"), kernel
        return state_space(dim, *sizes, chunk=c("chunk_size"), **biases)
    inner = inner if jamba else c("intermediate_size", default=inner)
    rank = -(-dim // 16) if rank == "auto" else rank
    return selective_scan(dim, inner, state, rank, kernel, normed=jamba, **biases)


def _single_layer(c: _Config, layer: int, *, norm: Parts, **options: Any) -> Parts:
    """One thing behind a norm: Mamba's recurrence, or in Nemotron-H what the pattern names in that place."""
    kinds = c("hybrid_override_pattern", "layers_block_type", default=None)
    names = {"M": "mamba", "linear_attention": "mamba", "*": "attention", "full_attention": "attention", "E": "moe"}
    kind = names.get(kinds[layer], kinds[layer]) if kinds else "mamba"
    if kind == "mamba":
        return norm + _recurrence(c)
    mixing = {name: options.pop(name) for name in _OF_MIXING if name in options}
    if kind == "attention":
        return norm + _mixing(c, layer, **mixing)
    validated_choice("hybrid_override_pattern", kind, ("M", "*", "E", "-", "moe", "mlp"))
    if kind != "moe":
        del options["corrections"]
    return norm + _feeding(c, layer, sparse=kind == "moe", **options)


def _mixed_layer(c: _Config, layer: int, *, norm: Parts, **options: Any) -> Parts:
    """Jamba's: attention in some layers, Mamba in the others."""
    attends = (layer - c("attn_layer_offset")) % c("attn_layer_period") == 0
    mixed = _mixing(c, layer) if attends else _recurrence(c, jamba=True)
    return norm + mixed + norm + _feeding(c, layer, **options)


LAYERS: dict[str, Callable[..., Parts]] = {"usual": _layer, "single": _single_layer, "mixed": _mixed_layer}


def _stack(layers: int, layer_of: Callable[[int], Parts]) -> Parts:
    """All layers; equal ones stand together, where their kind comes first."""
    places = range(validated_int("num_hidden_layers", layers, minimum=1))
    return sum((number * layer for layer, number in Counter(map(layer_of, places)).items()), start=Parts())


def _decoder(
    c: _Config,
    *,
    tied: bool = False,
    norm: str = "rmsnorm",
    positions: str = "",
    unused_positions: int = 0,
    embedding_norm: bool = False,
    head_bias: Flag = False,
    layer: str = "usual",
    **options: Any,
) -> Parts:
    dim, vocab_size = c("hidden_size", "n_embd", "n_embed"), c("vocab_size")
    listed = len(c("layers_block_type", default=())) or _REQUIRED
    layers = c("num_hidden_layers", "n_layer", "num_layers", default=listed)
    tied = c("tie_word_embeddings", default=tied)
    each = other("norms", NORM_VECTORS[norm] * dim)
    model: Parts = embedding(vocab_size, dim) + int(embedding_norm) * each
    c.only("word_embed_proj_dim", dim)
    if positions:
        length = c(positions)
        model |= other("positions", (length + unused_positions) * dim, looked_up=True, longest=length)
    model += _stack(layers, lambda place: LAYERS[layer](c, place, norm=each, **options)) + each
    return model + linear("head", dim, vocab_size, copies=0 if tied else 1, bias=c.flag(head_bias))


# Encoders, and decoders that attend to one


def _bert(c: _Config, *, offset: int = 0) -> Parts:
    """Encoder of tokens; with the head of a masked language model, or without it the pooler."""
    dim, heads, *_ = _widths(c)
    c.only("position_embedding_type", "absolute")
    c.only("tie_word_embeddings", True)
    length = c("max_position_embeddings")
    masked = any("MaskedLM" in name or "PreTraining" in name for name in c("architectures", default=["MaskedLM"]))
    first = embedding(c("vocab_size"), dim) | other("positions", length * dim, looked_up=True, longest=length - offset)
    first |= other("positions", c("type_vocab_size") * dim, looked_up=True)
    first += other("norms", 2 * dim)
    layers = encoder(dim, c("num_hidden_layers"), heads, c("intermediate_size"), "tokens", ends_layer=False)
    if not masked:
        return first + layers + linear("head", dim, dim, "pooler", bias=True, rows=1)
    last = linear("head", dim, dim, "transform", bias=True) + other("norms", 2 * dim)
    return first + layers + last + linear("head", dim, c("vocab_size"), copies=0) + other("head", c("vocab_size"))


def _modern_bert(c: _Config) -> Parts:
    """Encoder of tokens with rotary positions, gated MLPs and windows; the first layer has no norm before attention."""
    dim, heads, *_ = _widths(c)
    norm, bias = other("norms", dim * (1 + c.flag("norm_bias"))), c.flag("attention_bias")
    half, every = c("local_attention") // 2, c("global_attn_every_n_layers", default=3)
    c.only("tie_word_embeddings", True)

    def layer(place: int) -> Parts:
        local = _kind(c, place) == "sliding_attention" if _kind(c, place) else place % every != 0
        options: dict[str, Any] = {
            "causal": False,
            "window": (half + 1) * local,
        }  # on either side, the token itself included
        mixed = attention(dim, heads, dim // heads, bias=bias, out_bias=bias, **options)
        fed = mlp(dim, c("intermediate_size"), gated=True, bias=c.flag("mlp_bias"))
        return (norm if place else Parts()) + mixed + norm + fed

    model: Parts = embedding(c("vocab_size"), dim) + norm + _stack(c("num_hidden_layers"), layer) + norm
    model += linear("head", dim, dim, "transform", bias=c.flag("classifier_bias")) + norm
    return (
        model
        + linear("head", dim, c("vocab_size"), copies=0)
        + other("head", c("vocab_size") * c.flag(["decoder_bias", True]))
    )


def _t5(c: _Config) -> Parts:
    dim, heads, width, layers = c("d_model"), c("num_heads"), c("d_kv"), c("num_layers")
    gated = c("is_gated_act", default=str(c("feed_forward_proj", default="relu")).startswith("gated"))
    norm, buckets = other("norms", dim), other("attention", c("relative_attention_num_buckets") * heads)

    def thinking(rows: str) -> Parts:
        return norm + mlp(dim, c("d_ff"), gated=gated, rows=rows)

    encoding = norm + attention(dim, heads, width, rows="source", causal=False) + thinking("source")
    decoding = norm + attention(dim, heads, width) + norm + attention(dim, heads, width, keys="source", causal=False)
    model: Parts = embedding(c("vocab_size"), dim) + (buckets + layers * encoding + norm)
    model += buckets + c("num_decoder_layers", default=layers) * (decoding + thinking("tokens")) + norm
    return model + linear("head", dim, c("vocab_size"), copies=0 if c("tie_word_embeddings", default=True) else 1)


def _speech_or_text(c: _Config) -> Parts:
    """BART and Whisper: LayerNorms, biases (Whisper's keys have none), learned positions of both sides."""
    dim, whisper = c("d_model"), c.type == "whisper"
    c.only("num_hidden_layers", c("encoder_layers"))
    norm = other("norms", 2 * dim)
    model: Parts = embedding(c("vocab_size"), dim)
    if whisper:
        source, target, mels = c("max_source_positions"), c("max_target_positions"), c("num_mel_bins")
        model |= convolution("input", mels, dim, 3, 2 * source, bias=True) + convolution(
            "input", dim, dim, 3, source, bias=True
        )
    else:
        source = target = c("max_position_embeddings") + 2  # torch's padding index shifts them
        model += 2 * norm
    model |= other("positions", (source + target) * dim, looked_up=True, longest=target - 2 * (not whisper))
    rows: Rows = source if whisper else "source"

    def layer(side: str, rows: Rows, *attentions: Parts) -> Parts:
        parts = sum((norm + each for each in attentions), start=Parts())
        return parts + norm + mlp(dim, c(f"{side}_ffn_dim"), bias=True, rows=rows, ends_layer=whisper)

    def attend(side: str, **options: Any) -> Parts:
        heads = c(f"{side}_attention_heads")
        biases = {"bias": True, "out_bias": True, "key_bias": not whisper}
        return attention(dim, heads, dim // heads, **biases, **options)

    ends = norm if whisper else Parts()  # pre-norm
    encoding = layer("encoder", rows, attend("encoder", rows=rows, causal=False))
    decoding = layer("decoder", "tokens", attend("decoder"), attend("decoder", keys=rows, causal=False))
    model += c("encoder_layers") * encoding + ends + c("decoder_layers") * decoding + ends
    return model + linear("head", dim, c("vocab_size"), copies=0 if c("tie_word_embeddings", default=True) else 1)


# Images


def _classes(c: _Config) -> int:
    return len(c("id2label", default=())) or int(c("num_labels", default=2))


def _vit(c: _Config) -> Parts:
    dim, heads, *_ = _widths(c)
    c.only("qkv_bias", True)
    patches, elements = (c("image_size") // c("patch_size")) ** 2, c("num_channels") * c("patch_size") ** 2
    return vision_transformer(
        dim, c("num_hidden_layers"), heads, c("intermediate_size"), patches, elements, _classes(c)
    )


def _resnet(c: _Config, *, image: int = 224) -> Parts:
    """Bottleneck ResNet of version 1.5: a stage's first block halves the image in its 3 × 3 convolution."""
    c.only("layer_type", "bottleneck")
    c.only("downsample_in_bottleneck", False)
    c.only("downsample_in_first_stage", False)

    def normed(inputs: int, outputs: int, kernel: int, side: int, part: str = "stages") -> Parts:
        return convolution(part, inputs, outputs, kernel, side * side) + other("norms", 2 * outputs)

    width, side = c("embedding_size"), image // 4
    model = normed(c("num_channels"), width, 49, image // 2, "input")
    for stage, (outputs, depth) in enumerate(zip(c("hidden_sizes"), c("depths"), strict=True)):
        inner, before = outputs // 4, side
        side = side // 2 if stage else side
        first = normed(width, inner, 1, before) + normed(inner, inner, 9, side) + normed(inner, outputs, 1, side)
        rest = normed(outputs, inner, 1, side) + normed(inner, inner, 9, side) + normed(inner, outputs, 1, side)
        model += (first | normed(width, outputs, 1, side)) + (depth - 1) * rest
        width = outputs
    return model + linear("head", width, _classes(c), bias=True, rows=1)


BUILDERS: dict[str, Callable[..., Parts]] = {
    "decoder": _decoder,
    "bert": _bert,
    "modern_bert": _modern_bert,
    "t5": _t5,
    "speech_or_text": _speech_or_text,
    "vit": _vit,
    "resnet": _resnet,
}
