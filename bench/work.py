"""Roofline arithmetic that only benchmarks need: the work of kernels, the bandwidth of a mix, the limit of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from accounting.checks import validated_choice, validated_int, validated_ints, validated_positive
from accounting.memory import element_bytes
from accounting.roofline import FLOPS_PER_ELEMENT, Work

# Arrays read, arrays written, and FLOPs per element of the kernels of STREAM and BabelStream.
STREAMS = {
    "copy": (1, 1, 0),  # c = a
    "scale": (1, 1, 1),  # b = s·c
    "add": (2, 1, 1),  # c = a + b
    "triad": (2, 1, 2),  # a = b + s·c
    "sum": (1, 0, 1),  # Σ a; its one result is not counted
    "dot": (2, 0, 2),  # Σ a·b; its one result is not counted
}
LAUNCH_SHARE = 0.5  # of the time: from here on an operation is bound by its launch


def stream_work(kernel: str, elements: int, dtype: str = "fp32") -> Work:
    """FLOPs and bytes of a kernel of STREAM on arrays of `elements`, as STREAM counts them; see STREAMS.

    Each array is counted once for being read or written. Not counted: the line that most processors read before they
    write into it (write-allocate), which without streaming stores makes the real traffic of copy and scale 3/2, of add
    and triad 4/3 of these bytes; so a true bandwidth is never below the one that follows.

    Raises ValueError for an unknown kernel or dtype, or a negative number of elements.
    Source: McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995.

    >>> stream_work("triad", 10**6), stream_work("copy", 10**6, "bf16")
    (Work(flops=2000000, bytes=12000000), Work(flops=0, bytes=4000000))
    """
    read, written, flops = STREAMS[validated_choice("kernel", kernel, STREAMS)]
    return Work(flops * validated_int("elements", elements), element_bytes((read + written) * elements, dtype))


def composed_gelu_work(shape: Sequence[int], dtype: str = "bf16") -> Work:
    """FLOPs and ideal bytes of a GELU written as five operations: each reads and writes memory.

    x/√2, erf, +1, ·x, ·½: six arrays read, for the product with x reads two, and five written: 11 elements moved for
    the 2 of one fused kernel, at the same FLOPs.

    >>> from accounting.roofline import elementwise_work
    >>> composed_gelu_work((1024,)).bytes / elementwise_work((1024,), "gelu").bytes
    5.5
    """
    elements = prod(validated_ints("shape", shape))
    return Work(FLOPS_PER_ELEMENT["gelu"] * elements, element_bytes(11 * elements, dtype))


def bandwidth_of_mix(read_share: float, measured: Mapping[float, float]) -> float:
    """The bandwidth of traffic with this share of reads, from those `measured` at some shares: {share: bytes/s}.

    Between two measured shares the time per byte is interpolated, as if the traffic were made of both; beyond the
    outermost it is that of the outermost. Reads and writes do not cost alike, so a kernel that mostly reads must be
    held against a roof measured by reading.

    Raises ValueError where nothing was measured, for a share outside of 0 to 1, or a bandwidth that is not above 0.

    >>> measured = {1.0: 80e9, 0.5: 40e9}
    >>> [bandwidth_of_mix(share, measured) / 1e9 for share in (1.0, 0.75, 0.5, 0.2)]
    [80.0, 53.333333333333336, 40.0, 40.0]
    """
    if not 0 <= read_share <= 1:
        raise ValueError(f"read_share must be from 0 to 1, got {read_share}")
    if not measured:
        raise ValueError("measured must have at least one bandwidth, got none")
    shares = sorted(measured)
    for share in shares:
        validated_positive(f"the bandwidth at {share}", measured[share])
    below = max((share for share in shares if share <= read_share), default=shares[0])
    above = min((share for share in shares if share >= read_share), default=shares[-1])
    if above <= below:
        return measured[below]
    part = (read_share - below) / (above - below)
    return 1 / ((1 - part) / measured[below] + part / measured[above])


def bound_of(intensity: float, ridge: float, launch_share: float = 0.0) -> str:
    """The limit of an operation: "launch" if that takes half of its time, else "memory" below the ridge or "compute".

    By its place under the roofs, not by its distance from them: if its share of the attainable rate is low, the kernel
    itself is the limit.

    Raises ValueError for a negative intensity or share, a ridge that is not above 0, or NaN.

    >>> bound_of(0.25, 295.0), bound_of(341.0, 295.0), bound_of(0.25, 295.0, launch_share=0.7)
    ('memory', 'compute', 'launch')
    """
    below_ridge = validated_positive("intensity", intensity, or_zero=True) < validated_positive("ridge", ridge)
    if validated_positive("launch_share", launch_share, or_zero=True) >= LAUNCH_SHARE:
        return "launch"
    return "memory" if below_ridge else "compute"
