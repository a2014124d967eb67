"""Builders of models: each puts together parts of `accounting.parts`, of the sizes in a paper's table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from accounting.checks import validate_fields, validated_choice, validated_int
from accounting.parts import AttentionLayers, LinearMaps, Mixing, OtherParameters, Parts, Rows

NORMS = ("layernorm", "rmsnorm")


# Parts


def linear(part: str, in_features: int, out_features: int, name: str = "", **options: Any) -> Parts:
    """One linear map, or `copies` of it; `options` are those of `LinearMaps`."""
    return Parts((LinearMaps(part, in_features, out_features, name=name, **options),))


def other(part: str, elements: int, **options: Any) -> Parts:
    """Parameters that nothing is multiplied by, if there are any; `options` are those of `OtherParameters`."""
    return Parts(other_parameters=(OtherParameters(part, elements, **options),) if elements else ())


def embedding(vocab_size: int, dim: int, positions: int = 0) -> Parts:
    """A line of `dim` for each token, and one for each of `positions` where they are learned."""
    tokens = other("embedding", vocab_size * dim, looked_up=True)
    return tokens | other("positions", positions * dim, looked_up=True, longest=positions)


def attention(
    dim: int,
    heads: int,
    head_dim: int,
    kv_heads: int = 0,
    *,
    bias: bool = False,
    out_bias: bool = False,
    rows: Rows = "tokens",
    keys: Rows = "",
    extra: int = 0,
    **options: Any,
) -> Parts:
    """Projections of queries, keys and values, the attention, and the way out: 2·dim·d·(heads + kv_heads) weights.

    `rows` of queries attend to `keys` (default: to themselves). `extra` are further parameters (query-key norms,
    sinks); `options` are those of `AttentionLayers`.
    """
    kv_heads, keys = kv_heads or heads, keys or rows
    query, key, value = (
        linear("attention", dim, number * head_dim, name, bias=bias, rows=stream)
        for name, number, stream in (("query", heads, rows), ("key", kv_heads, keys), ("value", kv_heads, keys))
    )
    shape = AttentionLayers("attention", heads, head_dim, kv_heads=kv_heads, queries=rows, keys=keys, **options)
    out = linear("attention", heads * head_dim, dim, "out", bias=out_bias, rows=rows)
    return (query | key | value) + other("attention", extra) + Parts(attentions=(shape,)) + out


def mlp(dim: int, hidden: int, *, gated: bool = False, part: str = "mlp", **options: Any) -> Parts:
    """down(act(up(x))), or gated, down(act(gate(x)) · up(x)): 2·dim·hidden or 3·dim·hidden weights."""
    up, gate = (linear(part, dim, hidden, name, **options) for name in ("up", "gate"))
    # Behind a router nothing is spared: its weights need the experts' outputs.
    down = linear(part, hidden, dim, "down", ends_layer="uses" not in options, **options)
    return (up | gate if gated else up) + down


def mixture(dim: int, hidden: int, experts: int, active: int, *, router_bias: bool = False, **options: Any) -> Parts:
    """A router and `experts` MLPs, to `active` of which each token goes; `options` are those of `mlp`."""
    router = linear("router", dim, experts, "router", bias=router_bias)
    return router + mlp(dim, hidden, copies=experts, uses=active, **options)


# Models


class Built:
    """A model whose three lists are those of its `parts`."""

    @cached_property
    def parts(self) -> Parts:
        """What the model is put together from."""
        raise NotImplementedError

    @property
    def linear_maps(self) -> tuple[LinearMaps, ...]:
        """Every product with a weight."""
        return self.parts.linear_maps

    @property
    def attentions(self) -> tuple[Mixing, ...]:
        """Every product of activations with one another."""
        return self.parts.attentions

    @property
    def other_parameters(self) -> tuple[OtherParameters, ...]:
        """Every parameter that is in no linear map."""
        return self.parts.other_parameters


@dataclass(frozen=True)
class DeepLinear(Built):
    """Linear layers one after the other, nothing between them: `layers` of dim × dim, then a head of dim × outputs.

    The lecture's net: L·D² + D parameters. `inputs` is the width of the data where it is not `dim`.

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
        validate_fields(self, "dim", "layers", "outputs", minimum=1)
        object.__setattr__(self, "inputs", validated_int("inputs", self.inputs) or self.dim)

    @cached_property
    def parts(self) -> Parts:
        """The first layer, the equal ones after it, the head."""
        first, rest = (
            linear("layers", width, self.dim, bias=self.bias, ends_layer=True) for width in (self.inputs, self.dim)
        )
        return first + (self.layers - 1) * rest + linear("head", self.dim, self.outputs, bias=self.bias)


@dataclass(frozen=True)
class Transformer(Built):
    """Decoder-only transformer: embedding, `layers` blocks of attention and MLP, each behind a norm, norm, head.

    `kv_heads` says which attention: as many as `heads` (0, MHA), one (MQA), or between (GQA). A `gated` MLP has three
    matrices, down(silu(gate(x)) · up(x)), a plain one two, down(gelu(up(x))). With `experts` > 1 each block has that
    many MLPs, of which a router without bias sends a token to `active_experts`. `learned_positions` is the length of
    the table of position embeddings; 0 means rotary, which has no parameters.

    Raises ValueError for a size out of range, heads that do not divide, an odd head_dim with rotary positions, an
    unknown norm; TypeError for a size that is not an integer.

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
        validate_fields(self, "learned_positions", "kv_heads", "head_dim")
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(
                f"heads must divide dim where head_dim is not given, got heads={self.heads}, dim={self.dim}"
            )
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads, got kv_heads={self.kv_heads}, heads={self.heads}")
        if self.active_experts > self.experts:
            raise ValueError(f"active_experts must be at most experts={self.experts}, got {self.active_experts}")
        if validated_choice("norm", self.norm, NORMS) == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias must be False for norm='rmsnorm', got True")
        if self.head_dim % 2 and not self.learned_positions:
            raise ValueError(f"head_dim must be even for rotary positions (learned_positions=0), got {self.head_dim}")

    @cached_property
    def parts(self) -> Parts:
        """Embedding, layers of attention and MLP behind a norm each, norm and head."""
        norm = other("norms", self.dim * (2 if self.norm_bias else 1))
        attending = attention(
            self.dim, self.heads, self.head_dim, self.kv_heads, bias=self.qkv_bias, out_bias=self.out_bias
        )
        options: dict[str, Any] = {"gated": self.gated, "bias": self.mlp_bias}
        if self.experts > 1:
            thinking = mixture(self.dim, self.hidden, self.experts, self.active_experts, **options)
        else:
            thinking = mlp(self.dim, self.hidden, **options)
        head = linear("head", self.dim, self.vocab_size, copies=0 if self.tied_embedding else 1)
        first = embedding(self.vocab_size, self.dim, self.learned_positions)
        return first + self.layers * (norm + attending + norm + thinking) + norm + head


# Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2; widths as in the released weights
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
GPT2_XL = replace(GPT2_SMALL, layers=48, dim=1600, heads=25, kv_heads=25, hidden=6400)

# Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, table 3
LLAMA3_8B = Transformer(
    vocab_size=128256, layers=32, dim=4096, heads=32, kv_heads=8, hidden=14336, gated=True, norm="rmsnorm"
)
LLAMA3_70B = replace(LLAMA3_8B, layers=80, dim=8192, heads=64, hidden=28672)

# Jiang et al. 2024, "Mixtral of Experts", arXiv:2401.04088, table 1
MIXTRAL_8X7B = replace(LLAMA3_8B, vocab_size=32000, experts=8, active_experts=2)
