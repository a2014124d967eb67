"""Reads the sizes of a `config.json` under each family's keys, and builds its layers.

`model_types.json` states each family's fixed choices: norms, biases, layers with a window, keys that it ignores. A
setting there is a value, the name of a key, or a key and its default.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from accounting.checks import validated_choice, validated_int
from accounting.families.layers import (
    attention,
    delta_rule,
    embedding,
    head,
    latent_attention,
    linear,
    mixture,
    mlp,
    other,
    selective_scan,
    state_space,
)
from accounting.parts import Parts

_TABLE = json.loads(Path(__file__).with_name("model_types.json").read_text(encoding="utf-8"))
MODEL_TYPES: dict[str, dict[str, Any]] = _TABLE["types"]
READ_AT_ONE_VALUE: dict[str, Any] = _TABLE["read_at_one_value"]
# Keys that change no parameter, no product and no attention.
WITHOUT_SIZE = re.compile(
    "|".join(pattern for patterns in _TABLE["without_size"].values() for pattern in patterns)
)
NORM_VECTORS = {"none": 0, "rmsnorm": 1, "layernorm": 2}
REQUIRED = object()
T = TypeVar("T")


class UnreadError(ValueError):
    """A type or a key that the families do not read."""


class Config:
    """The values of a config and its family's row of the table; it remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        if "model_type" not in values:
            raise ValueError(
                f"config must have 'model_type', the name of its family, got {', '.join(values)}"
            )
        self.type = str(values["model_type"])
        try:
            self.family = dict(MODEL_TYPES[validated_choice("model_type", self.type, MODEL_TYPES)])
        except ValueError as error:
            raise UnreadError(error) from None
        self.values = {
            key: value for key, value in values.items() if key not in self.family.get("ignored", ())
        }
        self.read = {"model_type", *self.family.get("optional", ())}
        variants = [
            row for key, row in self.family.get("if", {}).items() if self(key, default=False)
        ]
        self.family |= variants[0] if variants else {}
        for key, value in self.family.get("fixed", {}).items():
            self.only(key, value)

    def __call__(self, *names: str, default: Any = REQUIRED) -> Any:
        """The value of the first of these keys that is set."""
        self.read.update(names)
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if not found and default is REQUIRED:
            raise ValueError(
                f"config must have {' or '.join(map(repr, names))} for a model of type {self.type!r}"
            )
        for name, value in found.items():
            if isinstance(value, str) and value.isdigit():
                raise TypeError(f"{name} must be a number, got {value!r} of type str")
        value = next(iter(found.values()), default)
        return (
            value.__index__()
            if hasattr(value, "__index__") and not isinstance(value, bool)
            else value
        )

    def setting(self, name: str, default: Any = False) -> Any:
        """The family's setting `name`, read from the config where the table names a key."""
        value = self.family.get(name, default)
        key, otherwise = value if isinstance(value, list) else (value, False)
        return self(key, default=otherwise) if isinstance(key, str) else value

    def flag(self, name: str) -> bool:
        return bool(self.setting(name))

    def of_layers(self, *names: str) -> Any:
        """The list that has an entry for each layer, or one of ""."""
        listed = self(*names, default=None) or [""] * self.layers
        if len(listed) != self.layers:
            raise ValueError(
                f"{names[0]} must have an entry for each of {self.layers} layers, got {len(listed)}"
            )
        return listed

    def only(self, name: str, *values: Any) -> None:
        """Refuses a key whose value changes the shape in a way that is not read; one that was read is no matter."""
        if name not in self.read and self(name, default=None) not in (None, *values):
            raise UnreadError(
                f"config has {name}={self(name)!r}, which is not read for a model of type {self.type!r}"
            )

    def norm(self) -> Parts:
        return other("norms", NORM_VECTORS[self.family.get("norm", "rmsnorm")] * self.dim)

    def nothing_else(self) -> None:
        """Refuses keys that were not read and may change the shape."""
        for key, value in READ_AT_ONE_VALUE.items():
            self.only(key, value)
        unread = sorted(
            key for key in self.values.keys() - self.read if not WITHOUT_SIZE.fullmatch(key)
        )
        named = ", ".join(
            f"{key}={self.values[key]!r}"
            for key in unread
            if self.values[key] not in (None, [], {}, ())
        )
        if named:
            raise UnreadError(
                f"config has {named}, which may change the shape and is not read for type {self.type!r}"
            )

    @property
    def layers(self) -> int:
        listed = len(self("layers_block_type", default=())) or REQUIRED
        layers = self("num_hidden_layers", "n_layer", "num_layers", default=listed)
        return validated_int("num_hidden_layers", layers, minimum=1)

    @property
    def dim(self) -> int:
        return int(self("hidden_size", "n_embd", "n_embed"))

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Width, heads, heads of keys and values, width of a head."""
        dim, heads = self.dim, self("num_attention_heads", "n_head")
        kv_heads = self.setting("kv_heads", ["num_key_value_heads", 0]) or heads
        return dim, heads, kv_heads, self("head_dim", "attention_head_dim", default=dim // heads)

    @property
    def hidden(self) -> int:
        """Width of an MLP, or 0 for the usual four times the model's."""
        return int(self("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0))


def stack(kinds: Iterable[T], layer_of: Callable[[T], Parts]) -> Parts:
    """All layers, of these kinds: each kind is built once, and stands at its first layer's place."""
    return sum((number * layer_of(kind) for kind, number in Counter(kinds).items()), start=Parts())


# --- decoders ---------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What one layer of a decoder is made of."""

    mixing: (
        str  # "attention", "linear_attention", "mamba"; in a layer of one part also "moe" or "mlp"
    )
    window: int
    sparse: bool


def kinds(c: Config) -> list[Kind]:
    """The kind of each layer; equal layers are built once."""
    return list(map(Kind, _mixers(c), _windows(c), _sparse(c)))


def _windows(c: Config) -> list[int]:
    """Windows by the family's rule: in "all" layers, in "late" ones, or (n) in all but each n-th."""
    if not (rule := c.family.get("window")):
        return [0] * c.layers
    size = c("sliding_window", "sliding_window_size", "attention_chunk_size", default=0)
    first = c("max_window_layers", default=0) if rule == "late" else 0
    if c("use_sliding_window", default=True) is False or not size:
        return [0] * c.layers
    every = c("sliding_window_pattern", "_sliding_window_pattern", default=rule)
    stated = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
    windowed = [
        stated.get(kind, (layer + 1) % every != 0 if isinstance(every, int) else layer >= first)
        for layer, kind in enumerate(c.of_layers("layer_types"))
    ]
    if c.family.get("chunked"):  # of these layers, those without rotary positions attend to all
        windowed = [
            each and rope != 0
            for each, rope in zip(windowed, c.of_layers("no_rope_layers"), strict=True)
        ]
    return [int(size) * each for each in windowed]


def _mixers(c: Config) -> list[str]:
    """Each layer's attention or recurrence; in a family whose layers have one part, that part."""
    match c.family.get("layer"):
        case "single":
            names = {
                "M": "mamba",
                "linear_attention": "mamba",
                "*": "attention",
                "full_attention": "attention",
            }
            names |= {"E": "moe", "-": "mlp", "": "mamba"}
            listed = c.of_layers("hybrid_override_pattern", "layers_block_type")
            valid = sorted({*names, *names.values()} - {""})
            return [
                names.get(each) or validated_choice("hybrid_override_pattern", each, valid)
                for each in listed
            ]
        case "mixed":
            offset, period = c("attn_layer_offset"), c("attn_layer_period")
            return [
                "mamba" if (layer - offset) % period else "attention" for layer in range(c.layers)
            ]
    interval = c("full_attention_interval", default=1)
    recurs = [
        "linear_attention" if (layer + 1) % interval else "attention" for layer in range(c.layers)
    ]
    stated = c.of_layers("layer_types")
    return [
        own if not each else each if each == "linear_attention" else "attention"
        for each, own in zip(stated, recurs, strict=True)
    ]


def _mixing(c: Config, kind: Kind) -> Parts:
    """A layer's attention or recurrence."""
    dim, heads, kv_heads, head_dim = c.widths
    if c.family.get("latent"):
        ranks = (
            c("q_lora_rank", default=0),
            c("kv_lora_rank"),
            c("qk_nope_head_dim"),
            c("qk_rope_head_dim"),
        )
        return latent_attention(
            dim, heads, *ranks, c("v_head_dim"), bias=bool(c("attention_bias", default=False))
        )
    if kind.mixing == "linear_attention":
        names = (
            "num_key_heads",
            "num_value_heads",
            "key_head_dim",
            "value_head_dim",
            "conv_kernel_dim",
        )
        return delta_rule(dim, *(c(f"linear_{name}") for name in names))
    extra = {"heads": 2 * head_dim, "all": (heads + kv_heads) * head_dim}.get(
        c.family.get("qk_norm", ""), 0
    )
    chunked, biases = (
        c.family.get("chunked", False),
        {"bias": c.flag("qkv_bias"), "out_bias": c.flag("out_bias")},
    )
    mixed = attention(
        dim, heads, head_dim, kv_heads, extra=extra, window=kind.window, chunked=chunked, **biases
    )
    if c.family.get("gated_output"):
        mixed = linear("attention", dim, heads * head_dim, "gate", bias=c.flag("qkv_bias")) | mixed
    return mixed | other("sinks", c.family.get("sinks", False) * heads)


def _sparse(c: Config) -> list[bool]:
    """Whether each layer has experts."""
    if not c.family.get("sparse"):
        return [False] * c.layers
    c.only("moe_layer_freq", 1)
    first, dense = c("first_k_dense_replace", default=0), c("mlp_only_layers", default=())
    offset, period = c("expert_layer_offset", default=0), c("expert_layer_period", default=1)
    step, listed = (
        c("decoder_sparse_step", "interleave_moe_layer_step", default=1),
        c("moe_layers", default=None),
    )
    return [
        layer >= first
        and layer not in dense
        and (layer - offset) % period == 0
        and (layer + 1) % step == 0
        and (not listed or layer in listed)
        for layer in range(c.layers)
    ]


def _feeding(c: Config, *, sparse: bool) -> Parts:
    """The MLP of a layer, or its experts."""
    common: dict[str, Any] = {"gated": c.family.get("gated", True), "bias": c.flag("mlp_bias")}
    dense = c("intermediate_size_mlp", default=c.hidden) or 4 * c.dim
    if not sparse:
        ends = False if c.family.get("post_norm") else None  # a norm behind it keeps its output
        return mlp(c.dim, dense, ends_layer=ends, **common)
    width = c("moe_intermediate_size", default=c.hidden)
    shared = c("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0)
    shared = shared or width * c(
        "n_shared_experts", default=int(c.family.get("shared_expert", False))
    )
    experts = c("num_local_experts", "num_experts", "n_routed_experts")
    own = {
        name: c.family.get(name, False) for name in ("shared_gate", "router_bias", "corrections")
    }
    return mixture(c.dim, width, experts, c("num_experts_per_tok"), shared=shared, **own, **common)


def _recurrence(c: Config, *, jamba: bool) -> Parts:
    """Mamba-2 where there are heads, else Mamba."""
    dim, conv_bias = c.dim, c("use_conv_bias", "mamba_conv_bias", default=True)
    state, kernel = (
        c("state_size", "ssm_state_size", "mamba_d_state"),
        c("conv_kernel", "mamba_d_conv"),
    )
    rank, inner = (
        c("time_step_rank", "mamba_dt_rank", default=0),
        c("expand", "mamba_expand", default=2) * dim,
    )
    bias = bool(c("mamba_proj_bias" if jamba else "use_bias", default=False))
    c.only("mamba_proj_bias", False)
    if heads := c("mamba_num_heads", "num_heads", default=0):
        sizes = heads, c("mamba_head_dim", "head_dim"), state, c("n_groups"), kernel
        return state_space(dim, *sizes, chunk=c("chunk_size"), bias=bias, conv_bias=conv_bias)
    inner = inner if jamba else c("intermediate_size", default=inner)
    rank = -(-dim // 16) if rank == "auto" else rank
    return selective_scan(
        dim, inner, state, rank, kernel, normed=jamba, bias=bias, conv_bias=conv_bias
    )


def decoder_layer(c: Config, kind: Kind) -> Parts:
    """A layer with its norms; where it is parallel, attention and MLP read the same input."""
    norm, layout = c.norm(), c.family.get("layer", "usual")
    if layout == "single" and kind.mixing in ("moe", "mlp"):
        return norm + _feeding(c, sparse=kind.mixing == "moe")
    mixed = _recurrence(c, jamba=layout == "mixed") if kind.mixing == "mamba" else _mixing(c, kind)
    if layout == "single":
        return norm + mixed
    fed, norms = _feeding(c, sparse=kind.sparse), int(c.setting("norms", 2))
    if c.flag("parallel"):
        return norms * norm + (mixed | fed)
    return norm + mixed + norm + fed + max(norms - 2, 0) * norm


def decoder(c: Config) -> Parts:
    vocab_size, dim, norm = c("vocab_size"), c.dim, c.norm()
    model: Parts = embedding(vocab_size, dim) + int(c.family.get("embedding_norm", False)) * norm
    c.only("word_embed_proj_dim", dim)
    if "positions" in c.family:
        length = c(c.family["positions"])
        rows = length + c.family.get("unused_positions", 0)
        model |= other("positions", rows * dim, looked_up=True, longest=length)
    model += stack(kinds(c), lambda kind: decoder_layer(c, kind)) + norm
    tied = c("tie_word_embeddings", default=c.family.get("tied", False))
    return model + head(dim, vocab_size, tied=tied, bias=c.flag("head_bias"))


# --- an encoder with windows ------------------------------------------------------------------------------------------


def modern_bert(c: Config) -> Parts:
    """Encoder of tokens with rotary positions, gated MLPs and windows; the first layer has no norm before attention."""
    dim, heads, *_ = c.widths
    norm, bias = (
        other("norms", dim * (1 + c("norm_bias", default=False))),
        c("attention_bias", default=False),
    )
    half, every = c("local_attention") // 2, c("global_attn_every_n_layers", default=3)

    def layer(kind: tuple[bool, bool]) -> Parts:
        first, local = kind
        window = (half + 1) * local  # tokens on either side, each with the token itself; 0: all
        mixed = attention(
            dim, heads, dim // heads, bias=bias, out_bias=bias, causal=False, window=window
        )
        fed = mlp(dim, c("intermediate_size"), gated=True, bias=c("mlp_bias", default=False))
        return (Parts() if first else norm) + mixed + norm + fed

    stated = enumerate(c.of_layers("layer_types"))
    local = [each == "sliding_attention" if each else place % every != 0 for place, each in stated]
    layers = stack(((place == 0, each) for place, each in enumerate(local)), layer)
    model: Parts = embedding(c("vocab_size"), dim) + norm + layers + norm
    model += linear("head", dim, dim, "transform", bias=c("classifier_bias", default=False)) + norm
    return model + head(dim, c("vocab_size"), tied=True, bias=c("decoder_bias", default=True))


BUILDERS: dict[str, Callable[[Config], Parts]] = {
    each.__name__: each for each in (decoder, modern_bert)
}
