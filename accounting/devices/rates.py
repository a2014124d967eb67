"""The peak of a device per dtype, its bandwidth and its memory; and the peaks of CPUs.

A device, slice or dtype without a figure on record has peak None: no other device's figure is used
instead.

>>> [peak_flop_per_s(name, "bf16") / 1e12 for name in ("NVIDIA H100 80GB HBM3", "H100 PCIe")]
[989.4, 756.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accounting.checks import (
    at_least_one,
    checked,
    validated_choice,
    validated_instance,
    validated_positive,
)
from accounting.devices.lookup import device_of
from accounting.devices.peaks import CPU_PATHS, TABLE, Accelerator, Figure
from accounting.formats import FORMATS, Dtype, dtype_name

# The columns of the table that hold the peak of each dtype, the preferred one first; by units and
# accumulator.
_COLUMNS: dict[str, dict[str, list[str]]] = TABLE["columns"]
_MATRIX_COLUMNS = _COLUMNS["matrix"]
MATRIX_DTYPES = tuple(_MATRIX_COLUMNS)  # those that a peak of matrix products can be stated for
AT_VECTOR_CLOCK = {
    "fp64",
    "fp64_tensor",
    "fp32",
    "fp32_tensor",
}  # fp64_tensor too: the vendors state it so

# Bytes that a process uses before its first tensor: read on one H200 (driver 580, torch 2.11).
CONTEXT_BYTES = 543_162_368
# torch sees less than the memory on the label, whose GB are GiB: 99.1 % of an H200's. Cards with
# error correction in their memory show less, so this is lower.
SHARE_SEEN = 0.985
SEEN_BYTES = {"H200 SXM 141GB": 150_109_880_320}

# The formats that tensors on a kind of device cannot have in torch.
_LACKING = {
    "mps": {name for name in FORMATS if name == "fp64" or name.startswith(("fp8", "fp4", "e8m0"))}
}


def has_dtype(kind: str, dtype: Dtype) -> bool:
    """True if torch has tensors of this dtype on devices of this kind (`torch.device.type`).

    Apple's GPUs have no fp64, and torch's back end for them no 8-bit floats. Whether a device
    multiplies a dtype is another question: `peak_flop_per_s`. Raises ValueError for an unknown
    dtype.

    >>> has_dtype("cuda", "fp64"), has_dtype("mps", "fp64"), has_dtype("mps", "bf16")
    (True, False, True)
    """
    return dtype_name(dtype) not in _LACKING.get(validated_instance("kind", kind, str), ())


def peak_flop_per_s(
    device: str | Accelerator | None,
    dtype: Dtype,
    *,
    path: str = "matrix",
    accumulate: str = "fp32",
) -> float | None:
    """The vendor's dense peak of a device in FLOP/s; None if not on record.

    `device` is a row or a name. int8 counts operations. `path="matrix"` uses the matrix units if
    there are any: fp64 on an A100 is 19.5 TFLOP/s. `path="vector"` (fp64 and fp32 only) bounds
    elementwise kernels: 9.7. fp32 is true fp32; pass tf32 if TF32 is allowed.
    `accumulate="fp16"` is twice as fast on GeForce cards, but not torch.matmul's default.
    Raises ValueError for an unknown dtype, and for a name that fits several devices, such as
    "H100", naming them.

    >>> card = "NVIDIA GeForce RTX 4090"
    >>> [peak_flop_per_s(card, "fp16", accumulate=a) / 1e12 for a in ("fp32", "fp16")]
    [165.2, 330.3]
    """
    column = _column(device_of(device), dtype, path, accumulate)
    return None if column is None else flop_per_s(column[1])


@checked(clock_hz=validated_positive)
def clock_scaled_peak_flop_per_s(
    device: str | Accelerator | None,
    dtype: Dtype,
    clock_hz: float,
    *,
    path: str = "matrix",
    accumulate: str = "fp32",
) -> float | None:
    """The peak at the clock that ran: peak · clock / nominal clock.

    None without a peak or a nominal clock. A card may exceed its nominal peak by its clock: the
    H100's 989.4 is at 1830 MHz, and the card boosts to 1980. No measurement may exceed the scaled
    peak. Matrix and vector units may have different nominal clocks.
    Raises ValueError for a clock that is not above 0 or an unknown dtype.

    >>> round(clock_scaled_peak_flop_per_s("NVIDIA H100 80GB HBM3", "bf16", 1980e6) / 1e12, 1)
    1070.5
    """
    row = device_of(device)
    column = _column(row, dtype, path, accumulate)
    nominal = None if row is None or column is None else nominal_clock_mhz(row, column[0])
    if column is None or nominal is None:
        return None
    return flop_per_s(column[1]) * clock_hz / (nominal * 1e6)


def bandwidth_bytes_per_s(device: str | Accelerator | None) -> float | None:
    """The vendor's memory bandwidth in bytes per second; None if not on record.

    >>> bandwidth_bytes_per_s("NVIDIA H100 80GB HBM3") / 1e9
    3350.0
    """
    row = device_of(device)
    return None if row is None or row.bandwidth is None else round(row.bandwidth.value * 1e3) * 1e6


def memory_bytes(device: str | Accelerator | None) -> int | None:
    """Bytes of a device's memory; None unless it states one size.

    The GB of its label are in effect GiB. The driver keeps about 1 %: an H100 of 80 GB offers 79.19
    GiB.

    >>> memory_bytes("H100 PCIe") / 2**30, memory_bytes("V100 SXM2")  # sold with 16 and with 32 GB
    (80.0, None)
    """
    row = device_of(device)
    sizes = () if row is None else row.memory_sizes
    return sizes[0] if len(sizes) == 1 else None


def usable_bytes(device: str | Accelerator | None) -> int | None:
    """Bytes that torch can reserve on a card: what it sees of the memory, less the CUDA context.

    None for a device whose memory is not on record as one size. Read on an H200; of other cards
    98.5 % of the memory less the same context, which is an estimate.

    >>> usable_bytes("NVIDIA H200"), round(usable_bytes("H100 SXM") / 2**30, 1)
    (149566717952, 78.3)
    """
    row = device_of(device)
    labelled = memory_bytes(row)
    if row is None or labelled is None:
        return None
    return SEEN_BYTES.get(row.label, int(SHARE_SEEN * labelled)) - CONTEXT_BYTES


def nominal_clock_mhz(row: Accelerator, column: str) -> float | None:
    """The clock in MHz that the figure in this column of the table assumes; None if not on record.

    >>> [nominal_clock_mhz(device_of(name), "bf16") for name in ("H100 SXM", "H20")]
    [1830, None]
    """
    validated_choice("column", column, row.peaks)
    return row.clocks_mhz[0 if column in AT_VECTOR_CLOCK else 1]


def flop_per_s(figure: Figure) -> float:
    """A figure in TFLOP/s as FLOP/s, without the rounding error of a product with 1e12.

    >>> flop_per_s(device_of("H100 SXM").peaks["bf16"])
    989400000000000.0
    """
    return round(figure.printed * 1e6) * 1e6 / figure.divisor


def _column(
    row: Accelerator | None, dtype: Dtype, path: str, accumulate: str
) -> tuple[str, Figure] | None:
    """The first column on record for this dtype, with its figure."""
    name = dtype_name(dtype)
    validated_choice("path", path, ("matrix", "vector"))
    validated_choice("accumulate", accumulate, ("fp32", "fp16"))
    if row is None:
        return None
    columns = _COLUMNS[
        "vector" if path == "vector" else "matrix" if accumulate == "fp32" else "fp16 accumulator"
    ]
    return next(
        ((column, row.peaks[column]) for column in columns.get(name, ()) if column in row.peaks),
        None,
    )


def cpu_flops_per_cycle(
    features: Mapping[str, object] | Iterable[str], fma_units_512: int = 2
) -> dict[str, int]:
    """The most FLOPs per cycle and dtype that one core's instruction sets allow.

    A dtype without a figure is absent. Units · lanes · 2: two 512-bit units make 2 · 16 · 2 = 64 in
    fp32. CPUID does not state the number of units. The default of 2 is an upper bound, twice too
    high on Zen 4 and client Xeons (pass 1). AVX512_BF16 is likewise the fastest core's (128, Zen 5;
    Sapphire Rapids 32). The result is empty for Arm, whose features do not identify the core; see
    `accounting.devices.CPU_PATHS`. `features`: `torch.cpu.get_capabilities()`, or names from it.
    Raises ValueError for units other than 1 and 2.

    >>> cpu_flops_per_cycle(["avx2", "fma3"])
    {'fp32': 32, 'fp64': 16}
    """
    validated_choice("fma_units_512", fma_units_512, (1, 2))
    if isinstance(features, str):
        raise TypeError(f"features must be a mapping or a collection of names, got {features!r}")
    present = {name for name in features if not isinstance(features, Mapping) or features[name]}
    fastest: dict[str, int] = {}
    unsettled: set[str] = set()
    for path in CPU_PATHS:
        if not path.requires or not present.issuperset(path.requires):
            continue
        if path.fma_units_512 not in {None, fma_units_512}:
            continue
        for dtype, flops in path.flops_per_cycle.items():
            if flops is None:
                unsettled.add(dtype)
            else:
                fastest[dtype] = max(flops, fastest.get(dtype, 0))
    return {dtype: flops for dtype, flops in fastest.items() if dtype not in unsettled}


@checked(cores=at_least_one, clock_hz=validated_positive)
def cpu_peak_flop_per_s(
    features: Mapping[str, object] | Iterable[str],
    cores: int,
    clock_hz: float,
    dtype: Dtype,
    fma_units_512: int = 2,
) -> float | None:
    """The most FLOP/s of a CPU: cores · clock · FLOPs per cycle; None if the dtype has no figure.

    The clock is the sustained one under this instruction mix. One Xeon ran AVX2 at 2.88, AMX at
    2.78 and AVX-512 in fp32 at 2.48 GHz. `cores` are physical. In a virtual machine both are
    guesses; use the measured ceiling.
    Raises ValueError for less than one core, a clock that is not above 0, or an unknown dtype.

    >>> cpu_peak_flop_per_s(["amx_bf16"], cores=56, clock_hz=2.46e9, dtype="bf16") / 1e12
    141.06624
    """
    name = dtype_name(dtype)
    flops = cpu_flops_per_cycle(features, fma_units_512).get(name)
    return None if flops is None else cores * clock_hz * flops
