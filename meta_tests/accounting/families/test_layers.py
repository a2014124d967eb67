"""The builders of layers, part by part."""

import pytest
from torch import nn

from accounting.families import attention, delta_rule, latent_attention, mlp, selective_scan, state_space
from accounting.models import cache_bytes, decoding_work, parameter_count


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


def test_latents_are_what_is_cached_and_attended_to_at_inference():
    layer = latent_attention(7168, 128, 1536, 512, 128, 64, 128)
    assert cache_bytes(layer, 1, 1000) == 2 * 1000 * (512 + 64)
    assert cache_bytes(layer, 1, 1000, latents=False) == 2 * 1000 * 128 * (192 + 128)
    absorbed, expanded = (decoding_work(layer, 1, 1000, latents=latents) for latents in (True, False))
    assert absorbed.flops - expanded.flops == 2 * 128 * 1001 * ((576 + 512) - (192 + 128))
    few, many = (decoding_work(layer, 64, 8192, latents=latents).intensity for latents in (True, False))
    assert few > 50 * many, f"{few:.0f} FLOPs a byte with latents, {many:.0f} with whole keys and values"
