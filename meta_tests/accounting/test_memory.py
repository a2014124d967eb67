"""Bytes: storages, the caches of generation, and any object with the three lists of a model."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import memory
from accounting.models import GPT2_SMALL, LLAMA3_8B, parameter_count, step_flops
from accounting.parts import AttentionLayers
from test_claims.strategies import TORCH_DTYPES, dtypes, sizes


@given(dims=st.lists(st.tuples(sizes(0, 5), sizes(0, 7)), max_size=4), dtype=dtypes)
def test_storage_bytes_are_what_torch_allocates_for_these_strides(dims, dtype):
    shape, strides = [size for size, _ in dims], [stride for _, stride in dims]
    real = torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[dtype]).untyped_storage().nbytes()
    got = memory.storage_bytes(shape, strides, dtype)
    assert got == real, f"storage_bytes={got}, but should be {real} [{shape=}, {strides=}, {dtype=}]"


@pytest.mark.parametrize("model", [GPT2_SMALL, LLAMA3_8B], ids=["GPT-2 small", "Llama-3-8B"])
def test_any_object_with_the_three_lists_is_a_model(model):
    lists = ("linear_maps", "attentions", "other_parameters")
    own = SimpleNamespace(**{name: list(getattr(model, name)) for name in lists})
    assert parameter_count(own) == parameter_count(model)
    assert step_flops(own, 2, 64, checkpoint_every=1) == step_flops(model, 2, 64, checkpoint_every=1)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 10), ({"window": 4}, 3), ({"window": 40}, 10), ({"causal": False}, 0), ({"keys": "source"}, 7)],
)
def test_a_cache_keeps_the_tokens_that_later_ones_attend_to(options, tokens):
    layers = AttentionLayers("attention", 4, 8, kv_heads=2, value_dim=3, layers=5, **options)
    assert layers.cached_elements({"tokens": 10, "source": 7}, latents=True) == 5 * tokens * 2 * (8 + 3)
