"""What attention costs: in full or for the pairs that a causal mask leaves, fused or not."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen
from torch.nn.attention import flex_attention as flex

from accounting.attention import Attention, attention_flops, attention_step
from prooflops import counted


@pytest.mark.parametrize("tokens", [5, 1])
@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_causal_attention_is_counted_in_full_or_at_its_true_cost(backend, tokens):
    leaves = [torch.randn(1, 4, tokens, 4, requires_grad=True) for _ in range(3)]
    for pairs, scores in (("full", tokens**2), ("causal", tokens * (tokens + 1) // 2)):
        # There are 4 heads of width 4.
        product = 2 * 4 * scores * 4
        rescoring = product if backend == SDPBackend.FLASH_ATTENTION else 0
        with sdpa_kernel(backend), counted.flops(pairs=pairs) as count:
            F.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()
        got = (count.forward, count.backward, count.recomputed)
        assert got == (2 * product, 4 * product + rescoring, rescoring), pairs


# Each of 9 queries sees itself and the 3 keys before it.
WINDOW = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("kind", ["boolean", "added", "of each head"])
def test_a_mask_given_as_a_tensor_is_counted_at_the_pairs_it_leaves(backend, kind):
    leaves = [torch.randn(2, 3, 9, 4, requires_grad=True) for _ in range(3)]
    mask = WINDOW
    if kind == "added":
        mask = torch.zeros(9, 9).masked_fill(~mask, float("-inf"))
    if kind == "of each head":
        mask = mask.expand(1, 3, 9, 9).contiguous()
    window = Attention(2, 3, 9, 4, window=4, pairs="causal")
    for pairs, shape in (("full", replace(window, window=None, pairs="full")), ("causal", window)):
        with sdpa_kernel(backend), counted.flops(pairs=pairs) as count:
            F.scaled_dot_product_attention(*leaves, attn_mask=mask).sum().backward()
        convention = "flash" if backend == SDPBackend.FLASH_ATTENTION else "math"
        should = attention_step(shape, convention)
        assert count.step == should, pairs


DOCUMENTS = torch.tensor([0] * 70 + [1] * 100 + [2] * 90)


def window(b, h, i, j):
    return (i >= j) & (i - j < 100)


def documents(b, h, i, j):
    return (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)


# It is not compiled.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mask", [window, documents])
def test_flex_attention_is_counted_at_the_pairs_its_blocks_leave(mask, monkeypatch):
    length = len(DOCUMENTS)
    # It refuses gradients on the CPU.
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    blocks = flex.create_block_mask(mask, None, None, length, length, device="cpu", BLOCK_SIZE=64)
    leaves = [torch.randn(2, heads, length, 16, requires_grad=True) for heads in (4, 2, 2)]
    counts = {}
    for pairs in ("full", "causal"):
        with counted.flops(pairs=pairs) as counts[pairs]:
            out = flex.flex_attention(*leaves, block_mask=blocks, enable_gqa=True)
            out.sum().backward()
    seen = flex.create_mask(mask, 1, None, length, length, device="cpu")
    scores = int(seen.sum()) * 2 * 4
    should = attention_step(Attention(1, 1, scores, 16, key_length=1), "flash")
    assert counts["causal"].step == should
    assert counts["full"].forward == attention_flops(Attention(2, 4, length, 16))


def test_packed_sequences_whose_lengths_have_no_values_are_unknown():
    """They were counted as if each were as long as the longest."""
    with FakeTensorMode(), counted.flops() as count:
        x = torch.empty(1, 30, 4, 16, device="meta")
        ends = torch.zeros(3, dtype=torch.int32, device="meta")
        torch.ops.aten._efficient_attention_forward(x, x, x, None, ends, ends, 20, 20, 0.0, 0)
    assert (count.total, count.unknown) == (0, {"aten._efficient_attention_forward": 1})


@pytest.mark.parametrize(("pairs", "lengths"), [("full", [10, 20]), ("causal", [55, 210])])
def test_varlen_attention_is_counted_where_its_offsets_have_values(pairs, lengths):
    x = torch.empty(30, 4, 16, device="meta", requires_grad=True)
    bounds = torch.tensor([0, 10, 30], dtype=torch.int32)
    for offsets, is_known in ((bounds, True), (bounds.to("meta"), False)):
        with counted.flops(pairs=pairs) as count:
            varlen.varlen_attn(
                x, x, x, offsets, offsets, 20, 20, window_size=(-1, 0)
            ).sum().backward()
        scores = sum(n**2 for n in lengths) if pairs == "full" else sum(lengths)
        should = attention_step(Attention(1, 4, scores, 16, key_length=1), "flash")
        assert count.total == (should.hardware if is_known else 0)
        assert bool(count.unknown) != is_known


def test_a_mask_without_values_leaves_its_products_unknown():
    """They were counted as if nothing were masked."""
    x = torch.empty(2, 3, 9, 4, device="meta", requires_grad=True)
    mask = WINDOW.to("meta")
    with counted.flops(pairs="causal") as count:
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask).sum().backward()
    assert (count.total, count.unknown) == (0, {"aten.bmm": 6})


@pytest.mark.filterwarnings("ignore")
def test_causal_attention_of_jagged_sequences_is_left_to_torch():
    """Their lengths, which are no numbers, were read."""
    values = torch.empty(30, 4, 16)
    jagged = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 10, 30]))
    sequences = jagged.transpose(1, 2)
    with pytest.raises(RuntimeError, match="No viable backend"), counted.flops(pairs="causal"):
        F.scaled_dot_product_attention(sequences, sequences, sequences, is_causal=True)
