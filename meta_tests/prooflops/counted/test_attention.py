"""What attention costs: all pairs of query and key, fused or not."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.attention import flex_attention as flex

from accounting.attention import Attention, attention_step
from prooflops import counted


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_causal_attention_is_counted_for_all_pairs(backend):
    leaves = [torch.randn(1, 4, 5, 4, requires_grad=True) for _ in range(3)]
    # There are 4 heads of width 4, and 25 scores.
    product = 2 * 4 * 25 * 4
    rescoring = product if backend == SDPBackend.FLASH_ATTENTION else 0
    with sdpa_kernel(backend), counted.flops() as count:
        F.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()
    got = (count.forward, count.backward, count.recomputed)
    assert got == (2 * product, 4 * product + rescoring, rescoring)


# It is not compiled.
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_is_counted_for_all_pairs(monkeypatch):
    # It refuses gradients on the CPU.
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    causal = lambda b, h, i, j: i >= j  # noqa: E731
    blocks = flex.create_block_mask(causal, None, None, 260, 260, device="cpu", BLOCK_SIZE=64)
    leaves = [torch.randn(2, heads, 260, 16, requires_grad=True) for heads in (4, 2, 2)]
    with counted.flops() as count:
        flex.flex_attention(*leaves, block_mask=blocks, enable_gqa=True).sum().backward()
    assert count.step == attention_step(Attention(2, 4, 260, 16), "flash")


def test_packed_sequences_whose_lengths_have_no_values_are_unknown():
    """They were counted as if each were as long as the longest."""
    with FakeTensorMode(), counted.flops() as count:
        x = torch.empty(1, 30, 4, 16, device="meta")
        ends = torch.zeros(3, dtype=torch.int32, device="meta")
        torch.ops.aten._efficient_attention_forward(x, x, x, None, ends, ends, 20, 20, 0.0, 0)
    assert (count.total, count.unknown) == (0, {"aten._efficient_attention_forward": 1})


def test_varlen_attention_is_counted_where_its_offsets_have_values():
    x = torch.empty(30, 4, 16, device="meta", requires_grad=True)
    bounds = torch.tensor([0, 10, 30], dtype=torch.int32)
    for offsets, is_known in ((bounds, True), (bounds.to("meta"), False)):
        with counted.flops() as count:
            varlen.varlen_attn(x, x, x, offsets, offsets, 20, 20).sum().backward()
        scores = 10**2 + 20**2
        should = attention_step(Attention(1, 4, scores, 16, key_length=1), "flash")
        assert count.total == (should.hardware if is_known else 0)
        assert bool(count.unknown) != is_known
