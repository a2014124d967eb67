"""A kernel of one's own under this machine's roofs: `python -m examples.own_kernel [cuda]`.

State what it has to compute and to move, measure it beside the two roofs, and see how far it is from what it could be.
"""

import sys
from collections.abc import Callable

import torch

from accounting.roofline import (
    Work,
    arithmetic_intensity,
    attainable_flop_per_s,
    matmul_work,
    ridge_point,
)
from prooflops import measured

ROWS, COLUMNS = 4096, 4096
SIZE = 1024  # of the product that gives the roof of compute


def kernel(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Here: the gated product of SwiGLU. Put yours in its place, and its FLOPs and bytes into `work`."""
    return torch.nn.functional.silu(gate) * up


def work() -> Work:
    elements = ROWS * COLUMNS
    return Work(
        flops=5 * elements, bytes=3 * 4 * elements
    )  # negate, exp, add, divide, multiply; fp32: 2 read, 1 written


def median_s(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> float:
    return measured.time(
        lambda: function(*tensors), tensors[0].device, warmup=2, rounds=10
    ).median_s


def lines(device: str = "cpu") -> list[str]:
    gate, up = (torch.randn(ROWS, COLUMNS, device=device) for _ in range(2))
    square = torch.randn(SIZE, SIZE, device=device)
    bandwidth = (
        3 * gate.nbytes / median_s(torch.add, gate, up)
    )  # the same reads and writes, next to no arithmetic
    compute = matmul_work(SIZE, SIZE, SIZE, "fp32").flops / median_s(torch.mm, square, square)
    own, seconds = work(), median_s(kernel, gate, up)
    intensity = arithmetic_intensity(own.flops, own.bytes)
    ridge = ridge_point(compute, bandwidth)
    attainable, achieved = attainable_flop_per_s(intensity, compute, bandwidth), own.flops / seconds
    return [
        f"roofs: {bandwidth / 1e9:.3g} GB/s and {compute / 1e9:.4g} GFLOP/s, which meet at {ridge:.3g} FLOP/B",
        f"the kernel does {intensity:.3g} FLOP/B: {'memory' if intensity < ridge else 'compute'}-bound at best",
        f"attainable {attainable / 1e9:.3g} GFLOP/s, achieved {achieved / 1e9:.3g}: {achieved / attainable:.0%}",
    ]


if __name__ == "__main__":
    print("\n".join(lines(*sys.argv[1:2])))
