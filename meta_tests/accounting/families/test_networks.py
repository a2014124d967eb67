"""Whole networks that are put together of layers have the sizes published."""

import pytest

from accounting.families import (
    LLAMA3_8B,
    attention,
    diffusion_transformer,
    embedding,
    linear,
    mlp,
    other,
    vision_transformer,
    with_adapters,
)
from accounting.models import forward_flops, parameter_count


def test_a_diffusion_transformer_is_the_published_one():
    # DiT-XL/2 on latents of 32 × 32: 675 million parameters, 118.64 billion multiply-adds (arXiv:2212.09748, table 1)
    model = diffusion_transformer(1152, 28, 16, 256, 16, 1000)
    assert parameter_count(model) == 675_129_632
    assert forward_flops(model, 1) / 2 == pytest.approx(118.64e9, rel=5e-4)


def test_palm_has_the_540_billion_parameters_published():
    # arXiv:2204.02311, table 1: parallel layers of one norm each, one head of keys and values, SwiGLU, no biases
    dim, norm = 18432, other("norms", 18432)
    layer = norm + (attention(dim, 48, 256, 1) | mlp(dim, 4 * dim, gated=True))
    palm = embedding(256_000, dim) + 118 * layer + norm + linear("head", dim, 256_000, copies=0)
    assert parameter_count(palm) == pytest.approx(540.35e9, rel=2e-5)


def test_a_vision_transformer_takes_a_fixed_number_of_patches():
    # 17.6 billion multiply-adds at 224 × 224, of which torchvision prints 17.56
    model = vision_transformer(768, 12, 12, 3072, 196, 768, 1000)
    assert parameter_count(model) == 86_567_656
    assert forward_flops(model, 1, 999) == forward_flops(model, 1) == pytest.approx(2 * 17.56e9, rel=0.01)


def test_a_target_that_no_map_is_called_is_refused():
    with pytest.raises(ValueError, match=r"targets must be one of .*, got 'q_proj'"):
        with_adapters(LLAMA3_8B, rank=4, targets=["q_proj"])
