"""Claims about operations on strided tensors: what they allocate, and their values."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention

from test_claims.oracles.messages import agree, close, equal
from test_claims.oracles.tensors import shares_storage
from test_claims.oracles.training_kernels import LAYOUTS, laid_out
from test_claims.strategies import (
    TORCH_DTYPES,
    ViewChain,
    ViewStep,
    fewer,
    sizes,
    view_chains,
)


@pytest.mark.claim("storage.contiguous-copies", "storage.reshape-noncontig-always-copies")
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_copies_of_strided_floats_have_every_value_in_its_place(device, layout):
    """Tensors of three dimensions: small, and of a million elements."""
    for side, dtype in product((7, 710), (torch.float32, torch.bfloat16)):
        x = torch.randn(2, side, side + 1).to(dtype)
        strided = laid_out(x.to(device), layout)
        copy = strided.contiguous()
        assert not shares_storage(strided, copy), "contiguous() did not copy"
        equal(copy, x, "contiguous()", dtype=dtype)
        equal(strided.reshape(-1), x.flatten(), "reshape(-1)", dtype=dtype)


# More than 2^16 elements, which several threads may share.
MANY = ViewChain((3, 150, 150), (ViewStep("transpose", (1, 2)),))


@pytest.mark.claim("storage.elementwise-new")
@fewer
@example(chain=MANY, dtype="fp32")
@example(chain=MANY, dtype="bf16")
@given(
    chain=view_chains().filter(lambda chain: chain.tensor().numel()),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
)
def test_elementwise_operations_allocate_unless_told_otherwise(device, chain, dtype):
    x = chain.tensor(device).to(TORCH_DTYPES[dtype]) - 2.5
    other = chain.tensor(device).to(TORCH_DTYPES[dtype]) - 2.5
    before = x.tolist()
    new = {
        "x * 1": x * 1,
        "-x": -x,
        "gelu": nn.functional.gelu(x),
        "where": torch.where(x > 1, x, other),
    }
    for name in "abs neg exp log1p sqrt square relu sigmoid tanh floor sign sin".split():
        new[name] = getattr(x, name)()
    for name in "add sub mul div pow maximum eq".split():
        new[f"torch.{name}"] = getattr(torch, name)(x, other)
    addresses = Counter(y.untyped_storage().data_ptr() for y in (x, other, *new.values()))
    shared = [name for name, y in new.items() if addresses[y.untyped_storage().data_ptr()] > 1]

    assert not shared, f"the results of {shared} are not in storages of their own"
    agree("operands", before=before, x=x.tolist(), other=other.tolist())

    told = {
        "add_": x.add_(1),
        "relu_": x.relu_(),
        "out=": torch.add(x, 1, out=x),
        "a cast to the same dtype": x.to(TORCH_DTYPES[dtype]),
        "dropout of 0": nn.functional.dropout(x, p=0.0),
    }
    copied = [name for name, y in told.items() if not shares_storage(x, y)]
    assert not copied, f"{copied} copied"


@pytest.mark.claim("storage.triu-causal")
@fewer
@given(length=sizes(1, 8))
@example(length=600)
def test_triu_is_true_where_a_key_lies_in_a_querys_future(device, length):
    ones = torch.ones(length, length, device=device)
    mask = ones.triu(diagonal=1).bool()
    token = np.arange(length)
    future = (token > token[:, None]).tolist()

    equal(mask.tolist(), future, "the mask")
    for dtype in (torch.bool, torch.bfloat16, torch.int64):
        same = ones.to(dtype).triu(diagonal=1).bool()
        equal(same, mask, "the mask", dtype=dtype)

    operands = torch.randn(3, 2, 2, length, 8, device=device)
    by_mask = attention(*operands, attn_mask=~mask)
    causal = attention(*operands, is_causal=True)
    torch.testing.assert_close(by_mask, causal)
    assert ones.triu().diagonal().all(), "plain triu shows a token to itself"


@pytest.mark.claim("storage.pow-sqrt-rsqrt")
def test_pow_sqrt_and_rsqrt_work_on_each_of_1_4_and_9(device):
    x = torch.tensor([1, 4, 9], device=device)

    equal(x.pow(2).tolist(), [1, 16, 81], "pow(2)")
    # A device may compute roots with an error of a few units in the last place of fp32.
    close(x.sqrt().tolist(), [1, 2, 3], "sqrt()", rel=4 * 2**-23)
    close(x.rsqrt().tolist(), [1, 1 / 2, 1 / 3], "rsqrt()", rel=4 * 2**-23)


@pytest.mark.claim("storage.contiguous-for-speed")
@pytest.mark.parametrize("times", [1, 2])
def test_summing_a_column_is_slower_than_summing_its_contiguous_copy(device, sizing, speed, times):
    if device.type == "cpu":
        # Few enough for one thread, and half a page or a whole one apart.
        rows, stride = 2**14, times * 2**9
    else:
        rows, stride = 2**22, times * 2**5
    rows = sizing.fitting(rows, lambda rows: 4 * rows * (stride + 1), least=2**14)
    column = torch.ones(rows, stride, device=device)[:, 0]
    speed.assert_slower(
        column.sum,
        column.contiguous().sum,
        f"summing a column of {stride=} over its contiguous copy",
    )


@pytest.mark.claim("storage.contiguous-for-speed")
@pytest.mark.parametrize("n", [512, 1024])
def test_a_product_with_a_transposed_matrix_is_not_worth_a_contiguous_copy(device, speed, n):
    transposed = torch.rand(n, n, device=device).t()
    vector = torch.rand(n, device=device)
    what = f"copying a transposed matrix of side {n} for one product over multiplying it as it is"
    speed.assert_slower(lambda: transposed.contiguous() @ vector, lambda: transposed @ vector, what)
