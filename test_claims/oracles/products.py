"""Matrix products of random operands on the device under test, per dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from accounting import measured
from accounting.flops import matmul_flops
from test_claims.strategies import TORCH_DTYPES


def product(
    device: torch.device, dtype: str, m: int, k: int | None = None, n: int | None = None
) -> Callable[[], Tensor]:
    """Multiplies the same (m, k) by (k, n) each time it is called; square where only m is given."""
    k, n = k or m, n or m
    if dtype.startswith("fp8"):
        a = torch.randn(m, k, device=device).to(TORCH_DTYPES[dtype])
        b = torch.randn(n, k, device=device).to(TORCH_DTYPES[dtype]).t()  # the hardware wants it column by column
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    a, b = (torch.randn(*shape, device=device, dtype=TORCH_DTYPES[dtype]) for shape in ((m, k), (k, n)))
    out = torch.empty(m, n, device=device, dtype=a.dtype)
    return lambda: torch.mm(a, b, out=out)


def flop_per_s(device: torch.device, dtype: str, m: int, k: int | None = None, n: int | None = None) -> float:
    """The rate of such a product, the fastest of a few rounds by the device's own clock."""
    rounds = measured.time(product(device, dtype, m, k, n), device, warmup=2, rounds=5)
    return matmul_flops(m, k or m, n or m) / min(rounds.times_s)


@contextmanager
def fp32_products(precision: str = "highest") -> Iterator[None]:
    """Products of fp32 within: in fp32, or with "high" in TF32 where the device has it, whatever the default is."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def scaled_fp8_product(device: torch.device) -> Tensor:
    """(16, 32) by (32, 16) ones in fp8, with scales 2 and 3: 32 · 2 · 3 everywhere."""
    ones = torch.ones(16, 32, device=device).to(torch.float8_e4m3fn)
    scales = [torch.tensor(scale, device=device) for scale in (2.0, 3.0)]
    return torch._scaled_mm(ones, ones.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
