"""Claims about generating text: the bytes that each token reads, against the ridges."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from accounting import roofline
from accounting.devices import (
    ROWS,
    bandwidth_bytes_per_s,
    peak_flop_per_s,
)
from accounting.models import LLAMA3_8B, Transformer, cache_bytes, decoding_work
from accounting.parts import AttentionLayers
from test_claims.oracles.decoding import Decoder
from test_claims.oracles.dispatched import Recorded, product_flops
from test_claims.oracles.messages import at_most, between, equal
from test_claims.strategies import (
    TORCH_DTYPES,
    fewer,
    sizes,
)


@st.composite
def decoders(draw):
    """A model with shared keys or without, a number of sequences, and their length in tokens."""
    flags = "gated", "tied_embedding", "qkv_bias", "out_bias", "mlp_bias"
    kv_heads = draw(sizes(most=3))
    groups = draw(sizes(most=3))
    experts = draw(sizes(most=3))
    model = Transformer(
        vocab_size=11,
        layers=draw(sizes(most=3)),
        dim=6,
        heads=groups * kv_heads,
        kv_heads=kv_heads,
        head_dim=draw(sizes(most=5)),
        hidden=8,
        learned_positions=16,
        experts=experts,
        active_experts=draw(sizes(most=experts)),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        **{flag: draw(st.booleans()) for flag in flags},
    )
    # Several sequences may choose the same experts.
    return model, draw(sizes(most=3)) if experts == 1 else 1, draw(sizes(2, 9))


def decoded(workloads, device, model, batch, tokens, dtype="fp32"):
    """The decoder after all `tokens` but the last, these, and the whole net's output for them."""
    net = workloads.build(model, device=device, dtype=TORCH_DTYPES[dtype])
    ids = workloads.inputs(model, batch, tokens, device=device)
    decoder = Decoder(net)
    for column in ids.T[:-1]:
        decoder.step(column)
    return decoder, ids[:, -1], net(ids)[:, -1]


@pytest.mark.claim("mem.kv-cache")
@given(drawn=decoders(), dtype=st.sampled_from(["fp32", "bf16", "fp8_e4m3"]))
def test_a_cache_of_keys_and_values_suffices_and_takes_its_bytes(workloads, device, drawn, dtype):
    model, batch, tokens = drawn
    # A model that computes in more bits may write its cache in fp8.
    computed = "bf16" if dtype == "fp8_e4m3" else dtype
    decoder, last, should = decoded(workloads, device, *drawn, computed)
    got = decoder.step(last)

    # The values are those of the whole net in fp32; in bf16 random weights may round apart.
    if dtype == "fp32":
        off = (got - should).abs().max().item()
        at_most(off, 1e-4 + 1e-3 * should.abs().max().item(), "the change of logits by a cache")

    held = sum(x.to(TORCH_DTYPES[dtype]).nbytes for kept in decoder.layers for x in kept)
    equal(cache_bytes(model, batch, tokens, dtype), held, "cache_bytes")


@pytest.mark.claim("mem.kv-cache")
@given(heads=sizes(), width=sizes(most=5), window=sizes(1, 9), tokens=sizes(1, 9))
def test_within_a_window_the_last_keys_and_values_suffice(device, heads, width, window, tokens):
    """The window contains the new token, whose own key and value are computed, not kept."""
    query, *both = torch.randn(3, heads, tokens, width, device=device)
    keys, values = (x[:, -window:] for x in both)
    in_window = torch.arange(tokens, device=device) >= tokens - window
    should = scaled_dot_product_attention(query[:, -1:], *both, attn_mask=in_window)
    got = scaled_dot_product_attention(query[:, -1:], keys, values)
    torch.testing.assert_close(got, should)

    kept = keys[:, :-1].numel() + values[:, :-1].numel()
    part = AttentionLayers("attention", heads, width, window=window)
    equal(part.cached_elements(tokens - 1), kept, "cached_elements")
    full = AttentionLayers("attention", heads, width).cached_elements
    smaller = kept < full(tokens - 1)
    equal(smaller, window < tokens, "whether the cache is smaller than of full attention")
    equal(full(10**9), 2 * heads * width * 10**9, "elements of 10^9 tokens")
    latent = AttentionLayers("attention", heads, width, latent=(width, 1)).cached_elements
    equal(latent(10**9), (width + 1) * 10**9, "elements of 10^9 compressed tokens")


@pytest.mark.claim("roof.decode-speed", "roof.inference")
@fewer
@given(drawn=decoders())
def test_generation_reads_the_weights_once_and_the_cache_of_each(workloads, device, drawn):
    model, batch, tokens = drawn
    decoder, last, _ = decoded(workloads, device, *drawn)
    work = decoding_work(model, batch, tokens - 1, "fp32")
    new_entry = cache_bytes(model, batch, 1, "fp32")
    with Recorded() as recorded:
        flops = product_flops(decoder.step, last)
    read = decoder.bytes_among(recorded) - new_entry

    equal((work.flops, work.bytes), (flops, read), "decoding_work")


@pytest.mark.claim("roof.inference", "roof.decode-speed")
def test_one_token_lies_below_every_ridge_and_a_prompt_of_thousands_above(workloads):
    model = replace(LLAMA3_8B, layers=1)
    net = workloads.build(model, device="meta", dtype=torch.bfloat16)
    read = sum(weight.nbytes for weight in net.parameters() if weight is not net.embedding.weight)
    one, prompt = (
        product_flops(net, workloads.inputs(model, 1, tokens, device="meta")) / read
        for tokens in (1, 4096)
    )
    for row in ROWS:
        peak = peak_flop_per_s(row, "bf16")
        bandwidth = bandwidth_bytes_per_s(row)
        if peak is None or bandwidth is None:
            continue
        ridge = roofline.ridge_point(peak, bandwidth)

        between(ridge, 10 * one, prompt / 5, "the ridge", label=row.label)

    shares = []
    for batch, context in ((1, 100), (4, 100), (1, 8192)):
        work = decoding_work(model, batch, context)
        least_s = roofline.least_time_s(work, 989.4e12, 3.35e12)
        shares.append(batch * read / 3.35e12 / least_s)
    near = [abs(share - 1) < 0.01 for share in shares]

    equal(
        near, [True, False, False], "tokens a second near bandwidth over the model", shares=shares
    )
