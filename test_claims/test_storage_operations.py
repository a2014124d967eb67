"""Claims about operations on strided tensors: their allocations and their values."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention

from test_claims.oracles.messages import agree, at_most, equal
from test_claims.oracles.tensors import shares_storage
from test_claims.strategies import TORCH_DTYPES, covering, fewer, sizes


@pytest.mark.claim("storage.elementwise-new")
def test_elementwise_operations_allocate_unless_told_otherwise(device):
    for case in covering("storage.elementwise-new"):
        assert_new(case.tensor(device), case.tensor(device))


def assert_new(x, other):
    """That operations on these operands make new tensors, and those in place none."""
    __tracebackhide__ = True
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
        "a cast to the same dtype": x.to(x.dtype),
        "dropout of 0": nn.functional.dropout(x, p=0.0),
    }
    # Elements that share a place cannot be written one by one.
    if 0 not in x.stride():
        told |= {"add_": x.add_(1), "relu_": x.relu_(), "out=": torch.add(x, 1, out=x)}
    copied = [name for name, y in told.items() if not shares_storage(x, y)]
    assert not copied, f"{copied} copied"


@pytest.mark.claim("storage.triu-causal")
@fewer
@given(length=sizes(1, 8))
@example(length=600)
def test_triu_is_true_where_a_key_lies_in_a_querys_future(device, length):
    token = np.arange(length)
    future = torch.tensor(token > token[:, None])
    for case in covering("storage.triu-causal"):
        ones = torch.ones(length, length, dtype=TORCH_DTYPES[case.dtype], device=device)
        mask = ones.triu(diagonal=1)
        equal(mask.bool(), future, "the mask", dtype=case.dtype)
    mask = mask.bool()

    operands = torch.randn(3, 2, 2, length, 8, device=device)
    by_mask = attention(*operands, attn_mask=~mask)
    causal = attention(*operands, is_causal=True)
    torch.testing.assert_close(by_mask, causal)
    assert ones.triu().diagonal().all(), "plain triu shows a token to itself"


@pytest.mark.claim("storage.pow-sqrt-rsqrt")
def test_pow_sqrt_and_rsqrt_work_on_each_of_1_4_and_9(device):
    for case in covering("storage.pow-sqrt-rsqrt"):
        root = case.tensor(device, values=(1, 2, 3))
        x = case.tensor(device, values=(1, 4, 9))
        # A device may compute roots with an error of a few units in the last place.
        near = 4 * torch.finfo(x.sqrt().dtype).eps
        ways = {
            "pow": ((-x).pow(2), x * x),
            "pow of 3": ((-x).pow(3), -x * x * x),
            "pow of each": (x.pow(root), case.tensor(device, values=(1, 16, 729))),
            "pow of large integers": ((x.long() << 20).pow(2), x.double() ** 2 * 2**40),
            "sqrt": (x.sqrt(), root),
            "rsqrt": (x.rsqrt(), 1 / root.double()),
        }
        for way, (got, should) in ways.items():
            off = (got.double() / should - 1).abs().max().item()
            at_most(off, near, f"the error of {way}", case=case)


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
def test_a_product_with_a_transposed_matrix_is_not_worth_a_contiguous_copy(device, speed):
    transposed = torch.rand(1024, 1024, device=device).t()
    vector = torch.rand(1024, device=device)
    what = "copying a transposed matrix of side 1024 for one product over multiplying it as it is"
    speed.assert_slower(lambda: transposed.contiguous() @ vector, lambda: transposed @ vector, what)
