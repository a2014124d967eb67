"""Readers of the configs of encoders, encoder-decoders, and models of images."""

from __future__ import annotations

from typing import Any

from accounting.families.config_values import Config, kind, stack, widths
from accounting.families.layers import attention, convolution, embedding, head, linear, mlp, other
from accounting.families.networks import encoder, vision_transformer
from accounting.parts import Parts, Rows


def bert(c: Config, *, offset: int = 0) -> Parts:
    """Encoder of tokens with a masked-language head, or else a pooler. `offset`: positions that no token uses."""
    dim, heads, *_ = widths(c)
    length = c("max_position_embeddings")
    masked = any("MaskedLM" in name or "PreTraining" in name for name in c("architectures", default=["MaskedLM"]))
    first = embedding(c("vocab_size"), dim) | other("positions", length * dim, looked_up=True, longest=length - offset)
    first |= other("positions", c("type_vocab_size") * dim, looked_up=True)
    first += other("norms", 2 * dim)
    layers = encoder(dim, c("num_hidden_layers"), heads, c("intermediate_size"), "tokens", ends_layer=False)
    if not masked:
        return first + layers + linear("head", dim, dim, "pooler", bias=True, rows=1)
    last = linear("head", dim, dim, "transform", bias=True) + other("norms", 2 * dim)
    return first + layers + last + head(dim, c("vocab_size"), tied=True, bias=True)


def modern_bert(c: Config) -> Parts:
    """Encoder of tokens with rotary positions, gated MLPs and windows; the first layer has no norm before attention."""
    dim, heads, *_ = widths(c)
    norm, bias = other("norms", dim * (1 + c.flag("norm_bias"))), c.flag("attention_bias")
    half, every = c("local_attention") // 2, c("global_attn_every_n_layers", default=3)

    def layer(place: int) -> Parts:
        local = kind(c, place) == "sliding_attention" if kind(c, place) else place % every != 0
        window = (half + 1) * local  # tokens on either side, each with the token itself; 0: all
        mixed = attention(dim, heads, dim // heads, bias=bias, out_bias=bias, causal=False, window=window)
        fed = mlp(dim, c("intermediate_size"), gated=True, bias=c.flag("mlp_bias"))
        return (norm if place else Parts()) + mixed + norm + fed

    model: Parts = embedding(c("vocab_size"), dim) + norm + stack(c("num_hidden_layers"), layer) + norm
    model += linear("head", dim, dim, "transform", bias=c.flag("classifier_bias")) + norm
    return model + head(dim, c("vocab_size"), tied=True, bias=c.flag(["decoder_bias", True]))


def t5(c: Config) -> Parts:
    """T5. If `tie_word_embeddings` is False (T5 1.1, Flan), it has the separate head of the released weights.

    transformers 5 treats this head as tied until it loads these weights.
    """
    dim, heads, width, layers = c("d_model"), c("num_heads"), c("d_kv"), c("num_layers")
    gated = c("is_gated_act", default=str(c("feed_forward_proj", default="relu")).startswith("gated"))
    norm, buckets = other("norms", dim), other("attention", c("relative_attention_num_buckets") * heads)

    def normed_mlp(rows: str) -> Parts:
        return norm + mlp(dim, c("d_ff"), gated=gated, rows=rows)

    encoding = norm + attention(dim, heads, width, rows="source", causal=False) + normed_mlp("source")
    decoding = norm + attention(dim, heads, width) + norm + attention(dim, heads, width, keys="source", causal=False)
    model: Parts = embedding(c("vocab_size"), dim) + (buckets + layers * encoding + norm)
    model += buckets + c("num_decoder_layers", default=layers) * (decoding + normed_mlp("tokens")) + norm
    return model + head(dim, c("vocab_size"), tied=c("tie_word_embeddings", default=True))


def speech_or_text(c: Config) -> Parts:
    """BART and Whisper: LayerNorms, biases (Whisper's keys have none), learned positions of both sides."""
    dim, whisper = c("d_model"), c.type == "whisper"
    c.only("num_hidden_layers", c("encoder_layers"))
    norm = other("norms", 2 * dim)
    tied = c("tie_word_embeddings", default=True)
    # An untied BART has three tables: its encoder's, its decoder's, and one that is never read.
    model: Parts = embedding(c("vocab_size") * (1 if tied or whisper else 3), dim)
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

    ends = norm if whisper else Parts()  # Whisper is pre-norm: each stack ends in a norm
    encoding = layer("encoder", rows, attend("encoder", rows=rows, causal=False))
    decoding = layer("decoder", "tokens", attend("decoder"), attend("decoder", keys=rows, causal=False))
    model += c("encoder_layers") * encoding + ends + c("decoder_layers") * decoding + ends
    return model + head(dim, c("vocab_size"), tied=tied)


def _classes(c: Config) -> int:
    return len(c("id2label", default=())) or int(c("num_labels", default=2))


def vit(c: Config) -> Parts:
    dim, heads, *_ = widths(c)
    patches, elements = (c("image_size") // c("patch_size")) ** 2, c("num_channels") * c("patch_size") ** 2
    return vision_transformer(
        dim, c("num_hidden_layers"), heads, c("intermediate_size"), patches, elements, _classes(c)
    )


def resnet(c: Config, *, image: int = 224) -> Parts:
    """Bottleneck ResNet of version 1.5: a stage's first block halves the image in its 3 × 3 convolution."""
    c.only("layer_type", "bottleneck")
    c.only("downsample_in_bottleneck", False)
    c.only("downsample_in_first_stage", False)

    def normed(inputs: int, outputs: int, kernel_area: int, side: int, part: str = "stages") -> Parts:
        return convolution(part, inputs, outputs, kernel_area, side * side) + other("norms", 2 * outputs)

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
