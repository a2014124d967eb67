"""The three lists of a model: how they compose, and what follows from them for any object that has them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.models import GPT2_SMALL, LLAMA3_8B, forward_flops, parameter_count, step_flops
from accounting.parts import AttentionLayers, LinearMaps, OtherParameters, Parts, RecurrentLayers

UP, DOWN = Parts((LinearMaps("mlp", 8, 32),)), Parts((LinearMaps("mlp", 32, 8),))


def places(parts: Parts) -> list[tuple[int, int, int]]:
    return [(maps.layers, maps.place, maps.block_end) for maps in parts.linear_maps]


def test_parts_stand_one_after_the_other_or_side_by_side():
    assert places(UP + DOWN) == [(1, 0, 0), (1, 1, 1)]
    assert places(UP | DOWN) == [(1, 0, 0), (1, 0, 0)]
    assert places(UP + 3 * (UP + DOWN) + UP) == [(1, 0, 0), (3, 1, 2), (3, 2, 2), (1, 3, 3)]
    assert places(2 * UP + 0 * DOWN) == [(2, 0, 0)]
    assert places(Parts() + UP + DOWN) == places(UP + DOWN)


@pytest.mark.parametrize("model", [GPT2_SMALL, LLAMA3_8B], ids=["GPT-2 small", "Llama-3-8B"])
def test_any_object_with_the_three_lists_is_a_model(model):
    lists = ("linear_maps", "attentions", "other_parameters")
    own = SimpleNamespace(**{name: list(getattr(model, name)) for name in lists})
    assert parameter_count(own) == parameter_count(model)
    assert step_flops(own, 2, 64, checkpoint_every=1) == step_flops(model, 2, 64, checkpoint_every=1)


@given(
    window=st.integers(0, 9),
    sequence=st.integers(1, 12),
    heads=st.integers(1, 3),
    widths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_attention_within_a_window_costs_the_pairs_that_its_mask_leaves(window, sequence, heads, widths):
    layers = AttentionLayers("attention", heads, widths[0], value_dim=widths[1], window=window, layers=2)
    seen = sum(0 <= i - j < (window or sequence) for i in range(sequence) for j in range(sequence))
    got = layers.forward_flops(3, sequence, "causal")
    assert got == 2 * 2 * 3 * heads * seen * sum(widths), f"{got} [{seen=}, {window=}, {sequence=}]"
    assert layers.forward_flops(3, sequence, "full") == 2 * 2 * 3 * heads * sequence**2 * sum(widths)


def test_a_chunk_of_linear_attention_costs_its_pairs_and_its_state_once():
    layers = RecurrentLayers("mixer", heads=2, key_dim=3, value_dim=5, chunk=4)
    pairs, states = 2 * 4 * 4 * (3 + 5), 2 * 4 * 2 * 3 * 5  # of one chunk and head
    assert layers.forward_flops(1, 8, "full") == layers.forward_flops(1, 7, "full") == 2 * 2 * (pairs + states)


def test_a_token_reads_and_writes_the_state_whatever_came_before_and_its_gradients_cost_twice_that():
    chunked = RecurrentLayers("mixer", heads=2, key_dim=3, value_dim=5, chunk=4, layers=3, kept=7)
    plain = RecurrentLayers("mixer", heads=2, key_dim=3, value_dim=5, layers=3)
    of_a_token = 2 * 3 * 2 * 2 * 3 * 5
    assert chunked.decoding_flops(4, 999, latents=True) == plain.forward_flops(4, 1, "full") == 4 * of_a_token
    assert chunked.backward_flops(1, 8, "full", "math") == 2 * chunked.forward_flops(1, 8, "full")
    assert chunked.cached_elements(999, latents=False) - plain.cached_elements(1, latents=False) == 3 * 7


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 10), ({"window": 4}, 3), ({"window": 40}, 10), ({"causal": False}, 0), ({"keys": "source"}, 7)],
)
def test_a_cache_keeps_the_tokens_that_later_ones_attend_to(options, tokens):
    layers = AttentionLayers("attention", 4, 8, kv_heads=2, value_dim=3, layers=5, **options)
    assert layers.cached_elements({"tokens": 10, "source": 7}, latents=True) == 5 * tokens * 2 * (8 + 3)


def test_every_head_attends_to_latents_whose_shared_part_is_key_and_value_and_the_rotary_one_key_alone():
    for latent in ((6, 2), (6, 0)):
        layers = AttentionLayers("attention", 4, 8, latent=latent)
        assert layers.decoding_flops(1, 9, latents=True) == 2 * 4 * 10 * (sum(latent) + 6)
        assert layers.cached_elements(9, latents=True) == 9 * sum(latent)


def test_attention_over_a_fixed_number_of_rows_costs_the_same_whatever_the_sequence():
    images = AttentionLayers("attention", 1, 3, queries=5, keys=7)
    assert images.forward_flops(2, 99, "full") == images.forward_flops(2, 1, "full") == 2 * 2 * 2 * 5 * 7 * 3
    assert images.backward_flops(2, 99, "full", "math") == 2 * images.forward_flops(2, 99, "full")


def test_in_a_chunk_of_its_own_a_token_sees_those_before_it():
    layers = AttentionLayers("attention", 1, 1, window=4, chunked=True)
    assert layers.forward_flops(1, 10, "causal") == 2 * 2 * (10 + 10 + 3)
    assert layers.forward_flops(1, 10, "full") == 2 * 2 * 10 * 10
    both = AttentionLayers("attention", 1, 1, window=2, causal=False)
    assert both.forward_flops(1, 5, "causal") == 2 * 2 * (5 + 2 * 4)


def test_a_row_meets_as_many_of_the_stored_matrices_as_it_uses():
    assert LinearMaps("experts", 2, 3, layers=5, copies=4, uses=2).met == 10
    assert LinearMaps("head", 2, 3, copies=0).met == 0


def test_lengths_of_several_streams_are_asked_for_by_name():
    encoder = Parts((LinearMaps("encoder", 4, 4, rows="source"), LinearMaps("pooler", 4, 4, rows=1)))
    assert forward_flops(encoder, 3, {"source": 7, "tokens": 2}) == 2 * 3 * (7 + 1) * 16
    with pytest.raises(ValueError, match=r"sequence must give the length of 'source', as in .*, got 7"):
        forward_flops(encoder, 3, 7)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LinearMaps("mlp", -1, 8), ValueError, "in_features must be at least 0, got -1"),
        (lambda: LinearMaps("mlp", 8, 8, copies=0.5), TypeError, "copies must be an integer, got 0.5"),
        (lambda: OtherParameters("norms", True), TypeError, "elements must be an integer, got True"),
        (lambda: AttentionLayers("attention", 4, 8, causal="no"), TypeError, "causal must be True or False, got 'no'"),
        (lambda: AttentionLayers("attention", 4, 8, kv_heads=3), ValueError, "heads must be a multiple of kv_heads"),
        (lambda: RecurrentLayers("mixer", 1, 1, 1, chunk=-1), ValueError, "chunk must be at least 0, got -1"),
        (lambda: -1 * UP, ValueError, "layers must be at least 0, got -1"),
    ],
)
def test_an_impossible_part_is_refused_with_the_value(make, error, message):
    with pytest.raises(error, match=message):
        make()
