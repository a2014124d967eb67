"""Whole networks that are put together of layers have the sizes published."""

import pytest

from accounting.families import (
    GPT2_SMALL,
    GPT2_XL,
    LLAMA3_8B,
    LLAMA3_70B,
    MIXTRAL_8X7B,
    Built,
    Transformer,
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


def test_the_models_known_by_name_have_the_parameters_published():
    models = (GPT2_SMALL, GPT2_XL, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B)
    published = [124_439_808, 1_557_611_200, 8_030_261_248, 70_553_706_496, 46_702_792_704]
    assert [parameter_count(model) for model in models] == published


def test_the_mlp_of_a_transformer_leads_from_its_width_to_hidden_and_back():
    maps = {each.name: (each.in_features, each.out_features) for each in LLAMA3_8B.linear_maps}
    assert (maps["up"], maps["gate"], maps["down"]) == ((4096, 14336), (4096, 14336), (14336, 4096))


def test_heads_that_do_not_divide_the_width_need_a_width_of_their_own():
    sizes = {"vocab_size": 8, "layers": 1, "dim": 8, "heads": 3, "hidden": 8}
    with pytest.raises(ValueError, match="heads must divide dim where head_dim is not given, got heads=3, dim=8"):
        Transformer(**sizes)
    assert Transformer(**sizes, head_dim=4).head_dim == 4


def test_a_model_of_parts_has_to_name_them():
    with pytest.raises(NotImplementedError):
        assert Built().linear_maps


def test_an_adapter_stands_beside_its_map_and_its_second_matrix_behind_the_first():
    model = linear("mlp", 8, 32, "up") + linear("mlp", 32, 8, "down")
    maps = with_adapters(3 * model, rank=2, targets=["up"]).linear_maps
    assert [(each.part, each.in_features, each.out_features, each.place, each.block_end) for each in maps] == [
        ("mlp", 8, 32, 0, 3), ("adapters", 8, 2, 0, 3), ("adapters", 2, 32, 1, 3), ("mlp", 32, 8, 2, 3),
    ]  # fmt: skip


def test_a_target_that_no_map_is_called_is_refused():
    with pytest.raises(ValueError, match=r"targets must be one of .*, got 'q_proj'"):
        with_adapters(LLAMA3_8B, rank=4, targets=["q_proj"])
