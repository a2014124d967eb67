"""Products, elementwise operations and copies on the device under test, to be timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from accounting.flops import matmul_flops
from prooflops import timing
from test_claims.strategies import TORCH_DTYPES


def product(device, dtype, m, k=None, n=None):
    """Multiplies the same (m, k) by (k, n) each time it is called; square where only m is given."""
    k = k or m
    n = n or m
    if dtype.startswith("fp8"):
        a = torch.randn(m, k, device=device).to(TORCH_DTYPES[dtype])
        # The hardware reads it column by column.
        b = torch.randn(n, k, device=device).to(TORCH_DTYPES[dtype]).t()
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    a, b = (
        torch.randn(*shape, device=device, dtype=TORCH_DTYPES[dtype]) for shape in ((m, k), (k, n))
    )
    out = torch.empty(m, n, device=device, dtype=a.dtype)
    return lambda: torch.mm(a, b, out=out)


def flop_per_s(device, dtype, m, k=None, n=None):
    """The rate of such a product, the fastest of a few rounds by the device's own clock."""
    rounds = timing.time(product(device, dtype, m, k, n), device, warmup=2, rounds=5)
    return matmul_flops(m, k or m, n or m) / min(rounds.times_s)


def applied(function, *operands):
    """The result of an operation, None where torch has no kernel for it."""
    try:
        return function(*operands)
    except (NotImplementedError, RuntimeError):
        return None


def scaled_fp8_product(x, w, scale_x, scale_w):
    """`x` (m, k) times the transpose of `w` (n, k), in bf16.

    Both are fp8, each with its scale: one number, or one for each row.
    """
    scales = (torch.as_tensor(scale, device=x.device) for scale in (scale_x, scale_w))
    return torch._scaled_mm(x, w.t(), *scales, out_dtype=torch.bfloat16)


# Elements of a row.
ROW = 4096


@dataclass(frozen=True)
class Operands:
    """Two operands, a result and scratch, all of the same size."""

    x: Tensor
    y: Tensor
    out: Tensor
    scratch: Tensor

    @staticmethod
    def of(elements, device):
        """Random numbers, repeated beyond 2**20 of them, and pages that have all been touched."""
        few = min(elements, 2**20)
        x, y = (torch.randn(few, device=device).repeat(elements // few) for _ in range(2))
        return Operands(x, y, torch.zeros_like(x), torch.zeros_like(x))

    def first(self, elements):
        return Operands(*(each[:elements] for each in (self.x, self.y, self.out, self.scratch)))


def gelu_by_hand(on):
    """x · ½ · (1 + erf(x / √2)), one pass over memory for each operation."""
    torch.mul(on.x, 2**-0.5, out=on.scratch)
    torch.erf(on.scratch, out=on.scratch)
    torch.add(on.scratch, 1, out=on.scratch)
    torch.mul(on.scratch, on.x, out=on.scratch)
    torch.mul(on.scratch, 0.5, out=on.out)


OPERATIONS = {
    "relu": lambda on: torch.clamp_min(on.x, 0, out=on.out),
    "add": lambda on: torch.add(on.x, on.y, out=on.out),
    "multiply": lambda on: torch.mul(on.x, on.y, out=on.out),
    "dot": lambda on: torch.dot(on.x, on.y),
    "matvec": lambda on: torch.mv(
        on.x.view(-1, ROW), on.y[:ROW], out=on.out[: on.x.numel() // ROW]
    ),
    "gelu": lambda on: torch.ops.aten.gelu.out(on.x, approximate="none", out=on.out),
    "softmax": lambda on: torch.softmax(on.x.view(-1, ROW), -1, out=on.out.view(-1, ROW)),
    "layer norm": lambda on: layer_norm(on.x.view(-1, ROW), (ROW,), on.y[:ROW], on.y[:ROW]),
}
# The tensors of full length that an operation reads and writes.
FULL_TENSORS = {"relu": 2, "add": 3, "multiply": 3, "dot": 2, "matvec": 1}


def empty_host_cache():
    """Frees the pinned blocks that torch keeps for later tensors and no copy uses."""
    # The oldest torch that is supported has no public name for it.
    public = getattr(torch.accelerator, "empty_host_cache", None)
    (public or torch._C._host_emptyCache)()


def timed_copy(target, source):
    """Seconds until a non_blocking copy returned, its seconds, and whether it then still ran."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start = time.perf_counter()
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    returned_s = time.perf_counter() - start
    still_running = not end.query()
    end.synchronize()
    return returned_s, begin.elapsed_time(end) / 1e3, still_running


def has_bf16_unit(device, isa):
    if device.type == "cuda":
        return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(isa))
