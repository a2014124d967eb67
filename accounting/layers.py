"""Builders of layers' parts, in the sizes of a paper: linear maps, attention, experts."""

from __future__ import annotations

from typing import Any

from accounting.checks import checked, validated_bool
from accounting.parts import (
    AttentionLayers,
    LinearMaps,
    OtherParameters,
    Parts,
)


@checked("in_features", "out_features")
def linear(part: str, in_features: int, out_features: int, name: str = "", **options: Any) -> Parts:
    """One linear map, or `copies` of it; `options` go to `LinearMaps`.

    >>> linear("head", 4096, 128256).linear_maps[0].parameters
    525336576
    """
    return Parts((LinearMaps(part, in_features, out_features, name=name, **options),))


@checked("elements")
def other(part: str, elements: int, **options: Any) -> Parts:
    """Parameters that are no factor of a product; nothing for 0 `elements`.

    `options` go to `OtherParameters`.

    >>> other("norms", 4096).other_parameters[0].parameters, other("norms", 0).other_parameters
    (4096, ())
    """
    if not elements:
        return Parts()
    return Parts(other_parameters=(OtherParameters(part, elements, **options),))


@checked("vocab_size", "dim", "positions")
def embedding(vocab_size: int, dim: int, positions: int = 0) -> Parts:
    """A row of `dim` for each token, and one for each of `positions` if they are learned.

    >>> gpt2 = embedding(50257, 768, positions=1024)
    >>> [table.parameters for table in gpt2.other_parameters]
    [38597376, 786432]
    """
    tokens = other("embedding", vocab_size * dim, looked_up=True)
    return tokens | other("positions", positions * dim, looked_up=True, longest=positions)


@checked("dim", "vocab_size", tied=validated_bool)
def head(dim: int, vocab_size: int, *, tied: bool = False, bias: bool = False) -> Parts:
    """Logits from the last state; `tied` uses the embedding's own matrix and stores only a bias.

    >>> for tied in (False, True):
    ...     parts = head(768, 50257, tied=tied, bias=True)
    ...     sum(each.parameters for each in (*parts.linear_maps, *parts.other_parameters))
    38647633
    50257
    """
    if not tied:
        return linear("head", dim, vocab_size, bias=bias)
    maps = linear("head", dim, vocab_size, copies=0)
    return maps | other("head", vocab_size) if bias else maps


@checked("dim", "heads", "head_dim", "kv_heads", "extra")
def attention(
    dim: int,
    heads: int,
    head_dim: int,
    kv_heads: int = 0,
    *,
    bias: bool = False,
    out_bias: bool = False,
    extra: int = 0,
    **options: Any,
) -> Parts:
    """Projections of queries, keys and values, the attention, and the output map.

    The maps have 2·dim·head_dim·(heads + kv_heads) weights. `extra` are further parameters (norms
    of queries and keys); `options` go to `AttentionLayers`.

    >>> llama3_8b = attention(4096, 32, 128, kv_heads=8)
    >>> [(maps.name, maps.parameters) for maps in llama3_8b.linear_maps]
    [('query', 16777216), ('key', 4194304), ('value', 4194304), ('out', 16777216)]
    """
    kv_width = (kv_heads or heads) * head_dim
    query = linear("attention", dim, heads * head_dim, "query", bias=bias)
    key = linear("attention", dim, kv_width, "key", bias=bias)
    value = linear("attention", dim, kv_width, "value", bias=bias)
    shape = AttentionLayers("attention", heads, head_dim, kv_heads=kv_heads, **options)
    out = linear("attention", heads * head_dim, dim, "out", bias=out_bias)
    return (query | key | value) + other("attention", extra) + Parts(attentions=(shape,)) + out


@checked("dim", "hidden", flags=("gated", "ends_layer"))
def mlp(
    dim: int,
    hidden: int,
    *,
    gated: bool = False,
    part: str = "mlp",
    ends_layer: bool | None = None,
    **options: Any,
) -> Parts:
    """down(act(up(x))), or gated, down(act(gate(x)) · up(x)): 2·dim·hidden or 3·dim·hidden weights.

    >>> sum(maps.parameters for maps in mlp(4096, 14336, gated=True).linear_maps)
    176160768
    """
    up, gate = (linear(part, dim, hidden, name, **options) for name in ("up", "gate"))
    # Experts do not end a layer: their outputs are needed by the router's weights.
    ends = "uses" not in options if ends_layer is None else ends_layer
    down = linear(part, hidden, dim, "down", ends_layer=ends, **options)
    return (up | gate if gated else up) + down


@checked("dim", "hidden", "experts", "active", "shared", flags=("corrections",))
def mixture(
    dim: int,
    hidden: int,
    experts: int,
    active: int,
    *,
    shared: int = 0,
    router_bias: bool = False,
    corrections: bool = False,
    **options: Any,
) -> Parts:
    """A router and `experts` MLPs; each token passes `active` of them.

    Every token also passes an MLP of width `shared`. `options` go to `mlp`.
    `corrections` balance the router's choice, one per expert (DeepSeek-V3, Kimi-K2, GLM-4.5). They
    are a part of their own: published counts include them, but in transformers they are a buffer.

    >>> mixtral = mixture(4096, 14336, experts=8, active=2, gated=True)
    >>> sum(maps.parameters for maps in mixtral.linear_maps)
    1409318912
    >>> sum(maps.used * maps.weights for maps in mixtral.linear_maps)
    352354304
    """
    if active > experts:
        raise ValueError(f"active must be at most experts={experts}, got {active}")
    router = linear("router", dim, experts, "router", bias=router_bias)
    if corrections:
        router |= other("corrections", experts)
    model = router + mlp(dim, hidden, copies=experts, uses=active, **options)
    if shared:
        model |= mlp(dim, shared, ends_layer=False, part="shared expert", **options)
    return model


@checked("dim", "heads", "q_rank", "kv_rank", "nope", "rope", "value_dim")
def latent_attention(
    dim: int,
    heads: int,
    q_rank: int,
    kv_rank: int,
    nope: int,
    rope: int,
    value_dim: int,
    *,
    bias: bool = False,
) -> Parts:
    """MLA has queries, keys and values of low rank.

    Keys have `rope` further elements, which all heads share. A cache keeps kv_rank + rope elements
    per token. At inference, heads attend to the latents directly. The query and output maps absorb
    the key and value maps, at the same FLOPs per new token.
    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.

    >>> [layer] = latent_attention(7168, 128, 1536, 512, 128, 64, 128).attentions  # DeepSeek-V3
    >>> layer.cached_elements(1)
    576
    """
    queries = linear("attention", q_rank or dim, heads * (nope + rope), "query")
    if q_rank:
        down = linear("attention", dim, q_rank, "query_down", bias=bias)
        queries = down + other("norms", q_rank) + queries
    latents = linear("attention", dim, kv_rank + rope, "latent", bias=bias)
    latents += other("norms", kv_rank)
    latents += linear("attention", kv_rank, heads * (nope + value_dim), "key and value")
    shape = AttentionLayers(
        "attention", heads, nope + rope, value_dim=value_dim, latent=(kv_rank, rope)
    )
    out = linear("attention", heads * value_dim, dim, "out", bias=bias)
    return (queries | latents) + Parts(attentions=(shape,)) + out
