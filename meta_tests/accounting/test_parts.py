"""The three lists of a model: how they compose, and what follows from them for any object that has them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.models import GPT2_SMALL, LLAMA3_8B, backward_flops, forward_flops, parameter_count, step_flops
from accounting.parts import AttentionLayers, LinearMaps, OtherParameters, Parts, RecurrentLayers

UP, DOWN = Parts((LinearMaps("mlp", 8, 32),)), Parts((LinearMaps("mlp", 32, 8),))


def places(parts: Parts) -> list[tuple[int, int, int]]:
    return [(maps.layers, maps.place, maps.block_end) for maps in parts.linear_maps]


def test_parts_stand_one_after_the_other_or_side_by_side():
    assert places(UP + DOWN) == [(1, 0, 0), (1, 1, 1)]
    assert places(UP | DOWN) == [(1, 0, 0), (1, 0, 0)]
    assert places(UP + 3 * (UP + DOWN) + UP) == [(1, 0, 0), (3, 1, 2), (3, 2, 2), (1, 3, 3)]
    assert places(2 * UP + 0 * DOWN) == [(2, 0, 0)]


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


def test_lengths_of_several_streams_are_asked_for_by_name():
    encoder = Parts((LinearMaps("encoder", 4, 4, rows="source"), LinearMaps("pooler", 4, 4, rows=1)))
    assert forward_flops(encoder, 3, {"source": 7, "tokens": 2}) == 2 * 3 * (7 + 1) * 16
    with pytest.raises(ValueError, match=r"sequence must give the length of 'source', as in .*, got 7"):
        forward_flops(encoder, 3, 7)


def test_a_model_without_anything_to_train_has_no_backward_products():
    frozen = Parts((LinearMaps("layers", 4, 4, frozen=True),), (), (OtherParameters("norms", 4, frozen=True),))
    assert backward_flops(frozen, 2, 3) == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LinearMaps("mlp", -1, 8), ValueError, "in_features must be at least 0, got -1"),
        (lambda: LinearMaps("mlp", 8, 8, copies=0.5), TypeError, "copies must be an integer, got 0.5"),
        (lambda: OtherParameters("norms", True), TypeError, "elements must be an integer, got True"),
        (lambda: AttentionLayers("attention", 4, 8, kv_heads=3), ValueError, "heads must be a multiple of kv_heads"),
        (lambda: RecurrentLayers("mixer", 1, 1, 1, chunk=-1), ValueError, "chunk must be at least 0, got -1"),
        (lambda: -1 * UP, ValueError, "layers must be at least 0, got -1"),
    ],
)
def test_an_impossible_part_is_refused_with_the_value(make, error, message):
    with pytest.raises(error, match=message):
        make()
