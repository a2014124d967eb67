"""The bytes that the counter says operators read and write, against those of the tensors, and their intensity."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from accounting import counted
from accounting.counted.tensors import NotStridedError, bytes_of, tensors_in
from meta_tests.accounting.counted.counting import flops_of


def fused_optimizer_step() -> None:
    parameter = torch.empty(38, requires_grad=True)
    parameter.grad = torch.empty(38)
    torch.optim.AdamW([parameter], fused=True).step()


a, b, wide = torch.randn(3, 4), torch.randn(4, 5), torch.randn(6, 10)
byte = torch.ones(32, 32, dtype=torch.int8)
heads, mask = torch.randn(1, 1, 9, 4), torch.zeros(9, 9)
column, half, rows = wide[:, :1], wide.to(torch.bfloat16), torch.tensor([0, 0, 5, 2])

# What is called; the bytes it reads, and those it writes.
MOVED: dict[str, tuple[Callable[[], object], int, int]] = {
    "a product": (lambda: a @ b, 4 * (12 + 20), 4 * 15),
    "a product in bf16": (lambda: half @ half.T, 2 * (60 + 60), 2 * 36),
    "a product that widens": (lambda: torch._int_mm(byte, byte), 2 * 1024, 4 * 1024),
    "two read, one written": (lambda: wide + wide, 2 * 240, 240),
    "a comparison": (lambda: wide > 0, 240, 60),
    "an argument that is broadcast": (lambda: wide + column, 240 + 24, 240),
    "an argument that was expanded before": (lambda: wide + column.expand(6, 10), 240 + 24, 240),
    "an update in place": (lambda: wide.clone().relu_(), 2 * 240, 2 * 240),
    "an update of a list": (lambda: torch._foreach_mul_([wide.clone(), wide.clone()], 1.0), 4 * 240, 4 * 240),
    "a result given": (lambda: torch.add(wide, wide, out=torch.empty(6, 10)), 2 * 240, 240),
    "two results given": (
        lambda: torch.max(wide, 1, out=(torch.empty(6), torch.empty(6, dtype=torch.long))),
        240,
        6 * 4 + 6 * 8,
    ),
    "a copy": (lambda: torch.empty(6, 10).copy_(half), 120, 240),
    "a fill": (lambda: torch.empty(6, 10).fill_(1.0), 0, 240),
    "a likeness": (lambda: torch.zeros_like(wide), 0, 240),
    "a reduction": (lambda: wide.sum(0), 240, 40),
    "a view": (lambda: wide.t()[1:].unsqueeze(0).expand(4, -1, -1), 0, 0),
    "nothing but allocated": (lambda: torch.empty_like(wide), 0, 0),
    "nothing at all": (lambda: torch.add(torch.empty(0, 3), 1.0), 0, 0),
    "rows of a table": (lambda: F.embedding(rows, wide), 32 + 160, 160),
    "elements taken from a table": (lambda: wide.take(rows), 32 + 16, 16),
    # Queries, keys, values and the mask; the result, and the logarithm of each row's sum.
    "a mask given by its name": (
        lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(heads, heads, heads, attn_mask=mask),
        3 * 144 + 324,
        144 + 36,
    ),
    "a list of tensors joined": (lambda: torch.cat([wide, column], dim=1), 240 + 24, 264),
    # The state is created by two zeros_like and a scalar; the count of steps is read, and updated beforehand.
    "a fused optimizer's first step": (fused_optimizer_step, 152 * 4 + 4 * 2, 152 * (2 + 3) + 4 * 2),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_are_those_of_every_tensor_read_and_written_once(name: str) -> None:
    act, *right = MOVED[name]
    count = flops_of(act)
    got = [count.read_bytes, count.written_bytes]
    assert got == right, f"read, written are {got}, but should be {right} [{name}: {count.by_operator()}]"
    assert count.moved_bytes == sum(right), f"{count.moved_bytes=}, but should be {sum(right)} [{name}]"


def test_the_meta_device_moves_the_bytes_that_real_tensors_would() -> None:
    def step(device: str) -> counted.CountedWork:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).to(device).train()
        data = torch.ones(2, 5, 16, device=device)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return flops_of(lambda: layer(data).sum().backward())

    on_cpu, on_meta = step("cpu").by_operator(), step("meta").by_operator()
    differing = {name: (on_cpu.get(name), on_meta.get(name)) for name in {*on_cpu, *on_meta}}
    differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
    assert not differing, f"on the CPU and the meta device differ {differing}"


def test_nothing_is_known_of_caches_and_fusion() -> None:
    """What is written and read again at once moves three times as many bytes as a fused kernel would."""
    unfused, fused = flops_of(lambda: (wide * 2).exp()), 2 * wide.nbytes
    assert unfused.moved_bytes == 2 * fused, f"{unfused.moved_bytes} bytes, but should be {2 * fused}"


def test_tensors_are_found_in_lists_tuples_and_dicts_of_them() -> None:
    found = tensors_in({"first": a, "rest": [b, (wide, 3, None)], "text": "x"})
    assert [id(tensor) for tensor in found] == [id(a), id(b), id(wide)]
    assert bytes_of({"first": a, "rest": [b, (wide, 3)]}) == a.nbytes + b.nbytes + wide.nbytes


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_what_has_no_strides_has_no_bytes_that_follow_from_its_shape() -> None:
    nested = torch.nested.nested_tensor([a[0], b[0]])
    for tensor in (wide.to_sparse(), nested):
        with pytest.raises(NotStridedError):
            bytes_of(tensor)
    assert bytes_of(torch.empty(0, 1).expand(0, 5)) == bytes_of(torch.empty(1, 0).expand(7, 0)) == 0
