"""Attention of any shape, forward and backward, against its own loops and against what torch dispatches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting.attention import Attention, attention_backward_flops, attention_flops, attention_pairs, attention_step
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.scalars import Operations


@given(data=st.data(), causal=st.booleans(), convention=st.sampled_from(["math", "flash"]))
def test_attention_costs_what_its_loops_count(data, causal, convention):
    kv_heads, group, queries, width, value_dim = (data.draw(st.integers(1, 3)) for _ in range(5))
    keys = data.draw(st.integers(queries if causal else 1, 4))
    heads = kv_heads * group
    q, k, v = (
        torch.rand(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, value_dim))
    )
    do, tally = torch.rand(heads, queries, value_dim, dtype=torch.float64), Operations()
    arrays = [tally.array(x.detach()) for x in (q, k, v)]
    results, forward, backward = scalars.attention(*arrays, causal, do, flash=convention == "flash")

    mask = torch.ones(queries, keys).tril(keys - queries) > 0 if causal else torch.ones(queries, keys) > 0
    scores = (q @ k.repeat_interleave(group, 0).mT / math.sqrt(width)).masked_fill(~mask, -math.inf)
    output = scores.softmax(-1) @ v.repeat_interleave(group, 0)
    for got, reference in zip(results, (output, *torch.autograd.grad(output, (q, k, v), do)), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), reference.detach())

    sizes = {"key_length": keys, "kv_heads": kv_heads, "value_dim": value_dim, "pairs": "causal" if causal else "full"}
    attention = Attention(1, heads, queries, width, **sizes)
    step = attention_step(attention, convention)
    formula = attention_flops(attention), attention_backward_flops(attention, convention)
    assert formula == (forward.flops, backward.flops) == (step.forward, step.backward + step.recomputation), (
        f"forward and backward {formula}, step {step}, but should be {forward.flops} and {backward.flops} [{attention}]"
    )


@given(batch=st.integers(1, 3), heads=st.integers(1, 3), length=st.integers(2, 6), width=st.integers(2, 6))
def test_full_attention_costs_what_torch_dispatches_both_ways(batch, heads, length, width):
    q, k, v = (torch.rand(batch, heads, length, width, requires_grad=True) for _ in range(3))

    def both():
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    step = attention_step(Attention(batch, heads, length, width))
    assert step.hardware == product_flops(both), f"{step}, but torch dispatched {product_flops(both)}"


@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_causal_pairs_are_the_lower_triangle(length):
    assert attention_pairs(length, pairs="causal") == int(torch.ones(length, length).tril().sum())


@pytest.mark.parametrize("window", [1, 3, 7, 20])
@pytest.mark.parametrize("length", [1, 7, 9])
def test_pairs_within_a_window_are_those_of_its_mask(length, window):
    query, key = torch.arange(length)[:, None], torch.arange(length)
    masks = {
        "sliding": (key <= query) & (query - key < window),
        "chunked": (key <= query) & (query // window == key // window),
        "both sides": (query - key).abs() < window,
    }
    got = {local: attention_pairs(length, pairs="causal", window=window, local=local) for local in masks}
    assert got == {local: int(mask.sum()) for local, mask in masks.items()}


@pytest.mark.parametrize("local", ["sliding", "chunked"])
def test_pairs_behind_a_cache_are_the_last_rows_of_the_mask(local):
    whole, cached = (attention_pairs(length, pairs="causal", window=4, local=local) for length in (11, 8))
    assert attention_pairs(3, 11, "causal", 4, local) == whole - cached


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    (lambda: attention_pairs(4, pairs="causal", window=0), ValueError, ["window", "at least 1", "0"]),
    (lambda: attention_pairs(3, pairs="triangle"), ValueError, "pairs must be one of full, causal"),
    (lambda: attention_pairs(3, 2, pairs="causal"), ValueError, "key_length must be at least query_length"),
    (lambda: attention_pairs(3, 4, "causal", 2, "both sides"), ValueError, "key_length must be equal to query_length"),
    (lambda: attention_pairs(3, window=2, local="block"), ValueError, "local must be one of sliding, chunked, both s"),
    (lambda: Attention(1, 6, 3, 4, kv_heads=4), ValueError, "heads=6 and kv_heads=4"),
    (lambda: Attention(1, 6, 3, 4, kv_heads=0), ValueError, "heads=6 and kv_heads=0"),
    (lambda: Attention(1, 6, 3, -4), ValueError, "head_dim must be at least 0, got -4"),
    (lambda: attention_backward_flops(Attention(1, 6, 3, 4), "fast"), ValueError, "convention must be .* 'flash'"),
    (lambda: attention_step(Attention(1, 6, 3, 4), "forward"), ValueError, "convention must be one of math, flash"),
    (lambda: Attention(1, 6, 3, 4, value_dim=-1), ValueError, "value_dim must be at least 0, got -1"),
    (lambda: Attention(1, 6, 3, 4, key_length=2, pairs="causal"), ValueError, "key_length must be at least"),
    (lambda: Attention(1, 6, 3, 4, pairs="half"), ValueError, "pairs must be one of full, causal, got 'half'"),
)
