"""The kernels of the roofline, from ReLU to a matrix times a vector.

Each has its call, its work by formula, and a check of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from accounting.memory import element_bytes
from accounting.roofline import (
    FLOPS_PER_ELEMENT,
    Work,
    dot_work,
    elementwise_work,
    layer_norm_work,
    matvec_work,
    softmax_work,
)
from bench.checks import in_fp64
from bench.streams import Stream

PAGE_BYTES = 4096
# The attention's output projection of Llama 3 8B.
LAYER = (4096, 4096)
# Rounding of one fused kernel in fp32, and the few units in the last place of an exponential or an
# error function.
TOLERANCE = 64 * 2.0**-24
# Rows in each of the three parts of a result that are checked.
CHECKED_ROWS = 64


@dataclass(frozen=True)
class Kernel:
    """One kernel: its call, its work by formula, and a check of the result."""

    run: Callable[[], Tensor]
    work: Work
    check: Callable[[Tensor], None]
    # FLOPs and bytes that the counter finds beyond the formula's, and why.
    more_flops: int = 0
    more_bytes: int = 0
    why: str = ""
    # Names a cost that is in the measured time and is not the kernel's.
    label: str = ""
    dtype: str = "fp32"


def close_to(exact: Callable[[Tensor], Tensor], *inputs: Tensor) -> Callable[[Tensor], None]:
    """A check of the first, the middle and the last rows against fp64."""

    def check(got: Tensor) -> None:
        __tracebackhide__ = True
        last = max(got.shape[0] - CHECKED_ROWS, 0)
        for start in (0, last // 2, last):
            part = slice(start, start + CHECKED_ROWS)
            wanted = exact(*(in_fp64(x[part]) for x in inputs))
            difference = (in_fp64(got[part]) - wanted).abs()
            error = float((difference / wanted.abs().clamp_min(1.0)).max())
            # An error of NaN fails, too.
            assert error <= TOLERANCE, (
                f"the result differs from fp64 by {error:.3g}, but rounding explains at most "
                f"{TOLERANCE:.3g}"
            )

    return check


def relu(x: Tensor, out: Tensor) -> Kernel:
    work = elementwise_work(x.shape, "relu", "fp32")
    return Kernel(
        lambda: torch.clamp(x, min=0, out=out), work, close_to(lambda x: x.clamp(min=0), x)
    )


def gelu_fused(x: Tensor, out: Tensor) -> Kernel:
    return Kernel(
        lambda: torch.ops.aten.gelu.out(x, out=out),
        elementwise_work(x.shape, "gelu", "fp32"),
        close_to(functional.gelu, x),
    )


def gelu_composed(x: Tensor, out: Tensor) -> Kernel:
    """x/√2, erf, +1, ·x, ·½: five kernels, and each reads and writes memory.

    The fourth reads two arrays. Together they move 11 elements for each of x, the fused kernel 2.
    """
    work = Work(FLOPS_PER_ELEMENT["gelu"] * x.numel(), element_bytes(11 * x.numel(), "fp32"))

    def run() -> Tensor:
        torch.mul(x, math.sqrt(0.5), out=out)
        torch.erf(out, out=out)
        torch.add(out, 1, out=out)
        torch.mul(out, x, out=out)
        return torch.mul(out, 0.5, out=out)

    return Kernel(run, work, close_to(functional.gelu, x))


def softmax(x: Tensor, out: Tensor) -> Kernel:
    return Kernel(
        lambda: torch.ops.aten._softmax.out(x, 1, False, out=out),
        softmax_work(x.shape, "fp32"),
        close_to(lambda x: torch.softmax(x, 1), x),
    )


def half_a_page_apart(features: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two random vectors in fp32: one begins with a page, the other in the middle of one.

    A core predicts by the lower 12 bits of an address where in its cache it lies. On a Zen 4, layer
    norms took 15.8 ms if these bits of their weight and bias were 64 or 128 bytes apart, and
    10.3 ms otherwise. Where torch puts the two differs by chance from process to process.
    """
    page = PAGE_BYTES // 4
    apart = math.ceil(features / page) * page + page // 2
    held = torch.randn(page + apart + features, device=device)
    start = -held.data_ptr() // 4 % page
    return held[start : start + features], held[start + apart : start + apart + features]


def layer_norm(x: Tensor, out: Tensor) -> Kernel:
    rows, features = x.shape
    weight, bias = half_a_page_apart(features, x.device)

    def normalise(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (features,), weight.to(x.dtype), bias.to(x.dtype))

    return Kernel(
        lambda: normalise(x),
        layer_norm_work(x.shape, "fp32"),
        close_to(normalise, x),
        more_flops=2 * rows,
        more_bytes=8 * rows,
        why="the count has each row's mean and deviation, which the formula omits",
        label="allocates its result" if x.device.type == "cpu" else "",
    )


def dot(x: Tensor, out: Tensor) -> Kernel:
    a = x.flatten().abs()
    b = torch.rand_like(x).flatten()
    result = torch.zeros((), device=x.device)
    stream = Stream("dot", lambda: torch.dot(a, b, out=result), a, b)
    return Kernel(stream.run, dot_work(x.numel(), "fp32"), stream.check)


def matvec(x: Tensor, out: Tensor) -> Kernel:
    """A matrix of the shape LAYER times a vector; `x` gives only the device."""
    matrix = torch.randn(LAYER, device=x.device)
    vector = torch.randn(LAYER[1], device=x.device)
    product = torch.empty(LAYER[0], device=x.device)

    def check(got: Tensor) -> None:
        __tracebackhide__ = True
        exact_vector = in_fp64(vector)
        for part, found in zip(matrix.split(512), got.split(512), strict=True):
            exact_part = in_fp64(part)
            difference = (in_fp64(found) - exact_part @ exact_vector).abs()
            magnitudes = exact_part.abs() @ exact_vector.abs()
            error = float((difference / magnitudes).max())
            assert error <= 4 * TOLERANCE, (
                f"matvec differs from fp64 by {error:.3g} of the magnitudes, but should by at most "
                f"{4 * TOLERANCE:.3g}"
            )

    return Kernel(lambda: torch.mv(matrix, vector, out=product), matvec_work(*LAYER, "fp32"), check)


KERNELS: dict[str, Callable[[Tensor, Tensor], Kernel]] = {
    "relu": relu,
    "gelu-fused": gelu_fused,
    "gelu-composed": gelu_composed,
    "softmax": softmax,
    "layer-norm": layer_norm,
    "dot": dot,
    "matvec": matvec,
}
