"""The steps whose MFU is asserted: their batch, their FLOPs, their kernels by kind."""

import pytest
import torch

from accounting.models import Transformer, step_flops
from bench.models import build, inputs
from bench.well_written import Batch, WellWrittenStep, kind_of
from prooflops import counted

CPU = torch.device("cpu")
TINY = Transformer(
    vocab_size=128, layers=2, dim=64, heads=4, kv_heads=2, hidden=96, gated=True, norm="rmsnorm"
)
# Kernels of a step that an H200 ran (torch 2.11), and of compiled ones.
KERNELS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT": "products",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64": "attention",
    "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int": "attention",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*": "attention",
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel": "casts",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native": "other",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...FusedAdam": "optimizer",
    "triton_red_fused__to_copy_add_native_layer_norm_3": "fused",
    "Memset (Device)": "other",
}


@pytest.mark.parametrize(("kernel", "kind"), KERNELS.items())
def test_the_time_of_a_step_goes_by_the_kinds_of_its_kernels(kernel, kind):
    assert kind_of(kernel) == kind


@pytest.mark.parametrize("fused_qkv", [False, True])
def test_one_product_for_queries_keys_and_values_changes_no_flops(fused_qkv):
    net, tokens = build(TINY, fused_qkv=fused_qkv), inputs(TINY, 2, 16)
    with counted.flops() as count:
        net(tokens).float().sum().backward()
    assert count.step.model == step_flops(TINY, 2, 16).model


def test_a_well_written_step_learns_and_its_mfu_halves_the_attention(
    monkeypatch,
):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    batch = Batch(TINY, 4, 16)
    step = WellWrittenStep(batch, CPU)
    losses = [float(step()) for _ in range(8)]
    assert losses[-1] < 0.99 * losses[0]
    in_full = step_flops(TINY, 4, 16).model
    # The causal mask leaves 16 · 17 / 2 of the 16 · 16 pairs of a query and a key.
    attention = 3 * 4 * TINY.layers * 4 * 16**2 * TINY.heads * TINY.head_dim
    assert in_full - batch.model_flops == attention - attention * 17 // 32
