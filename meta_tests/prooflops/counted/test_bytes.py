"""The bytes that operators are said to read and write are those of their tensors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from meta_tests.prooflops.counted.counting import a, b, flops_of

wide = torch.randn(6, 10)
byte = torch.ones(32, 32, dtype=torch.int8)
heads = torch.randn(1, 1, 9, 4)
column = wide[:, :1]
half = wide.to(torch.bfloat16)
rows = torch.tensor([0, 0, 5, 2])
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def update_in_place():
    wide.clone().relu_()


def update_of_a_list():
    torch._foreach_mul_([wide.clone(), wide.clone()], 1.0)


def view():
    wide.t()[1:].unsqueeze(0).expand(4, -1, -1)


def fused_optimizer_step():
    parameter = torch.empty(38, requires_grad=True)
    parameter.grad = torch.empty(38)
    torch.optim.AdamW([parameter], fused=True).step()


# The call; the bytes it reads, and those it writes.
MOVED = {
    "a product": (partial(torch.mm, a, b), 4 * (12 + 20), 4 * 15),
    "a product that widens": (partial(torch._int_mm, byte, byte), 2 * 1024, 4 * 1024),
    "an argument that is broadcast": (partial(torch.add, wide, column), 240 + 24, 240),
    "one that was expanded before": (
        partial(torch.add, wide, column.expand(6, 10)),
        240 + 24,
        240,
    ),
    "an update in place": (update_in_place, 2 * 240, 2 * 240),
    "an update of a list": (update_of_a_list, 4 * 240, 4 * 240),
    "a copy": (partial(torch.empty(6, 10).copy_, half), 120, 240),
    "a fill": (partial(torch.empty(6, 10).fill_, 1.0), 0, 240),
    "a view": (view, 0, 0),
    "nothing but allocated": (partial(torch.empty_like, wide), 0, 0),
    "rows of a table": (partial(F.embedding, rows, wide), 32 + 160, 160),
    # Queries, keys, values and the mask; the result, and the logarithm of each row's sum.
    "a mask given by its name": (
        partial(flash, heads, heads, heads, attn_mask=torch.zeros(9, 9)),
        3 * 144 + 324,
        144 + 36,
    ),
    # Two zeros_like and a scalar create the state; the count of steps is read, and updated
    # beforehand.
    "a fused optimizer's first step": (
        fused_optimizer_step,
        152 * 4 + 4 * 2,
        152 * (2 + 3) + 4 * 2,
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_are_those_of_every_tensor_read_and_written_once(name):
    act, *right = MOVED[name]
    count = flops_of(act)
    got = [count.read_bytes, count.written_bytes]
    assert got == right, count.by_operator()
    assert count.moved_bytes == sum(right)
