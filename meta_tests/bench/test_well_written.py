"""The steps whose MFU is asserted: their batch, their FLOPs."""

import torch

from accounting.models import Transformer, step_flops
from bench.models import build, inputs
from bench.well_written import Batch, WellWrittenStep
from prooflops import counted

CPU = torch.device("cpu")
TINY = Transformer(
    vocab_size=128, layers=2, dim=64, heads=4, kv_heads=2, hidden=96, gated=True, norm="rmsnorm"
)


def test_one_product_for_queries_keys_and_values_changes_no_flops():
    net, tokens = build(TINY, fused_qkv=True), inputs(TINY, 2, 16)
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
