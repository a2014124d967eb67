"""What autograd keeps for the backward pass, as torch runs the nets on the CPU."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from accounting.activations import ATTENTION, activation_bytes
from accounting.models import GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B
from meta_tests.accounting.test_models import transformers
from test_claims.oracles import tensors
from test_claims.oracles.messages import equal
from test_claims.strategies import TORCH_DTYPES, sizes

# Older ones keep more of a norm, and have no flash attention in groups on the CPU.
pytestmark = pytest.mark.skipif(torch.__version__ < (2, 13), reason="the formulas follow 2.13")


def dropped(x):
    """Dropout with a mask of bools, as CUDA's kernel has it; the CPU's has the dtype of `x`."""
    return torch.native_dropout(x, 0.1, True)[0]


def unfused(query, key, value, *, is_causal, enable_gqa, dropout=False):
    """Attention written out: a product, a softmax, a product, all in the dtype of the queries."""
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(group, dim=1)
        value = value.repeat_interleave(group, dim=1)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    hidden = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
    probabilities = (scores + hidden).softmax(-1)
    if dropout:
        probabilities = dropped(probabilities)
    return probabilities @ value


def saved_bytes(forward, held):
    """Bytes of the storages that autograd saves in `forward()`, each once, except those `held`."""
    others = {tensor.untyped_storage().data_ptr() for tensor in held}
    kept = {}

    def keep(tensor):
        address = tensor.untyped_storage().data_ptr()
        if address not in others:
            # A kept tensor's address goes to no other.
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return tensors.tensor_sum(kept.values())


def saved_by(workloads, model, batch, sequence, dtype, attention, *, dropout=False):
    """Bytes that autograd keeps in a real forward pass, the batch and the parameters excepted."""
    net = workloads.build(model, dtype=TORCH_DTYPES[dtype])
    x = workloads.inputs(model, batch, sequence)
    if dropout:
        blocks = [block for layer in net.layers for block in (layer.attention, layer.mlp)]
        for part in (net.embedding, *blocks):
            part.register_forward_hook(lambda module, arguments, output: dropped(output))
    attend = partial(unfused, dropout=dropout)
    kernel = sdpa_kernel(SDPBackend.MATH) if attention == "math" else nullcontext()
    if attention == "unfused":
        kernel = patch.object(functional, "scaled_dot_product_attention", attend)
    with kernel:
        return saved_bytes(lambda: net(x), [x, *net.parameters()])


@given(
    model=transformers(),
    batch=sizes(1, 3),
    sequence=sizes(1, 6),
    dtype=st.sampled_from(["fp32", "fp64"]),
    attention=st.sampled_from(ATTENTION),
)
def test_activations_of_a_transformer_are_what_autograd_keeps(
    workloads, model, batch, sequence, dtype, attention
):
    got = saved_by(workloads, model, batch, sequence, dtype, attention)
    formula = activation_bytes(model, batch, sequence, dtype, attention=attention)
    equal(got, formula, "bytes kept")


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.prove), "bf16"])
@pytest.mark.parametrize(
    "preset", [GPT2_SMALL, LLAMA3_8B, MIXTRAL_8X7B], ids=["gpt2", "llama3", "mixtral"]
)
def test_dropout_keeps_masks(workloads, preset, dtype, attention):
    model = replace(workloads.reduced(preset, layers=2, head_dim=4), vocab_size=64)
    options = {"attention": attention, "dropout": True}
    got = saved_by(workloads, model, 2, 6, dtype, **options)
    formula = activation_bytes(model, 2, 6, dtype, **options)
    equal(got, formula, "bytes kept", model=model)
