"""Places your own kernel under this machine's roofs: `python -m examples.own_kernel [cuda]`.

State its FLOPs and bytes, measure it beside the two roofs, and see how far it is from them.
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
from prooflops import timing

ROWS = 4096
COLUMNS = 4096
# A product of this size gives the roof of compute.
ROOF_SIZE = 1024


def kernel(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Here: the gated product of SwiGLU.

    Put yours in its place, and its FLOPs and bytes into `work`.
    """
    return torch.nn.functional.silu(gate) * up


def work() -> Work:
    # Negate, exp, add, divide, multiply; of fp32, two tensors are read and one is written.
    elements = ROWS * COLUMNS
    return Work(flops=5 * elements, bytes=3 * 4 * elements)


def median_s(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> float:
    return timing.time(lambda: function(*tensors), tensors[0].device, warmup=2, rounds=10).median_s


def lines(device: str = "cpu") -> list[str]:
    gate, up = (torch.randn(ROWS, COLUMNS, device=device) for _ in range(2))
    square = torch.randn(ROOF_SIZE, ROOF_SIZE, device=device)
    # The sum reads and writes as much, and does next to no arithmetic.
    bandwidth = 3 * gate.nbytes / median_s(torch.add, gate, up)
    compute = matmul_work(ROOF_SIZE, ROOF_SIZE, ROOF_SIZE, "fp32").flops / median_s(
        torch.mm, square, square
    )
    own = work()
    seconds = median_s(kernel, gate, up)
    intensity = arithmetic_intensity(own.flops, own.bytes)
    ridge = ridge_point(compute, bandwidth)
    roofs = f"{bandwidth / 1e9:.3g} GB/s and {compute / 1e9:.4g} GFLOP/s"
    bound = "memory" if intensity < ridge else "compute"
    attainable = attainable_flop_per_s(intensity, compute, bandwidth)
    achieved = own.flops / seconds
    reached = f"achieved {achieved / 1e9:.3g}: {achieved / attainable:.0%}"
    return [
        f"roofs: {roofs}, which meet at {ridge:.3g} FLOP/B",
        f"the kernel does {intensity:.3g} FLOP/B: {bound}-bound at best",
        f"attainable {attainable / 1e9:.3g} GFLOP/s, {reached}",
    ]


if __name__ == "__main__":
    print("\n".join(lines(*sys.argv[1:2])))
