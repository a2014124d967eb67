"""The bytes that operators are said to read and write are those of their tensors; intensity."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from accounting import roofline
from meta_tests.prooflops.counted.counting import a, b, flops_of


def fused_optimizer_step() -> None:
    parameter = torch.empty(38, requires_grad=True)
    parameter.grad = torch.empty(38)
    torch.optim.AdamW([parameter], fused=True).step()


wide = torch.randn(6, 10)
byte = torch.ones(32, 32, dtype=torch.int8)
heads = torch.randn(1, 1, 9, 4)
mask = torch.zeros(9, 9)
column = wide[:, :1]
half = wide.to(torch.bfloat16)
rows = torch.tensor([0, 0, 5, 2])
diagonal = torch.eye(3, 4).to_sparse()
given = {"out": (torch.empty(6), torch.empty(6, dtype=torch.long))}
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# The call; the bytes it reads, and those it writes.
MOVED: dict[str, tuple[Callable[[], object], int, int]] = {
    "a product": (lambda: a @ b, 4 * (12 + 20), 4 * 15),
    "a product in bf16": (lambda: half @ half.T, 2 * (60 + 60), 2 * 36),
    "a product that widens": (lambda: torch._int_mm(byte, byte), 2 * 1024, 4 * 1024),
    "a sparse product": (lambda: diagonal @ b, 4 * 3 + 8 * 2 * 3 + 4 * 20, 4 * 15),
    "a comparison": (lambda: wide > 0, 240, 60),
    "an argument that is broadcast": (lambda: wide + column, 240 + 24, 240),
    "an argument that was expanded before": (lambda: wide + column.expand(6, 10), 240 + 24, 240),
    "an update in place": (lambda: wide.clone().relu_(), 2 * 240, 2 * 240),
    "an update of a list": (
        lambda: torch._foreach_mul_([wide.clone(), wide.clone()], 1.0),
        4 * 240,
        4 * 240,
    ),
    "two results given": (lambda: torch.max(wide, 1, **given), 240, 6 * 4 + 6 * 8),
    "a copy": (lambda: torch.empty(6, 10).copy_(half), 120, 240),
    "a fill": (lambda: torch.empty(6, 10).fill_(1.0), 0, 240),
    "a likeness": (lambda: torch.zeros_like(wide), 0, 240),
    "a view": (lambda: wide.t()[1:].unsqueeze(0).expand(4, -1, -1), 0, 0),
    "nothing but allocated": (lambda: torch.empty_like(wide), 0, 0),
    "rows of a table": (lambda: F.embedding(rows, wide), 32 + 160, 160),
    "elements taken from a table": (lambda: wide.take(rows), 32 + 16, 16),
    # Queries, keys, values and the mask; the result, and the logarithm of each row's sum.
    "a mask given by its name": (
        lambda: flash(heads, heads, heads, attn_mask=mask),
        3 * 144 + 324,
        144 + 36,
    ),
    "a list of tensors joined": (lambda: torch.cat([wide, column], dim=1), 240 + 24, 264),
    # Two zeros_like and a scalar create the state; the count of steps is read, and updated
    # beforehand.
    "a fused optimizer's first step": (
        fused_optimizer_step,
        152 * 4 + 4 * 2,
        152 * (2 + 3) + 4 * 2,
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_are_those_of_every_tensor_read_and_written_once(name: str) -> None:
    act, *right = MOVED[name]
    count = flops_of(act)
    got = [count.read_bytes, count.written_bytes]
    assert got == right, count.by_operator()
    assert count.moved_bytes == sum(right)


def test_the_intensity_of_one_product_is_that_of_the_formula() -> None:
    for m, k, n in ((1, 64, 64), (5, 7, 11)):
        x = torch.empty(m, k, dtype=torch.bfloat16, device="meta")
        w = torch.empty(k, n, dtype=torch.bfloat16, device="meta")
        count = flops_of(lambda x=x, w=w: x @ w)
        formula = roofline.matmul_work(m, k, n, "bf16").intensity
        assert count.intensity == count.by_operator()["aten.mm"].intensity == formula
    with pytest.raises(ValueError, match="moved_bytes must be at least 1, got 0"):
        _ = flops_of(lambda: a.t()).intensity
