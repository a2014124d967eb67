"""The kernels of STREAM and BabelStream, the length of their arrays, and their bandwidths.

Bytes are those of STREAM (`stream_work`): each array once, without the lines that a processor reads
only to write into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from accounting.checks import validated_choice, validated_int
from accounting.memory import element_bytes
from accounting.roofline import Work
from bench.cache import UNKNOWN_CACHE_BYTES, Caches
from bench.checks import in_fp64
from bench.rounds import Pace, Progress
from prooflops import counted, timing

SCALAR = 3.0
# An array's size in last-level caches: STREAM's rule.
WANTED_MULTIPLE = 4
# An accelerator's bandwidth has a bound; the part of an earlier array that its cache still holds
# adds 1/16 to the figure.
WANTED_DEVICE_MULTIPLE = 16
# Each array's: there are four and temporary ones, beside the flush's buffer.
LARGEST_SHARE_OF_ROOM = 1 / 6
# Longer ones only where these would fit the last-level cache: a virtual machine may state its
# host's, of hundreds of MiB.
LARGEST_CPU_ARRAY_BYTES = {"quick": 2**27, "default": 2**28, "thorough": 2**31}
LEAST_CPU_MULTIPLE = 2
# They take an accelerator some 100 µs and more.
LEAST_DEVICE_ARRAY_BYTES = 2**29
# AMD's largest cards have a last level of 256 MiB, which torch does not tell.
LEAST_HIP_ARRAY_BYTES = WANTED_DEVICE_MULTIPLE * 2**28
MEMORY = "memory"
# The numbers are about 1 and are added in blocks, so roundings grow with the logarithm of their
# count.
SUM_TOLERANCE = 256 * 2.0**-24
# A library's dot product adds in some dozens of partial sums: MKL was off by 2.3e-4 for 2^25
# numbers.
DOT_TOLERANCE_PER_ELEMENT = 2.0**-24 / 512
# One core draws random numbers, many times slower than memory takes them: a longer array repeats so
# many, which is no multiple of a page or a window.
DRAWN = 2**22 + 1
# Windows of an array that are checked, and the elements of one.
WINDOWS, WINDOW = 64, 2**14

# Arrays read, arrays written, and FLOPs per element of the kernels of STREAM and BabelStream.
STREAMS = {
    "copy": (1, 1, 0),  # c = a
    "scale": (1, 1, 1),  # b = s·c
    "add": (2, 1, 1),  # c = a + b
    "triad": (2, 1, 2),  # a = b + s·c
    "sum": (1, 0, 1),  # Σ a; its one result is not counted
    "dot": (2, 0, 2),  # Σ a·b; its one result is not counted
}


def stream_work(kernel: str, elements: int, dtype: str = "fp32") -> Work:
    """FLOPs and bytes of a kernel of STREAMS on arrays of `elements`, as STREAM counts them.

    Each array is counted once for being read or written. Most processors read a line before they
    write into it (write-allocate), which is not counted. Without streaming stores it makes the real
    traffic of copy and scale 3/2, of add and triad 4/3 of these bytes. So a true bandwidth is never
    below the one that follows.

    Raises ValueError for an unknown kernel or dtype, or a negative number of elements.
    Source: McCalpin, "Memory bandwidth and machine balance in current high performance computers",
    1995.

    >>> stream_work("triad", 10**6), stream_work("copy", 10**6, "bf16")
    (Work(flops=2000000, bytes=12000000), Work(flops=0, bytes=4000000))
    """
    read, written, flops = STREAMS[validated_choice("kernel", kernel, STREAMS)]
    return Work(
        flops * validated_int("elements", elements),
        element_bytes((read + written) * elements, dtype),
    )


def bandwidth_of_mix(read_share: float, measured: Mapping[float, float]) -> float:
    """The bandwidth of traffic with this share of reads, from {share: bytes/s} as `measured`.

    Between two measured shares the time per byte is interpolated, as if the traffic were made of
    both; beyond the outermost it is that of the outermost. Reads and writes do not cost alike, so a
    kernel that mostly reads must be held against a roof measured by reading.

    >>> measured = {1.0: 80e9, 0.5: 40e9}
    >>> [bandwidth_of_mix(share, measured) / 1e9 for share in (1.0, 0.75, 0.5, 0.2)]
    [80.0, 53.333333333333336, 40.0, 40.0]
    """
    shares = sorted(measured)
    below = max((share for share in shares if share <= read_share), default=shares[0])
    above = min((share for share in shares if share >= read_share), default=shares[-1])
    if above <= below:
        return measured[below]
    part = (read_share - below) / (above - below)
    return 1 / ((1 - part) / measured[below] + part / measured[above])


@dataclass(frozen=True)
class Size:
    """The length of a row's arrays, their level of memory, and a label if that is doubtful.

    No level is doubtful whose arrays are as long as wanted.
    """

    elements: int
    level: str
    # An array's size in last-level caches; None where nobody names the cache.
    multiple: float | None
    label: str = ""


def wanted_multiple(device: torch.device) -> int:
    """The length of an array in a memory benchmark, in multiples of the last-level cache."""
    return WANTED_MULTIPLE if device.type == "cpu" else WANTED_DEVICE_MULTIPLE


def memory_size(
    device: torch.device, pace: str, caches: Caches, room_bytes: float = math.inf
) -> Size:
    """Arrays of 4 times the last-level cache each, on an accelerator 16, of fp32.

    They are shorter, and labelled, if together they do not fit into `room_bytes`, or on a CPU if
    the pace allows no longer ones. Skips if they fit into the cache, because their rate would be
    that of neither memory nor cache.
    """
    known = caches.last_level_bytes
    wanted = wanted_multiple(device) * (known or UNKNOWN_CACHE_BYTES)
    if device.type == "cpu":
        size = min(wanted, max(LARGEST_CPU_ARRAY_BYTES[pace], LEAST_CPU_MULTIPLE * (known or 0)))
    else:
        size = max(wanted, LEAST_HIP_ARRAY_BYTES if torch.version.hip else LEAST_DEVICE_ARRAY_BYTES)
    size = min(size, int(room_bytes * LARGEST_SHARE_OF_ROOM)) if room_bytes < math.inf else size
    if not known:
        return Size(size // 4, MEMORY, None, "cache unknown")
    multiple = size / known
    if multiple <= 1:
        pytest.skip(
            f"memory bandwidth was not measured: arrays of {size / 2**20:.0f} MiB, the longest "
            f"that free memory allows, fit into the last-level cache of {known / 2**20:.0f} MiB"
        )
    label = "" if multiple >= wanted_multiple(device) else f"arrays are {multiple:.2g}x the cache"
    return Size(size // 4, MEMORY, multiple, label)


def operand_elements(device: torch.device, pace: str, size: Size) -> int:
    """The elements of a kernel's operand: those of a stream's array, within the pace on a CPU.

    A kernel takes many times as long as a stream. A short operand is flushed from the cache first.
    """
    longest = LARGEST_CPU_ARRAY_BYTES[pace] // 4
    return min(size.elements, longest) if device.type == "cpu" else size.elements


def cache_size(level: str, arrays: int, known: Mapping[str, int]) -> Size | None:
    """Arrays that together half fill a level of cache.

    None where the device names no such level, or the part is tiny.

    An L1 benchmark takes less time than the dispatch of its operator; its launch share says so.

    >>> cache_size("L2", 2, {"L1": 2**16, "L2": 2**21})
    Size(elements=131072, level='L2', multiple=0.25, label='')
    """
    if level not in known:
        return None
    half = known[level] // 2
    inner = max((known[other] for other in known if other < level), default=0)
    # Nothing tells this level from the one within it.
    if half <= inner:
        return None
    elements = half // arrays // 4
    return Size(elements, level, 4 * elements / max(known.values()))


@dataclass(frozen=True)
class Stream:
    """One kernel on its arrays: the call, and its operands. The result goes into a given array."""

    kernel: str
    run: Callable[[], Tensor]
    a: Tensor
    b: Tensor

    @property
    def work(self) -> Work:
        return stream_work(self.kernel, self.a.numel(), "fp32")

    @property
    def read_share(self) -> float:
        """The share of its bytes that are read."""
        read, written, _ = STREAMS[self.kernel]
        return read / (read + written)

    def expected(self, part: slice = slice(None)) -> Tensor:
        """The result in fp64; of a reduction, always of all."""
        if self.kernel == "sum":
            return torch.stack([in_fp64(a).sum() for a in self.a.split(2**22)]).sum()
        if self.kernel == "dot":
            pairs = zip(self.a.split(2**22), self.b.split(2**22), strict=True)
            return torch.stack([torch.dot(in_fp64(a), in_fp64(b)) for a, b in pairs]).sum()
        a, b = in_fp64(self.a[part]), in_fp64(self.b[part])
        return {"copy": a, "scale": SCALAR * a, "add": a + b, "triad": a + SCALAR * b}[self.kernel]

    def check(self, got: Tensor) -> None:
        """Raises AssertionError if the result differs from fp64's by more than rounding.

        Long arrays are checked in 64 windows. Every product and sum may round once: copy never,
        scale and add once, triad twice.
        """
        __tracebackhide__ = True
        if self.kernel in ("sum", "dot"):
            windows, tolerance = [slice(None)], SUM_TOLERANCE
            if self.kernel == "dot":
                tolerance = dot_tolerance(self.a.numel())
        else:
            last = max(got.numel() - WINDOW, 0)
            starts = sorted({last * place // (WINDOWS - 1) for place in range(WINDOWS)})
            windows = [slice(start, start + WINDOW) for start in starts]
            tolerance = {"copy": 0.0, "scale": 2.0**-24, "add": 2.0**-24, "triad": 2.0**-23}[
                self.kernel
            ]
        for window in windows:
            exact = self.expected(window)
            found = in_fp64(got if got.dim() == 0 else got[window])
            error = float(((found - exact).abs() / exact.abs()).max())
            # A NaN fails.
            assert error <= tolerance, (
                f"{self.kernel} differs from fp64 by {error:.3g}, but rounding explains at most "
                f"{tolerance:.3g}"
            )


def dot_tolerance(elements: int) -> float:
    """The relative error of a dot product of positive numbers that rounding explains.

    >>> dot_tolerance(2**10) == SUM_TOLERANCE, dot_tolerance(2**25)
    (True, 0.00390625)
    """
    return max(SUM_TOLERANCE, elements * DOT_TOLERANCE_PER_ELEMENT)


def positive_numbers(elements: int, device: torch.device) -> Tensor:
    """Random numbers about 1."""
    drawn = torch.rand(min(elements, DRAWN), device=device) + 0.5
    return drawn.repeat(math.ceil(elements / DRAWN))[:elements]


class Arrays:
    """Three arrays of positive random numbers about 1, shared by the kernels of one size.

    None is negative, so that no sum cancels.
    """

    def __init__(self, elements: int, device: torch.device) -> None:
        self.a, self.b, self.out = (positive_numbers(elements, device) for _ in range(3))
        self.one = torch.zeros((), device=device)

    def stream(self, kernel: str) -> Stream:
        a, b, out, one = self.a, self.b, self.out, self.one
        runs: dict[str, Callable[[], Tensor]] = {
            "copy": lambda: out.copy_(a),
            "scale": lambda: torch.mul(a, SCALAR, out=out),
            "add": lambda: torch.add(a, b, out=out),
            "triad": lambda: torch.add(a, b, alpha=SCALAR, out=out),
            "sum": lambda: torch.sum(a, dim=0, out=one),
            "dot": lambda: torch.dot(a, b, out=one),
        }
        return Stream(kernel, runs[kernel], a, b)


def assert_bytes(
    work: Work, function: Callable[[], object], uncounted: int = 0
) -> counted.CountedWork:
    """Raises AssertionError where `function` reads and writes other bytes than those declared.

    `uncounted`: bytes of results that the formula leaves out.
    """
    __tracebackhide__ = True
    with counted.flops() as seen:
        function()
    assert seen.moved_bytes == work.bytes + uncounted, (
        f"{work.bytes} bytes are declared ({uncounted} more are uncounted), but the operators read "
        f"and wrote {seen.moved_bytes}"
    )
    return seen


@dataclass
class Bandwidths:
    """The best bandwidths of this machine's memory in this run, by the share of reads.

    The fixture `bandwidths`: the roofs of `bench/test_roofline.py`, from the rows of
    `bench/test_bandwidth.py` as far as there are any. Of kernels with the same share, the best
    counts.
    """

    device: torch.device
    pace: Pace
    size: Size
    progress: Progress
    _kernels: set[str] = field(default_factory=set)
    _measured: dict[float, float] = field(default_factory=dict)

    def note(self, stream: Stream, seconds: float) -> None:
        """Keeps what a call took."""
        self._kernels.add(stream.kernel)
        rate = stream.work.bytes / seconds
        self._measured[stream.read_share] = max(self._measured.get(stream.read_share, 0.0), rate)

    @property
    def measured(self) -> dict[float, float]:
        """Bytes per second by read share; missing ones are measured at the first use."""
        missing = [kernel for kernel in STREAMS if kernel not in self._kernels]
        if missing:
            arrays = Arrays(self.size.elements, self.device)
            for kernel in missing:
                self.progress(
                    f"{kernel} through {self.size.elements} elements an array",
                    self.pace.measure_s / 2,
                )
                stream = arrays.stream(kernel)
                self.note(stream, self._median_s(stream.run))
        return self._measured

    def bytes_per_s(self, read_share: float) -> float:
        """The roof of traffic with this share of reads."""
        return bandwidth_of_mix(read_share, self.measured)

    def raised(self, read_share: float, function: Callable[[], object], moved: int) -> float:
        """The roof at this share after timing once more a function that exceeded it."""
        rate = max(self.bytes_per_s(read_share), moved / self._median_s(function))
        self._measured[read_share] = rate
        return rate

    def _median_s(self, function: Callable[[], object]) -> float:
        once = timing.time(function, self.device, warmup=1, rounds=2).median_s
        rounds = min(max(math.ceil(self.pace.measure_s / 2 / max(once, 1e-9)), 3), 100)
        return timing.time(function, self.device, warmup=0, rounds=rounds).median_s
