"""The builders of layers, part by part."""

import pytest
from torch import nn

from accounting.families import attention, embedding, latent_attention, linear, mixture, mlp
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
