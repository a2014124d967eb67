"""Readers of decoders' configs: the parts of each layer in the places of attention and MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accounting.checks import validated_choice
from accounting.families.config_values import REQUIRED, Config, Flag, kind, stack, widths
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

NORM_VECTORS = {"none": 0, "rmsnorm": 1, "layernorm": 2}


def _window(c: Config, layer: int, rule: str | int) -> int:
    """The window of a layer by the family's rule: in "all" layers, in "late" ones, or (n) in all but each n-th."""
    size = c("sliding_window", "sliding_window_size", "attention_chunk_size", default=0)
    first = c("max_window_layers", default=0) if rule == "late" else 0
    if c("use_sliding_window", default=True) is False or not size:
        return 0
    every = c("sliding_window_pattern", "_sliding_window_pattern", default=rule)
    windowed = (layer + 1) % every != 0 if isinstance(every, int) else layer >= first
    stated = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
    return int(size) if stated.get(kind(c, layer), windowed) else 0


def _mixing(
    c: Config,
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
    """A layer's attention or recurrence."""
    dim, heads, kv_heads, head_dim = widths(c)
    if latent:
        ranks = c("q_lora_rank", default=0), c("kv_lora_rank"), c("qk_nope_head_dim"), c("qk_rope_head_dim")
        return latent_attention(dim, heads, *ranks, c("v_head_dim"), bias=c.flag("attention_bias"))
    interval = c("full_attention_interval", default=1)
    if (kind(c, layer) or ("linear_attention" if (layer + 1) % interval else "")) == "linear_attention":
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


def _is_sparse(c: Config, layer: int) -> bool:
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
    c: Config,
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
    dim = widths(c)[0]
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


def decoder_layer(
    c: Config, layer: int, *, norm: Parts, norms: int = 2, parallel: Flag = False, **options: Any
) -> Parts:
    """A layer with `norms` norms; if `parallel`, attention and MLP read the same input."""
    mixed = _mixing(c, layer, **{name: options.pop(name) for name in _OF_MIXING if name in options})
    fed = _feeding(c, layer, **options)
    if c.flag(parallel):
        return norms * norm + (mixed | fed)
    return norm + mixed + norm + fed + max(norms - 2, 0) * norm


def _recurrence(c: Config, *, jamba: bool = False) -> Parts:
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


def _single_layer(c: Config, layer: int, *, norm: Parts, **options: Any) -> Parts:
    """One part after a norm: Mamba's recurrence, or in Nemotron-H the part that the pattern names."""
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


def _mixed_layer(c: Config, layer: int, *, norm: Parts, **options: Any) -> Parts:
    """Jamba's: attention in some layers, Mamba in the others."""
    attends = (layer - c("attn_layer_offset")) % c("attn_layer_period") == 0
    mixed = _mixing(c, layer) if attends else _recurrence(c, jamba=True)
    return norm + mixed + norm + _feeding(c, layer, **options)


LAYERS: dict[str, Callable[..., Parts]] = {"usual": decoder_layer, "single": _single_layer, "mixed": _mixed_layer}


def decoder(
    c: Config,
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
    listed = len(c("layers_block_type", default=())) or REQUIRED
    layers = c("num_hidden_layers", "n_layer", "num_layers", default=listed)
    tied = c("tie_word_embeddings", default=tied)
    each = other("norms", NORM_VECTORS[norm] * dim)
    model: Parts = embedding(vocab_size, dim) + int(embedding_norm) * each
    c.only("word_embed_proj_dim", dim)
    if positions:
        length = c(positions)
        model |= other("positions", (length + unused_positions) * dim, looked_up=True, longest=length)
    model += stack(layers, lambda place: LAYERS[layer](c, place, norm=each, **options)) + each
    return model + head(dim, vocab_size, tied=tied, bias=c.flag(head_bias))
