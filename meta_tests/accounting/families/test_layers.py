"""The builders of layers, part by part."""

import pytest
from torch import nn

from accounting.families import (
    attention,
    delta_rule,
    embedding,
    latent_attention,
    linear,
    mixture,
    mlp,
    selective_scan,
    state_space,
)
from accounting.models import active_parameter_count, cache_bytes, decoding_work, parameter_count


def elements(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_parts_have_the_parameters_of_torchs_modules(bias):
    linears = nn.Linear(24, 24, bias=bias), nn.Linear(24, 8, bias=bias), nn.Linear(24, 8, bias=bias)
    assert parameter_count(attention(24, 6, 4, 2, bias=bias)) == elements(*linears, nn.Linear(24, 24, bias=False))
    assert parameter_count(attention(24, 3, 8, bias=bias, out_bias=bias)) == elements(
        nn.MultiheadAttention(24, 3, bias=bias)
    )
    up, down = nn.Linear(24, 96, bias=bias), nn.Linear(96, 24, bias=bias)
    assert parameter_count(mlp(24, 96, bias=bias)) == elements(up, down)
    assert parameter_count(mlp(24, 96, bias=bias, gated=True)) == elements(up, up, down)


def test_recurrences_have_the_parameters_of_what_they_are_made_of():
    # Mamba: steps, decays and what skips the state; Mamba-2: decays, steps and skips of each head, and a norm
    inner, state, rank = 48, 5, 3
    convolved = nn.Conv1d(inner, inner, 4, groups=inner)
    steps = nn.Linear(inner, rank + 2 * state, bias=False), nn.Linear(rank, inner)
    ends = nn.Linear(24, 2 * inner, bias=False), nn.Linear(inner, 24, bias=False)
    scan = parameter_count(selective_scan(24, inner, state, rank, 4))
    assert scan == elements(convolved, *steps, *ends) + inner * state + inner
    assert parameter_count(selective_scan(24, inner, state, rank, 4, normed=True)) == scan + rank + 2 * state
    mixed = inner + 2 * 2 * state
    convolved = nn.Conv1d(mixed, mixed, 4, groups=mixed)
    ends = nn.Linear(24, inner + mixed + 6, bias=False), nn.Linear(inner, 24, bias=False)
    assert parameter_count(state_space(24, 6, 8, state, 2, 4)) == elements(convolved, *ends) + 3 * 6 + inner
    # Gated DeltaNet: queries, keys, values and their gates, two numbers a head, a norm of one head
    keys, values = 2 * 8, 4 * 6
    convolved = nn.Conv1d(2 * keys + values, 2 * keys + values, 4, groups=2 * keys + values, bias=False)
    ends = nn.Linear(24, 2 * keys + 2 * values, bias=False), nn.Linear(values, 24, bias=False)
    gates = nn.Linear(24, 2 * 4, bias=False)
    assert parameter_count(delta_rule(24, 2, 4, 8, 6, 4)) == elements(convolved, gates, *ends) + 2 * 4 + 6


def test_recurrences_keep_a_state_a_head_and_the_last_inputs_of_their_convolution():
    layers = selective_scan(24, 48, 5, 3, 4), state_space(24, 6, 8, 5, 2, 4), delta_rule(24, 2, 4, 8, 6, 4)
    kept = [each.cached_elements(99, latents=False) for parts in layers for each in parts.attentions]
    assert kept == [48 * 5 + 4 * 48, 6 * 8 * 5 + 4 * (48 + 2 * 2 * 5), 4 * 8 * 6 + 4 * (2 * 2 * 8 + 4 * 6)]


def test_queries_are_made_of_the_rows_that_attend_and_keys_of_those_attended_to():
    maps = attention(24, 6, 4, 2, rows="tokens", keys="source").linear_maps
    assert [(each.name, each.rows) for each in maps] == [
        ("query", "tokens"), ("key", "source"), ("value", "source"), ("out", "tokens"),
    ]  # fmt: skip
    assert {each.rows for each in attention(24, 6, 4, rows="source").linear_maps} == {"source"}


def test_a_mixture_has_all_experts_and_a_token_meets_the_active_ones():
    of_one, router = parameter_count(mlp(24, 96, gated=True)), 24 * 8
    experts = mixture(24, 96, 8, 2, gated=True)
    assert parameter_count(experts) == router + 8 * of_one
    assert active_parameter_count(experts) == router + 2 * of_one


def test_the_input_embedding_is_active_or_not_by_the_convention_asked_for():
    untied, tied = (embedding(50, 8) + linear("head", 8, 50, copies=copies) for copies in (1, 0))
    assert [active_parameter_count(model) for model in (untied, tied)] == [800, 400]
    assert [active_parameter_count(model, input_embedding=False) for model in (untied, tied)] == [400, 400]


def test_latents_are_what_is_cached_and_attended_to_at_inference():
    layer = latent_attention(7168, 128, 1536, 512, 128, 64, 128)
    assert cache_bytes(layer, 1, 1000) == 2 * 1000 * (512 + 64)
    assert cache_bytes(layer, 1, 1000, latents=False) == 2 * 1000 * 128 * (192 + 128)
    absorbed, expanded = (decoding_work(layer, 1, 1000, latents=latents) for latents in (True, False))
    assert absorbed.flops - expanded.flops == 2 * 128 * 1001 * ((576 + 512) - (192 + 128))
    few, many = (decoding_work(layer, 64, 8192, latents=latents).intensity for latents in (True, False))
    assert few > 50 * many, f"{few:.0f} FLOPs a byte with latents, {many:.0f} with whole keys and values"
