"""Roofline: FLOPs of an operation per byte, and the FLOP/s that a device can attain.

Bytes are ideal: each operand is read once and each result written once, as if caches were
unlimited. Real traffic is never less, so intensities here are upper bounds, and so are the
attainable FLOP/s that follow from them. "FLOPs and ideal bytes" of each operation come as a `Work`.
Every function raises ValueError for a negative size, an unknown dtype, and a rate or time that is
not above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from accounting.checks import (
    at_least_one,
    checked,
    instance_of,
    validate_fields,
    validated_choice,
    validated_ints,
    validated_positive,
    validated_real,
)
from accounting.flops import matmul_flops
from accounting.formats import Dtype
from accounting.memory import element_bytes

# Elementary operations per element, by formula and by `prooflops.counted`; an exponential, root or
# error function counts as one. Hardware needs 10 to 20 instructions for those, still below every
# accelerator's ridge point.
FLOPS_PER_ELEMENT = {
    "add": 1,
    "multiply": 1,
    "relu": 1,  # compare with 0
    "gelu": 5,  # x/√2, erf, +1, ·x, ·½
    "gelu_tanh": 9,  # x·x, ·x, ·0.044715, +x, ·√(2/π), tanh, +1, ·x, ·½
    "silu": 4,  # -x, exp, +1, x/…
}
# Those of the gradient, which computes the function's own parts again.
GRADIENT_FLOPS_PER_ELEMENT = {
    "gelu": 11,  # Φ: x/√2, erf, +1, ·½; φ: x·x, ·(-½), exp, ·1/√(2π); x·φ, Φ+…, ·dy
    # 6 up to t = tanh; ½x, 1+t, ·½; 1-t·t (2); ·3κ, +1, ·√(2/π) on x·x; two products; +…, ·dy
    "gelu_tanh": 18,
    "silu": 9,  # -x, exp, +1, 1/… for σ; 1-σ, ·x, +1, ·σ, ·dy
}
SOFTMAX_FLOPS = 5  # largest, subtract it, exp, sum, divide
LAYER_NORM_FLOPS = 7  # sum, subtract the mean, square, sum, ·1/deviation, ·weight, +bias


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes moved of an operation; parts done one after the other add up with `+`.

    >>> (Work(flops=8, bytes=4) + Work(flops=0, bytes=4)).intensity
    1.0
    """

    flops: int
    bytes: int

    def __post_init__(self) -> None:
        validate_fields(self, "flops", "bytes")

    @property
    def intensity(self) -> float:
        """FLOPs per byte; raises ValueError for work that moves nothing."""
        return arithmetic_intensity(self.flops, self.bytes)

    def __add__(self, other: Work) -> Work:
        if not isinstance(other, Work):
            return NotImplemented
        return Work(self.flops + other.flops, self.bytes + other.bytes)


@checked("flops", moved_bytes=at_least_one)
def arithmetic_intensity(flops: int, moved_bytes: int) -> float:
    """FLOPs per byte moved, to compare with `ridge_point`.

    Raises ValueError for no bytes.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.

    >>> arithmetic_intensity(2 * 1024**3, 3 * 2 * 1024**2)
    341.3333333333333
    """
    return flops / moved_bytes


@checked("m", "k", "n", "batch")
def matmul_work(
    m: int, k: int, n: int, dtype: Dtype = "bf16", batch: int = 1, result: Dtype | None = None
) -> Work:
    """FLOPs and ideal bytes of `batch` products of (m, k) by (k, n).

    Each takes 2·m·k·n FLOPs and moves m·k + k·n + m·n elements. `result` is the product's dtype if
    it differs from the operands': int32 of int8, bf16 of fp8. Square matrices of size n reach n/3
    FLOPs per byte in a 16-bit format. A product with a skinny side of size B reaches about B,
    however large the other two.
    Ignored: tiles that finite caches read again; the scales of operands below 16 bits.

    >>> matmul_work(1024, 1024, 1024).intensity
    341.3333333333333
    """
    moved = element_bytes(batch * (m * k + k * n), dtype) + element_bytes(
        batch * m * n, result or dtype
    )
    return Work(matmul_flops(m, k, n, batch), moved)


def matvec_work(m: int, k: int, dtype: Dtype = "bf16") -> Work:
    """FLOPs and ideal bytes of an (m, k) matrix times a vector: 2·m·k against m·k + k + m elements.

    Each matrix element is used for one multiply-add: at most 1 FLOP per byte in a 16-bit format.

    >>> round(matvec_work(4096, 4096).intensity, 3)
    1.0
    """
    return matmul_work(m, k, 1, dtype)


@checked("n")
def dot_work(n: int, dtype: Dtype = "bf16") -> Work:
    """FLOPs and ideal bytes of the dot product of two vectors: 2·n against 2·n + 1 elements.

    Half a FLOP per byte in a 16-bit format. The strict count is 2·n − 1: the first product needs no
    addition.

    >>> round(dot_work(4096).intensity, 3)
    0.5
    """
    return matmul_work(1, n, 1, dtype)


@checked(operands=at_least_one)
def elementwise_work(
    shape: Sequence[int], function: str = "relu", dtype: Dtype = "bf16", operands: int = 1
) -> Work:
    """FLOPs and ideal bytes of an elementwise function.

    FLOPs are its FLOPS_PER_ELEMENT; it reads each operand and writes one result. Assumes one fused
    kernel. A GELU of separate eager operations moves each intermediate to memory and back: several
    times these bytes. Raises ValueError for an unknown function.

    >>> elementwise_work((1024,), "relu").intensity
    0.25
    >>> elementwise_work((1024,), "relu", "fp32").intensity
    0.125
    """
    elements = prod(validated_ints("shape", shape))
    per_element = FLOPS_PER_ELEMENT[validated_choice("function", function, FLOPS_PER_ELEMENT)]
    return Work(per_element * elements, element_bytes((operands + 1) * elements, dtype))


def softmax_work(shape: Sequence[int], dtype: Dtype = "bf16") -> Work:
    """FLOPs and ideal bytes of a softmax over any dimension.

    A softmax takes 5 FLOPs per element, and reads and writes each element once. Ignored: a row too
    long for registers and shared memory is read two or three times.

    >>> softmax_work((8, 1024)).intensity
    1.25
    """
    elements = prod(validated_ints("shape", shape))
    return Work(SOFTMAX_FLOPS * elements, element_bytes(2 * elements, dtype))


def layer_norm_work(shape: Sequence[int], dtype: Dtype = "bf16") -> Work:
    """FLOPs and ideal bytes of a layer norm over the last dimension.

    A layer norm takes 7 FLOPs per element, and moves input, output, weight and bias. Exact to
    within a few operations per row (its division, ε and root).

    >>> layer_norm_work((1024, 4096)).intensity
    1.7482926829268293
    """
    sizes = validated_ints("shape", shape)
    features = sizes[-1] if sizes else 1
    return Work(
        LAYER_NORM_FLOPS * prod(sizes), element_bytes(2 * prod(sizes) + 2 * features, dtype)
    )


@checked(peak_flop_per_s=validated_positive, bandwidth_bytes_per_s=validated_positive)
def ridge_point(peak_flop_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """The least intensity in FLOPs per byte at which the peak can be attained: peak / bandwidth.

    Below it memory is the limit, above it arithmetic. The ridge depends on device, dtype and
    memory: an H100 SXM has 295 in bf16, 591 in fp8, 20 in fp32.

    >>> round(ridge_point(989.4e12, 3350e9), 1)
    295.3
    """
    return peak_flop_per_s / bandwidth_bytes_per_s


@checked(
    intensity=validated_real,
    peak_flop_per_s=validated_positive,
    bandwidth_bytes_per_s=validated_positive,
)
def attainable_flop_per_s(
    intensity: float, peak_flop_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """The most FLOP/s an operation of this intensity can reach: min(peak, intensity · bandwidth).

    A small operation is limited by its launch and reaches neither. With the bandwidth of DRAM this
    does not bound operands that stay in a cache.

    >>> attainable_flop_per_s(0.25, 989.4e12, 3350e9) / 1e12
    0.8375
    """
    return min(peak_flop_per_s, intensity * bandwidth_bytes_per_s)


@checked(
    work=instance_of(Work),
    peak_flop_per_s=validated_positive,
    bandwidth_bytes_per_s=validated_positive,
)
def least_time_s(work: Work, peak_flop_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """The least time of `work` in seconds: max(FLOPs / peak, bytes / bandwidth).

    Both are assumed to overlap fully.

    >>> least_time_s(Work(flops=0, bytes=3350), 989.4e12, 3350e9)
    1e-09
    """
    return max(work.flops / peak_flop_per_s, work.bytes / bandwidth_bytes_per_s)


@checked("model_flops", seconds=validated_positive, devices=at_least_one)
def mfu(
    model_flops: int, seconds: float, peak_flop_per_s: float | None, devices: int = 1
) -> float | None:
    """Model FLOPs utilisation: (needed FLOPs / seconds) / (devices · peak FLOP/s).

    None without a peak. Needed FLOPs are what the mathematics requires. Recomputed activations do
    not count: recomputing makes a run slower and its MFU lower. The peak is the dense one of the
    multiplied format. A share above 1 is not clipped: the time or the peak is wrong, or the clock
    was above the peak's.
    Source: Chowdhery et al., "PaLM", arXiv:2204.02311, section 4.1 and appendix B.

    >>> round(mfu(2 * 16384 * 32768 * 8192, 0.16, 66.9e12), 3), mfu(10**12, 1.0, None)
    (0.822, None)
    """
    rate = model_flops / seconds / devices
    return (
        None
        if peak_flop_per_s is None
        else rate / validated_positive("peak_flop_per_s", peak_flop_per_s)
    )


@checked("model_flops", "recomputed_flops")
def hfu(
    model_flops: int,
    recomputed_flops: int,
    seconds: float,
    peak_flop_per_s: float | None,
    devices: int = 1,
) -> float | None:
    """Hardware FLOPs utilisation: ((model + recomputed FLOPs) / s) / (devices · peak).

    None without a peak. Recomputing a whole forward pass (8ND for 6ND) makes it 4/3 of the MFU.
    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    arXiv:2205.05198.

    >>> hfu(6, 2, 1.0, 16.0), mfu(6, 1.0, 16.0)
    (0.5, 0.375)
    """
    return mfu(model_flops + recomputed_flops, seconds, peak_flop_per_s, devices)
