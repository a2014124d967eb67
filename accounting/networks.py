"""Whole models: decoders, linear nets and adapters, and published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from accounting.checks import validate_fields, validated_choice, validated_int
from accounting.layers import attention, embedding, head, linear, mixture, mlp, other
from accounting.parts import Parts

NORMS = ("layernorm", "rmsnorm")


class Built:
    """A model that takes its three lists from its `parts`.

    >>> class Lone(Built):
    ...     parts = linear("head", 3, 5)
    >>> Lone().linear_maps[0].weights
    15
    """

    parts: Any  # Parts, as a field or a property
    linear_maps = property(lambda self: self.parts.linear_maps)
    attentions = property(lambda self: self.parts.attentions)
    other_parameters = property(lambda self: self.parts.other_parameters)


@dataclass(frozen=True)
class DeepLinear(Built):
    """`layers` linear maps of dim × dim without nonlinearity, then a head of dim × outputs.

    The lecture's net: L·D² + D parameters. `inputs` is the width of the data if it differs from
    `dim`.
    Raises ValueError for a size below 1, TypeError for one that is not an integer.

    >>> [maps.parameters for maps in DeepLinear(dim=64, layers=2).linear_maps]
    [4096, 4096, 64]
    """

    dim: int
    layers: int
    outputs: int = 1
    inputs: int = 0  # 0: dim
    bias: bool = False

    def __post_init__(self) -> None:
        validate_fields(self, "dim", "layers", "outputs", minimum=1, flags=["bias"])
        object.__setattr__(self, "inputs", validated_int("inputs", self.inputs) or self.dim)

    @cached_property
    def parts(self) -> Parts:
        first, rest = (
            linear("layers", width, self.dim, bias=self.bias, ends_layer=True)
            for width in (self.inputs, self.dim)
        )
        return (
            first
            + (self.layers - 1) * rest
            + linear("head", self.dim, self.outputs, bias=self.bias)
        )


@dataclass(frozen=True)
class Transformer(Built):
    """A decoder-only transformer.

    The net has an embedding, `layers` blocks of attention and MLP, each after a norm, then a norm
    and a head. `kv_heads` selects MHA (0: equal to `heads`), MQA (1) or GQA. A `gated` MLP has
    three matrices, down(silu(gate(x)) · up(x)), a plain one two, down(gelu(up(x))). With `experts`
    > 1 each block has that many MLPs and a router without bias; a token goes to `active_experts`.
    `learned_positions` is the length of the table of position embeddings; 0 means rotary, without
    parameters.
    Raises ValueError for a size out of range, heads that do not divide, an odd head_dim with rotary
    positions, and an unknown norm. Raises TypeError for a size that is not an integer.

    >>> Transformer(vocab_size=100, layers=2, dim=64, heads=4, hidden=256).head_dim
    16
    """

    vocab_size: int
    layers: int
    dim: int
    heads: int
    hidden: int
    kv_heads: int = 0  # 0: heads
    head_dim: int = 0  # 0: dim / heads
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    tied_embedding: bool = False
    learned_positions: int = 0
    norm: str = "layernorm"
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "layers", "dim", "heads", "hidden", "experts", "active_experts")
        validate_fields(self, *sizes, minimum=1)
        flags = ("gated", "tied_embedding", "norm_bias", "qkv_bias", "out_bias", "mlp_bias")
        validate_fields(self, "learned_positions", "kv_heads", "head_dim", flags=flags)
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(
                f"heads must divide dim where head_dim is not given, got heads={self.heads}, "
                f"dim={self.dim}"
            )
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // self.heads)
        if validated_choice("norm", self.norm, NORMS) == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias must be False for norm='rmsnorm', got True")
        if self.head_dim % 2 and not self.learned_positions:
            raise ValueError(
                "head_dim must be even for rotary positions (learned_positions=0), "
                f"got {self.head_dim}"
            )
        # The builders of its parts refuse heads and experts that do not go together.
        _ = self.parts

    @cached_property
    def parts(self) -> Parts:
        norm = other("norms", self.dim * (2 if self.norm_bias else 1))
        attending = attention(
            self.dim,
            self.heads,
            self.head_dim,
            self.kv_heads,
            bias=self.qkv_bias,
            out_bias=self.out_bias,
        )
        options: dict[str, Any] = {"gated": self.gated, "bias": self.mlp_bias}
        if self.experts > 1:
            thinking = mixture(self.dim, self.hidden, self.experts, self.active_experts, **options)
        else:
            thinking = mlp(self.dim, self.hidden, **options)
        first = embedding(self.vocab_size, self.dim, self.learned_positions)
        last = norm + head(self.dim, self.vocab_size, tied=self.tied_embedding)
        return first + self.layers * (norm + attending + norm + thinking) + last


# Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2; widths as in
# the released weights
GPT2_SMALL = Transformer(
    vocab_size=50257,
    layers=12,
    dim=768,
    heads=12,
    hidden=3072,
    learned_positions=1024,
    tied_embedding=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)

# Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, table 3
LLAMA3_8B = Transformer(
    vocab_size=128256,
    layers=32,
    dim=4096,
    heads=32,
    kv_heads=8,
    hidden=14336,
    gated=True,
    norm="rmsnorm",
)
LLAMA3_70B = replace(LLAMA3_8B, layers=80, dim=8192, heads=64, hidden=28672)

# Jiang et al. 2024, "Mixtral of Experts", arXiv:2401.04088, table 1
MIXTRAL_8X7B = replace(LLAMA3_8B, vocab_size=32000, experts=8, active_experts=2)
