"""The kernels of the roofline, from ReLU to a matrix times a vector: their call, their work by
formula, their check.
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
from bench.launch import LAUNCH_SHARE
from bench.streams import Stream

PAGE_BYTES = 4096
# The attention's output projection of Llama 3 8B.
LAYER = (4096, 4096)
# Rounding of one fused kernel in fp32, and the few units in the last place of an exponential or an
# error function.
TOLERANCE = 64 * 2.0**-24


def bound_of(intensity: float, ridge: float, launch_share: float = 0.0) -> str:
    """The limit of an operation: "launch" if that takes half of its time, else "memory" below the
    ridge or "compute".

    By its place under the roofs, not by its distance from them: if its share of the attainable rate
    is low, the kernel itself is the limit.

    >>> bound_of(0.25, 295.0), bound_of(341.0, 295.0), bound_of(0.25, 295.0, launch_share=0.7)
    ('memory', 'compute', 'launch')
    """
    if launch_share >= LAUNCH_SHARE:
        return "launch"
    return "memory" if intensity < ridge else "compute"


@dataclass(frozen=True)
class Kernel:
    """One kernel: the call, its work by formula, and where counting has another convention, by how
    much and why.
    """

    run: Callable[[], Tensor]
    work: Work
    check: Callable[[Tensor], None]
    # FLOPs and bytes that are counted beyond the formula's.
    more_flops: int = 0
    more_bytes: int = 0
    why: str = ""
    # A cost in its time that is not the kernel's.
    label: str = ""
    dtype: str = "fp32"


def close_to(exact: Callable[[Tensor], Tensor], *inputs: Tensor) -> Callable[[Tensor], None]:
    """A check of the first, the middle and the last rows against fp64; by the rows of the first
    input.
    """

    def check(got: Tensor) -> None:
        __tracebackhide__ = True
        rows, last = got.shape[0], max(got.shape[0] - 64, 0)
        for start in {0, last // 2, last}:
            part = slice(start, min(start + 64, rows))
            wanted = exact(*(in_fp64(x[part]) for x in inputs))
            error = float(((in_fp64(got[part]) - wanted).abs() / wanted.abs().clamp_min(1.0)).max())
            # A NaN fails.
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
    """x/√2, erf, +1, ·x, ·½: each reads and writes memory, one of them two arrays: 11 elements
    moved, not 2.
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
    run = lambda: torch.ops.aten._softmax.out(x, 1, False, out=out)  # noqa: E731
    return Kernel(run, softmax_work(x.shape, "fp32"), close_to(lambda x: torch.softmax(x, 1), x))


def half_a_page_apart(features: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two random vectors in fp32: one begins with a page, the other in the middle of one.

    A core predicts by the lower 12 bits of an address where in its cache it lies. On a Zen 4, layer
    norms whose weight and bias began 64 or 128 bytes apart in these took 15.8 ms, others 10.3 ms:
    which, each process drew by lot.
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
        why="counted with each row's mean and deviation, which the formula leaves out",
        label="allocates its result" if x.device.type == "cpu" else "",
    )


def dot(x: Tensor, out: Tensor) -> Kernel:
    a, b, one = x.flatten().abs(), torch.rand_like(x).flatten(), torch.zeros((), device=x.device)
    stream = Stream("dot", lambda: torch.dot(a, b, out=one), a, b)
    return Kernel(stream.run, dot_work(x.numel(), "fp32"), stream.check)


def matvec(x: Tensor, out: Tensor) -> Kernel:
    """A matrix of LAYER times a vector, whatever the rows are."""
    matrix, vector = torch.randn(LAYER, device=x.device), torch.randn(LAYER[1], device=x.device)
    product = torch.empty(LAYER[0], device=x.device)

    def check(got: Tensor) -> None:
        __tracebackhide__ = True
        exact = in_fp64(vector)
        size = exact.abs()
        for part, found in zip(matrix.split(512), got.split(512), strict=True):
            wrong = (in_fp64(found) - in_fp64(part) @ exact).abs() / (in_fp64(part).abs() @ size)
            error = float(wrong.max())
            assert error <= 4 * TOLERANCE, (
                f"matvec differs from fp64 by {error:.3g} of the magnitudes, should by <= "
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
