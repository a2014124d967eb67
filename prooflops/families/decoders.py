"""Reads the sizes of a decoder's `config.json` under its family's keys, and builds its layers.

`model_types.json` states each family's fixed choices: norms, biases, layers with a window, keys
that it ignores. A setting there is a value, the name of a key, or a key and its default.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from accounting.checks import (
    validated_bool,
    validated_choice,
    validated_instance,
    validated_int,
    validated_ints,
)
from accounting.layers import (
    attention,
    embedding,
    head,
    latent_attention,
    linear,
    mixture,
    mlp,
    other,
)
from accounting.parts import Parts

_TABLE = json.loads(Path(__file__).with_name("model_types.json").read_text(encoding="utf-8"))
MODEL_TYPES: dict[str, dict[str, Any]] = _TABLE["types"]
READ_AT_ONE_VALUE: dict[str, Any] = _TABLE["read_at_one_value"]
# Keys that change no parameter, no product and no attention.
WITHOUT_SIZE = re.compile(
    "|".join(pattern for patterns in _TABLE["without_size"].values() for pattern in patterns)
)
NORM_VECTORS = {"rmsnorm": 1, "layernorm": 2}
REQUIRED = object()
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# Zero says that a model has no such part; any other size is at least 1.
MAY_BE_ZERO = (
    *EXPERTS,
    "num_experts_per_tok",
    "n_shared_experts",
    "first_k_dense_replace",
    "q_lora_rank",
    "qk_rope_head_dim",
    "sliding_window",
    "sliding_window_size",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "max_window_layers",
)
# Beyond these a size is a slip of the pen: no released model has a hundredth of them.
MOST_LAYERS = 10_000
LARGEST_SIZE = 10**10
# The ends of the names of architectures, each with a head of its own.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
TASKS = ("ForCausalLM", "LMHeadModel", *CLASSIFIERS, "Model")
# The values in layer_types that are read.
ATTENDING = ("full_attention", "sliding_attention")


class UnreadError(ValueError):
    """A type or a key that the formulas do not read."""


def validated_size(name: str, value: Any, part: str = "") -> int:
    """A whole number under the key `name` that a model can have.

    >>> validated_size("hidden_size", 4096.5)
    Traceback (most recent call last):
    TypeError: hidden_size must be an integer, got 4096.5 of type float
    """
    most = MOST_LAYERS if name in LAYERS else LARGEST_SIZE
    least = 0 if name in MAY_BE_ZERO else 1
    size = validated_int(f"{part}{name}", value, minimum=None)
    if not least <= size <= most:
        raise ValueError(f"{part}{name} must be from {least} to {most:,}, got {size}")
    return size


class Config:
    """The values of a config and its family's row of the table.

    It remembers which keys were read.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        if "model_type" not in values:
            raise ValueError(
                f"config must have 'model_type', the name of its family, got {', '.join(values)}"
            )
        self.type = str(values["model_type"])
        try:
            self.family = MODEL_TYPES[validated_choice("model_type", self.type, MODEL_TYPES)]
        except ValueError as error:
            raise UnreadError(error) from None
        self.values = dict(values)
        for key in self.family.get("ignored", ()):
            self.values.pop(key, None)
        self.read = {"model_type"}

    def __call__(self, *names: str, default: Any = REQUIRED) -> Any:
        """The value of the first of these keys that is set."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is REQUIRED:
            named = " or ".join(map(repr, names))
            raise ValueError(f"config must have {named} for a model of type {self.type!r}")
        return default

    def size(self, *names: str, default: Any = REQUIRED) -> int:
        """The whole number under the first of these keys that is set."""
        value = self(*names, default=default)
        found = [name for name in names if self.values.get(name) is not None]
        return validated_size(found[0], value) if found else int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether the key is set to true."""
        return validated_bool(name, self(name, default=default))

    def setting(self, name: str) -> bool:
        """The family's setting `name`, read from the config where the table names a key."""
        value = self.family.get(name, False)
        if isinstance(value, str):
            return self.flag(value)
        if isinstance(value, list):
            key, otherwise = value
            return self.flag(key, default=otherwise)
        return bool(value)

    def only(self, name: str, value: Any) -> None:
        """Refuses another value of a key that changes the shape in a way that is not read."""
        if name not in self.read and self(name, default=None) not in (None, value):
            raise UnreadError(
                f"config has {name}={self(name)!r}, which is not read for a model of type "
                f"{self.type!r}"
            )

    def nothing_else(self) -> None:
        """Refuses keys that were not read and may change the shape."""
        for key, value in READ_AT_ONE_VALUE.items():
            self.only(key, value)
        unread = []
        for key in sorted(self.values.keys() - self.read):
            value = self.values[key]
            if value not in (None, [], {}, ()) and not WITHOUT_SIZE.fullmatch(key):
                unread.append(f"{key}={value!r}")
        if unread:
            raise UnreadError(
                f"config has {', '.join(unread)}, which may change the shape and is not read for "
                f"type {self.type!r}"
            )

    def norm(self) -> Parts:
        return other("norms", NORM_VECTORS[self.family.get("norm", "rmsnorm")] * self.dim)

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers", "n_layer")

    @property
    def dim(self) -> int:
        return self.size("hidden_size", "n_embd")

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads", "n_head")

    @property
    def head_dim(self) -> int:
        """Width of a head, by default a share of the model's."""
        given = self.size("head_dim", default=0)
        if not given and self.dim % self.heads:
            name = "num_attention_heads" if "num_attention_heads" in self.values else "n_head"
            raise ValueError(
                f"{name} must divide the width {self.dim} where head_dim is not given, "
                f"got {self.heads}"
            )
        return given or self.dim // self.heads

    @property
    def hidden(self) -> int:
        """Width of an MLP, by default four times the model's."""
        return self.size("intermediate_size", "n_inner", default=4 * self.dim)


class Kind(NamedTuple):
    """The properties that distinguish the layers of a decoder."""

    window: int
    sparse: bool


def decoder(c: Config) -> Parts:
    """The whole model: equal layers are built once, and stand at the place of the first of them."""
    vocab_size, dim, norm = c.size("vocab_size"), c.dim, c.norm()
    positions = c.size(c.family["positions"]) if "positions" in c.family else 0
    model: Parts = embedding(vocab_size, dim, positions)
    c.only("word_embed_proj_dim", dim)
    kinds = Counter(map(Kind, _windows(c), _sparse(c)))
    for kind, number in kinds.items():
        model += number * _layer(c, kind)
    return model + norm + _head(c)


def _head(c: Config) -> Parts:
    """The head of the architecture that the config names."""
    tied = c.flag("tie_word_embeddings", default=c.family.get("tied", False))
    task = _task(c)
    if task == "model":
        return Parts()
    if task in ("forcausallm", "lmheadmodel"):
        return head(c.dim, c.size("vocab_size"), tied=tied)
    names = validated_instance("id2label", c("id2label", default={}), dict)
    labels = len(names) or c.size("num_labels", default=2)
    if task == "forquestionanswering":
        # The scores of an answer's start and end.
        labels = 2
    return linear("head", c.dim, labels, bias=task != "forsequenceclassification")


def _task(c: Config) -> str:
    """The task in the name of the first architecture, in small letters: a language model's, unless
    one is named.
    """
    stated = c("architectures", default=()) or ["ForCausalLM"]
    first = stated[0] if isinstance(stated, (list, tuple)) else stated
    family = c.family.get("class", c.type).replace("_", "")
    name = rf"({family}|{family.removesuffix('text')})?({'|'.join(TASKS)})"
    # A name is written in several ways: LLaMAForCausalLM.
    found = re.fullmatch(name, str(first), re.IGNORECASE)
    if not found:
        raise UnreadError(
            f"config has architectures={stated!r}, which is not read for a model of type "
            f"{c.type!r}; valid names end in {', '.join(TASKS)}; ignore 'architectures' for a "
            "language model"
        )
    return found[2].lower()


def _layer(c: Config, kind: Kind) -> Parts:
    """A layer with its norms: one before attention and MLP, or one before and one behind each."""
    norm = c.norm()
    behind = norm if c.family.get("norms", 2) == 4 else Parts()
    return norm + _attention(c, kind.window) + behind + norm + _fed(c, kind.sparse) + behind


def _windows(c: Config) -> Iterator[int]:
    """Windows by the family's rule: in "all" layers, in "late" ones, or (n) in all but each
    n-th.
    """
    rule = c.family.get("window")
    size = c.size("sliding_window", "sliding_window_size", default=0) if rule else 0
    if rule and not c.flag("use_sliding_window", default=True):
        size = 0
    stated = c("layer_types", default=None) or [""] * c.layers
    if not isinstance(stated, (list, tuple)):
        raise TypeError(f"layer_types must be a list, got {stated!r}")
    if unread := [kind for kind in stated if kind not in ("", *ATTENDING)]:
        raise UnreadError(
            f"layer_types must be of {', '.join(ATTENDING)} for a model of type {c.type!r}, "
            f"got {unread[0]!r}"
        )
    if len(stated) != c.layers:
        raise ValueError(
            f"layer_types must have an entry for each of {c.layers} layers, got {len(stated)}"
        )
    first = c.size("max_window_layers", default=0) if rule == "late" else 0
    patterns = ("sliding_window_pattern", "_sliding_window_pattern")
    every = (c.size(*patterns, default=0) or rule) if rule else 0
    for layer, kind in enumerate(stated):
        windowed = kind == "sliding_attention"
        if not kind:
            windowed = (layer + 1) % every != 0 if isinstance(every, int) and every else True
            windowed = windowed and layer >= first
        yield size * windowed


def _sparse(c: Config) -> Iterator[bool]:
    """Whether each layer has experts."""
    if not c.family.get("sparse"):
        yield from [False] * c.layers
        return
    c.only("moe_layer_freq", 1)
    first = c.size("first_k_dense_replace", default=0)
    dense = validated_ints("mlp_only_layers", c("mlp_only_layers", default=()))
    step = c.size("decoder_sparse_step", default=1)
    for layer in range(c.layers):
        yield layer >= first and layer not in dense and (layer + 1) % step == 0


def _attention(c: Config, window: int) -> Parts:
    """A layer's attention."""
    if c.family.get("latent"):
        return latent_attention(
            c.dim,
            c.heads,
            q_rank=c.size("q_lora_rank", default=0),
            kv_rank=c.size("kv_lora_rank"),
            nope=c.size("qk_nope_head_dim"),
            rope=c.size("qk_rope_head_dim"),
            value_dim=c.size("v_head_dim"),
            bias=c.flag("attention_bias"),
        )
    kv_heads = c.size("num_key_value_heads", default=c.heads)
    normed = {"heads": 2 * c.head_dim, "all": (c.heads + kv_heads) * c.head_dim}
    attended = attention(
        c.dim,
        c.heads,
        c.head_dim,
        kv_heads,
        bias=c.setting("qkv_bias"),
        out_bias=c.setting("out_bias"),
        extra=normed.get(c.family.get("qk_norm", ""), 0),
        window=window,
    )
    return attended | other("sinks", c.family.get("sinks", False) * c.heads)


def _fed(c: Config, sparse: bool) -> Parts:
    """The MLP of a layer, or its experts."""
    gated, bias = c.family.get("gated", True), c.setting("mlp_bias")
    if not sparse:
        # A norm behind the MLP keeps its output.
        ends_layer = False if c.family.get("post_norm") else None
        return mlp(c.dim, c.hidden, gated=gated, bias=bias, ends_layer=ends_layer)
    width = c.size("moe_intermediate_size", default=c.hidden)
    return mixture(
        c.dim,
        width,
        experts=c.size(*EXPERTS),
        active=c.size("num_experts_per_tok"),
        shared=width * c.size("n_shared_experts", default=0),
        router_bias=c.family.get("router_bias", False),
        corrections=c.family.get("corrections", False),
        gated=gated,
        bias=bias,
    )
