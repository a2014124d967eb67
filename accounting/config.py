"""Models from the `config.json` that Hugging Face's repositories hold: plain JSON, read without transformers.

Each family states what its code fixes and its config does not: which norms, which biases, where a window holds.
Of a config every key is either read, or known to change no size (`WITHOUT_SIZE`); any other is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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

# Keys that change neither a parameter, nor a product, nor what is attended to.
WITHOUT_SIZE = re.compile(
    r"_?name_or_path|_attn_implementation.*|transformers_version|(torch_)?dtype|auto_map|architectures|return_dict|"
    r"output_.*|use_cache|.*_token_ids?|begin_suppress_tokens|suppress_tokens|.*drop(out)?(_prob|_rate)?|.*_pdrop|.*_eps|"
    r"(layer_)?norm_epsilon|init.*_(range|factor|std)|initializer_.*|.*_act(ivation)?|act.*_function|activation|"
    r"rope_.*|.*rope_theta|rope|rotary_.*|partial_rotary_factor|no_rope_layer.*|.*max_position_embeddings|n_ctx|"
    r"(max|model_max)_(seq_len|length|sequence_length)|.*_coef|.*_multiplier|.*_scal(e|ing|ar)(_.*)?|"
    r"problem_type|summary_.*|task_specific_params|id2label|label2id|is_encoder_decoder|is_decoder|pretraining_tp|"
    r"norm_topk_prob|scoring_func|topk_method|topk_group|n_group|seq_aux|router_jitter_noise|input_jitter_noise|"
    r"swiglu_.*|time_step_(?!rank).*|residual_in_fp32|rescale_prenorm_residual|use_(mamba_kernels|mambapy|.*_scan)|"
    r"mamba_ssm_cache_dtype|num_logits_to_keep|query_pre_attn_scalar|.*_softcapping|clip_qkv|slow_but_exact|"
    r"reorder_and_upcast_attn|scale_.*|quantization_config|gradient_checkpointing|chunk_size_feed_forward|ep_size|"
    r"relative_attention_max_distance|dense_act_fn|feed_forward_proj|classifi.*|num_labels|num_beams|max_.*positions|n_positions|"
    r"position_embedding_type|alibi|mask_.*|median_filter_width|apply_spec_augment|forced_.*|normalize_.*|"
    r"embedding_size_per_head|attention_bias_.*|encoder_stride|pooler_.*|out_(features|indices)|stage_names|"
    r"initial_context_length|experts_per_token|layerdrop|(en|de)coder_layerdrop|cache_implementation|layer_norm_.*|"
    r"aux_loss_alpha|rotary|bias_dropout_fusion|masked_softmax_fusion|offset_alibi|skip_bias_add(_qkv)?|fused_add_norm|"
    r"early_stopping|add_bias_logits|use_mrope|output_past|moe_shared_expert_overlap|mtp_layers_block_type|qk_head_dim"
)

_REQUIRED = object()
Flag = bool | str | tuple[str, bool]  # a fixed one, or a key, and its default where that is True


@dataclass
class _Config:
    """The values of a config; it remembers which keys were read."""

    values: Mapping[str, Any]
    read: set[str] = field(default_factory=lambda: {"model_type"})

    def __call__(self, *names: str, default: Any = _REQUIRED) -> Any:
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
        key, default = (value, False) if isinstance(value, str) else value if isinstance(value, tuple) else ("", value)
        return bool(self(key, default=default)) if key else bool(default)

    def only(self, name: str, *values: Any) -> None:
        """Refuses a key whose value changes the shape in a way that is not read; one that was read is no matter."""
        if name not in self.read and self(name, default=None) not in (None, *values):
            raise ValueError(f"config has {name}={self(name)!r}, which is not read for a model of type {self.type!r}")


@checked
def from_config(config: Mapping[str, Any] | str | Path, *, multi_token_prediction: bool = False) -> Parts:
    """The model that a `config.json`, given as a path or as its content, describes.

    `multi_token_prediction` adds the modules that published counts leave out (DeepSeek-V3, GLM-4.5).
    Exact where the family's code in transformers 5 is; a window counts as one for "causal" pairs alone.

    Raises ValueError for a family that is not known, for a key that is missing, and for one that is neither read nor
    known to change nothing: it is named, as it may change the shape.

    >>> from_config({"model_type": "llama", "hidden_size": 8, "vocabulary": 2})
    Traceback (most recent call last):
    ValueError: config must have 'vocab_size' for a model of type 'llama'
    """
    if not isinstance(config, Mapping):
        path = Path(config if isinstance(config, Path) else validated_instance("config", config, str))
        config = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
        config = validated_instance("config", config, dict)
    values = _Config(config)
    family = FAMILIES[validated_choice("model_type", values.type, FAMILIES)]
    model = family(values)
    ahead = values("num_nextn_predict_layers", default=0)
    if multi_token_prediction and ahead:
        layer = _layer(values, 10**6, **family.keywords)  # as every layer behind the first dense ones
        model += ahead * multi_token(values("hidden_size"), layer, values("vocab_size"))
    for key, value in ONLY.items():
        values.only(key, value)
    unread = sorted(
        key for key in config.keys() - values.read if not WITHOUT_SIZE.fullmatch(key) and config[key] not in UNSET
    )
    if unread:
        named = ", ".join(f"{key}={config[key]!r}" for key in unread)
        raise ValueError(f"config has {named}, which may change the shape and is not read for type {values.type!r}")
    return model


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


def _window(c: _Config, layer: int, period: int, late: bool) -> int:
    """The window of a layer: each last of `period` has none, or with `late` those before `max_window_layers`."""
    window, first = (
        c("sliding_window", "sliding_window_size", default=0),
        c("max_window_layers", default=0) if late else 0,
    )
    if c("use_sliding_window", default=True) is False or not window:
        return 0
    period = c("sliding_window_pattern", "_sliding_window_pattern", default=period)
    windowed = layer >= first if late else not period or (layer + 1) % period != 0
    return int(window) if {"sliding_attention": True, "full_attention": False}.get(_kind(c, layer), windowed) else 0


def _mixing(
    c: _Config,
    layer: int,
    *,
    qkv_bias: Flag = False,
    out_bias: Flag = False,
    qk_norm: str = "",
    period: int = 1,  # 1: no layer has a window, 0: all have
    late: bool = False,
    sinks: bool = False,
    gated_output: bool = False,
    latent: bool = False,
) -> Parts:
    """What a layer has in the place of attention."""
    dim, heads, kv_heads, head_dim = _widths(c)
    if latent:
        ranks = c("q_lora_rank", default=0), c("kv_lora_rank"), c("qk_nope_head_dim"), c("qk_rope_head_dim")
        return latent_attention(dim, heads, *ranks, c("v_head_dim"), bias=c.flag("attention_bias"))
    if (_kind(c, layer) or ("linear_attention" if (layer + 1) % c("full_attention_interval", default=1) else "")) == (
        "linear_attention"
    ):
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
        return delta_rule(dim, *(c(f"linear_{name}") for name in names))
    norms = {"heads": 2 * head_dim, "all": (heads + kv_heads) * head_dim}.get(qk_norm, 0)
    window = _window(c, layer, period, late) if late or period != 1 else 0
    mixed = attention(
        dim, heads, head_dim, kv_heads, bias=c.flag(qkv_bias), out_bias=c.flag(out_bias), window=window, extra=norms
    )
    if gated_output:
        mixed = linear("attention", dim, heads * head_dim, "gate", bias=c.flag(qkv_bias)) | mixed
    return mixed | other("sinks", sinks * heads)


def _feeding(
    c: _Config,
    layer: int,
    *,
    gated: bool = True,
    mlp_bias: Flag = False,
    sparse: bool = False,
    post_norm: bool = False,
    **options: Any,
) -> Parts:
    """The MLP of a layer, or its experts."""
    dim, hidden = _widths(c)[0], c("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0)
    ends = False if post_norm else None  # a norm behind the MLP keeps its output
    dense = mlp(dim, hidden or 4 * dim, gated=gated, bias=c.flag(mlp_bias), ends_layer=ends)
    c.only("moe_layer_freq", 1)
    if not sparse or layer < c("first_k_dense_replace", default=0) or layer in c("mlp_only_layers", default=()):
        return dense
    if (layer - c("expert_layer_offset", default=0)) % c("expert_layer_period", default=1):
        return dense
    if (layer + 1) % c("decoder_sparse_step", default=1):
        return dense
    width = c("moe_intermediate_size", default=hidden)
    shared = c("shared_expert_intermediate_size", default=0) or width * c("n_shared_experts", default=0)
    experts = c("num_local_experts", "num_experts", "n_routed_experts")
    active = c("num_experts_per_tok")
    return mixture(dim, width, experts, active, gated=gated, bias=c.flag(mlp_bias), shared=shared, **options)


_OF_MIXING = ("qkv_bias", "out_bias", "qk_norm", "period", "late", "sinks", "gated_output", "latent")


def _layer(c: _Config, layer: int, *, norm: int = 1, norms: int = 2, parallel: Flag = False, **options: Any) -> Parts:
    """A layer with `norms` of norm·dim parameters; `parallel` attention and MLP read the same input."""
    each = other("norms", norm * _widths(c)[0])
    mixed = _mixing(c, layer, **{name: options.pop(name) for name in _OF_MIXING if name in options})
    fed = _feeding(c, layer, **options)
    if c.flag(parallel):
        return norms * each + (mixed | fed)
    return each + mixed + each + fed + (norms - 2) * each


def _stack(layers: int, layer_of: Callable[[int], Parts]) -> Parts:
    """All layers; equal ones stand together, where their kind comes first."""
    return sum(
        (
            number * layer
            for layer, number in Counter(
                map(layer_of, range(validated_int("num_hidden_layers", layers, minimum=1)))
            ).items()
        ),
        start=Parts(),
    )


def _decoder(
    c: _Config,
    *,
    tied: bool = False,
    norm: int = 1,
    positions: str = "",
    unused_positions: int = 0,
    embedding_norm: bool = False,
    head_bias: Flag = False,
    layer_of: Callable[..., Parts] = _layer,
    **options: Any,
) -> Parts:
    dim, vocab_size = c("hidden_size", "n_embd", "n_embed"), c("vocab_size")
    listed = len(c("layers_block_type", default=())) or _REQUIRED
    ends, layers = other("norms", norm * dim), c("num_hidden_layers", "n_layer", "num_layers", default=listed)
    tied = c("tie_word_embeddings", default=tied)
    model: Parts = embedding(vocab_size, dim) + int(embedding_norm) * ends
    c.only("word_embed_proj_dim", dim)
    if positions:
        length = c(positions)
        model |= other("positions", (length + unused_positions) * dim, looked_up=True, longest=length)
    model += _stack(layers, lambda layer: layer_of(c, layer, norm=norm, **options)) + ends
    return model + linear("head", dim, vocab_size, copies=0 if tied else 1, bias=c.flag(head_bias))


def _mamba_layer(c: _Config, layer: int, *, norm: int = 1) -> Parts:  # noqa: ARG001
    dim, kernel, expand, rank = (
        c("hidden_size"),
        c("conv_kernel"),
        c("expand", default=2),
        c("time_step_rank", default=0),
    )
    biases = {"bias": c.flag("use_bias"), "conv_bias": c.flag(("use_conv_bias", True))}
    if c.type == "mamba":
        inner, rank = c("intermediate_size", default=expand * dim), -(-dim // 16) if rank == "auto" else rank
        return other("norms", dim) + selective_scan(dim, inner, c("state_size"), rank, kernel, **biases)
    sizes = c("num_heads"), c("head_dim"), c("state_size"), c("n_groups"), kernel
    return other("norms", dim) + state_space(dim, *sizes, chunk=c("chunk_size"), **biases)


def _nemotron_layer(c: _Config, layer: int, *, norm: int = 1) -> Parts:
    dim, kind = c("hidden_size"), c("hybrid_override_pattern", "layers_block_type")[layer]
    c.read |= {"expand", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "num_experts_per_tok"}
    c.read |= {"n_routed_experts", "n_shared_experts", "num_nextn_predict_layers", "mamba_proj_bias"}
    bias = c.flag("mlp_bias")
    if kind in ("M", "mamba", "linear_attention"):
        sizes = c("mamba_num_heads"), c("mamba_head_dim"), c("ssm_state_size"), c("n_groups"), c("conv_kernel")
        biases = {"bias": c.flag("use_bias"), "conv_bias": c.flag(("use_conv_bias", True))}
        part = state_space(dim, *sizes, chunk=c("chunk_size"), **biases)
    elif kind in ("*", "attention", "full_attention"):
        part = _mixing(c, layer, **_BY_KEY)
    elif kind in ("E", "moe"):
        experts = c("moe_intermediate_size"), c("n_routed_experts"), c("num_experts_per_tok")
        shared = c("moe_shared_expert_intermediate_size")
        part = mixture(dim, *experts, gated=False, bias=bias, shared=shared, corrections=True)
    else:
        validated_choice("hybrid_override_pattern", kind, ("-", "mlp"))
        part = mlp(dim, c("intermediate_size"), bias=bias)
    return other("norms", norm * dim) + part


def _jamba_layer(c: _Config, layer: int, *, norm: int = 1, **options: Any) -> Parts:
    attends = (layer - c("attn_layer_offset")) % c("attn_layer_period") == 0
    dim, expand = c("hidden_size"), c("mamba_expand")
    sizes = expand * dim, c("mamba_d_state"), c("mamba_dt_rank"), c("mamba_d_conv")
    biases = {"bias": c.flag("mamba_proj_bias"), "conv_bias": c.flag(("mamba_conv_bias", True))}
    mixed = _mixing(c, layer) if attends else selective_scan(dim, *sizes, normed=True, **biases)
    each = other("norms", norm * dim)
    return each + mixed + each + _feeding(c, layer, **options)


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


# What the code of a family fixes. Biases, norms and gates are those of the models in transformers 5.
_BIASED: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_OLDER: dict[str, Any] = {"norm": 2, "gated": False, **_BIASED}  # LayerNorms, biases, a plain MLP
_OWN_BIAS = ("attention_bias", True)
_BY_USE: dict[str, Any] = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias")
_GEMMA: dict[str, Any] = {"qkv_bias": "attention_bias", "out_bias": "attention_bias", "tied": True}
_BY_KEY: dict[str, Any] = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_DEEPSEEK: dict[str, Any] = {"latent": True, "sparse": True}
FAMILIES: dict[str, partial[Parts]] = {
    name: partial(build, **options)
    for name, build, options in (
        ("bart", _speech_or_text, {}),
        ("bert", _bert, {}),
        ("bloom", _decoder, {**_OLDER, "tied": True, "embedding_norm": True}),
        ("cohere", _decoder, {**_BY_KEY, "norms": 1, "parallel": True, "tied": True}),
        ("cohere2", _decoder, {**_BY_KEY, "norms": 1, "parallel": True, "tied": True, "period": 4}),
        ("deepseek_v2", _decoder, _DEEPSEEK),
        ("deepseek_v3", _decoder, {**_DEEPSEEK, "corrections": True}),
        ("falcon", _decoder, {"norm": 2, "norms": 1, "gated": False, "parallel": "parallel_attn", "tied": True}),
        ("gemma", _decoder, _GEMMA),
        ("gemma2", _decoder, {**_GEMMA, "norms": 4, "period": 2, "post_norm": True}),
        ("gemma3_text", _decoder, {**_GEMMA, "norms": 4, "period": 6, "post_norm": True, "qk_norm": "heads"}),
        ("glm4_moe", _decoder, {"qkv_bias": "attention_bias", "sparse": True, "corrections": True}),
        ("gpt2", _decoder, {**_OLDER, "tied": True, "positions": "n_positions"}),
        (
            "gpt_neox",
            _decoder,
            {**_OLDER, "qkv_bias": _OWN_BIAS, "out_bias": _OWN_BIAS, "parallel": ("use_parallel_residual", True)},
        ),
        (
            "gpt_oss",
            _decoder,
            {
                "qkv_bias": _OWN_BIAS,
                "out_bias": _OWN_BIAS,
                "mlp_bias": True,
                "sparse": True,
                "router_bias": True,
                "sinks": True,
                "period": 2,
            },
        ),
        (
            "gptj",
            _decoder,
            {"norm": 2, "norms": 1, "gated": False, "mlp_bias": True, "parallel": True, "head_bias": True},
        ),
        ("granite", _decoder, {**_BY_KEY, "mlp_bias": "mlp_bias"}),
        ("jamba", _decoder, {"layer_of": _jamba_layer, "sparse": True}),
        ("llama", _decoder, {**_BY_KEY, "mlp_bias": "mlp_bias"}),
        ("mamba", _decoder, {"layer_of": _mamba_layer, "tied": True}),
        ("mamba2", _decoder, {"layer_of": _mamba_layer}),
        ("mistral", _decoder, {"period": 0}),
        ("mixtral", _decoder, {"period": 0, "sparse": True}),
        ("nemotron_h", _decoder, {"layer_of": _nemotron_layer}),
        ("olmo", _decoder, {**_BY_KEY, "norm": 0}),
        ("olmo2", _decoder, {**_BY_KEY, "qk_norm": "all", "post_norm": True}),
        ("olmo3", _decoder, {**_BY_KEY, "qk_norm": "all", "post_norm": True, "period": 4}),
        ("olmoe", _decoder, {**_BY_KEY, "qk_norm": "all", "sparse": True}),
        ("opt", _decoder, {**_OLDER, "tied": True, "positions": "max_position_embeddings", "unused_positions": 2}),
        ("phi", _decoder, {**_OLDER, "norms": 1, "parallel": True, "head_bias": True}),
        ("phi3", _decoder, {"period": 0}),
        ("qwen2", _decoder, {"qkv_bias": True, "late": True}),
        ("qwen2_moe", _decoder, {"qkv_bias": ("qkv_bias", True), "late": True, "sparse": True, "shared_gate": True}),
        ("qwen3", _decoder, {**_BY_KEY, "late": True, "qk_norm": "heads"}),
        ("qwen3_moe", _decoder, {**_BY_KEY, "late": True, "qk_norm": "heads", "sparse": True}),
        (
            "qwen3_next",
            _decoder,
            {**_BY_KEY, "qk_norm": "heads", "sparse": True, "shared_gate": True, "gated_output": True},
        ),
        ("resnet", _resnet, {}),
        ("roberta", _bert, {"offset": 2}),
        ("smollm3", _decoder, {**_BY_KEY, "mlp_bias": "mlp_bias", "late": True}),
        ("stablelm", _decoder, {"norm": 2, "qkv_bias": "use_qkv_bias", "parallel": "use_parallel_residual"}),
        ("starcoder2", _decoder, {**_BY_USE, "norm": 2, "gated": False, "tied": True, "period": 0}),
        ("t5", _t5, {}),
        ("vit", _vit, {}),
        ("whisper", _speech_or_text, {}),
    )
}
UNSET: tuple[Any, ...] = (None, [], {}, ())
# Keys that some families have and that are read at one value alone.
ONLY: dict[str, Any] = {
    "use_qk_norm": False, "qk_layernorm": False, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
    "enable_bias": True, "layer_norm_elementwise_affine": True, "add_cross_attention": False, "bias": False,
    "apply_residual_connection_post_layernorm": False, "use_bidirectional_attention": False, "lm_head_bias": False,
    "moe_latent_size": 0, "mlp_type": "default", "norm_type": "layer_norm", "rms_norm": True, "normalize_before": False,
    "add_final_layer_norm": False, "use_weighted_layer_sum": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
