"""The values of a `config.json`, the keys that were read of it, and those that size every family."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.checks import validated_int
from accounting.parts import Parts

_TABLE = json.loads(Path(__file__).with_name("model_types.json").read_text(encoding="utf-8"))
MODEL_TYPES: dict[str, dict[str, Any]] = _TABLE["types"]
READ_AT_ONE_VALUE: dict[str, Any] = _TABLE["read_at_one_value"]
# Keys that change no parameter, no product and no attention.
WITHOUT_SIZE = re.compile("|".join(pattern for patterns in _TABLE["without_size"].values() for pattern in patterns))
UNSET: tuple[Any, ...] = (None, [], {}, ())

REQUIRED = object()
Flag = bool | str | list[Any]  # a fixed one, a key whose default is False, or a key and its default


@dataclass
class Config:
    """The values of a config; it remembers which keys were read."""

    values: Mapping[str, Any]
    read: set[str] = field(default_factory=lambda: {"model_type"})

    def __call__(self, *names: str, default: Any = REQUIRED) -> Any:
        """The value of the first of these keys that is set."""
        self.read.update(names)
        found = [self.values[name] for name in names if self.values.get(name) is not None]
        if not found and default is REQUIRED:
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


def widths(c: Config) -> tuple[int, int, int, int]:
    """Width, heads, heads of keys and values, width of a head."""
    dim, heads = c("hidden_size", "n_embd", "n_embed"), c("num_attention_heads", "n_head")
    kv_heads, falcons = c("num_key_value_heads", default=heads), c("num_kv_heads", default=heads)
    if c("new_decoder_architecture", default=False):
        kv_heads = falcons
    elif c("multi_query", default=False):
        kv_heads = 1
    return dim, heads, kv_heads, c("head_dim", "attention_head_dim", default=dim // heads)


def kind(c: Config, layer: int) -> str:
    """The kind of a layer in a config that lists its layers one by one, else ""."""
    listed = c("layer_types", default=None)
    return str(listed[layer % len(listed)]) if listed else ""


def stack(layers: int, layer_of: Callable[[int], Parts]) -> Parts:
    """All layers; equal ones stand together, at the first one's place."""
    places = range(validated_int("num_hidden_layers", layers, minimum=1))
    return sum((number * layer for layer, number in Counter(map(layer_of, places)).items()), start=Parts())
