"""Number formats by torch and by the published specifications: the other side of every check of a format.

Each `…_disagreement` returns a sentence about the first difference it finds, or None where all agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from accounting.formats import BlockFormat, Format, IntegerFormat, block_format_of
from test_claims.oracles.published import TABLES
from test_claims.strategies import with_dtype

CPU = torch.device("cpu")
FP32_MAX = torch.finfo(torch.float32).max
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
# A name of ours that torch has no dtype for, and never had.
NOT_IN_TORCH = frozenset({"tf32", "int4"})


class Published(NamedTuple):
    """Constants as a specification prints them, and how many patterns are infinities, NaNs and zeros."""

    storage_bits: int
    max: float
    least_normal: float
    least_subnormal: float | None
    eps: float
    specials: tuple[int, int, int] | None = None


PUBLISHED = {
    name: Published(*(tuple(value) if isinstance(value, list) else value or None for value in row))
    for name, row in TABLES["formats"].items()
}
PUBLISHED_INTEGERS = {name: tuple(row) for name, row in TABLES["integers"].items()}
E2M1_GRID = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
)  # OCP MX 1.0 table 5, in the order of the patterns
# Element's grid, exponent of its max, block size, bits per element: OCP MX 1.0 table 1; arXiv:2509.25149 section 2.
PUBLISHED_BLOCKS = {
    "mxfp8_e4m3": ("float8_e4m3fn", 8, 32, 8.25, 0),
    "mxfp8_e5m2": ("float8_e5m2", 15, 32, 8.25, 0),
    "mxfp4": (None, 2, 32, 4.25, 0),
    "nvfp4": (None, None, 16, 4.5, 32),
}
# In every block a largest value that no element reaches, and others down to below its least subnormal.
BLOCK_PROBES = tuple(
    1.9 * 1000.0**block * 0.47**place for block in range(-2, 3) for place in range(32)
)


def torch_dtype(row: Format | IntegerFormat) -> torch.dtype | None:
    """torch's dtype of this format, None where this torch has none."""
    return getattr(torch, row.torch_name, None) if row.torch_name else None


def on_the_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values in fp64 on the CPU; all devices can cast to fp32, which holds every smaller format."""
    wide = tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
    return wide.cpu().double()


def values_of_patterns(
    dtype: torch.dtype, patterns: Sequence[int] | None, device: torch.device
) -> torch.Tensor:
    """The values that torch reads in bit patterns (all of them by default), in fp64."""
    bits = 8 * dtype.itemsize
    chosen = range(1 << bits) if patterns is None else patterns
    device = with_dtype(device, dtype)
    signed = [p - (1 << bits) if p >> (bits - 1) and bits > 8 else p for p in chosen]
    return on_the_host(torch.tensor(signed, dtype=INTEGERS[bits], device=device).view(dtype))


def cast(values: torch.Tensor, dtype: torch.dtype, device: torch.device = CPU) -> torch.Tensor:
    """`values`, given in fp32, after a cast to `dtype` on `device`, which is the same for all at once and for few."""
    assert (
        values.dtype == torch.float32
    )  # torch's casts to the small formats go through fp32: fp64 rounds twice
    given = values.to(with_dtype(device, dtype))
    together, few = (on_the_host(each.to(dtype)) for each in (given, given.flatten()[-7:]))
    same = repr(few.tolist()) == repr(together.flatten()[-7:].tolist())
    assert same, f"a cast to {dtype} of the last 7 gives {few}, but of all {together.flatten()}"
    return together


def cast_of(value: float, dtype: torch.dtype, device: torch.device = CPU) -> float:
    """One value, rounded to fp32, after a cast to `dtype` on `device`; among as many as are cast as vectors."""
    return float(cast(torch.tensor([value] * 33, dtype=torch.float32), dtype, device)[0])


def overflow_policy(dtype: torch.dtype, device: torch.device) -> str:
    """Result of a cast of fp32's largest value on this device: inf, saturate or nan."""
    value = cast(torch.tensor([FP32_MAX]), dtype, device).item()
    return "inf" if math.isinf(value) else "nan" if math.isnan(value) else "saturate"


def rounding_probes(grid: torch.Tensor) -> torch.Tensor:
    """Every positive value of an ascending grid, every midpoint, fp32's neighbours of midpoints; and beyond its end.

    Of the neighbours one midpoint in seven is enough in a large grid: 7 divides no power of two, so that all places of
    the fraction come up, in many binades.
    """
    ends = torch.cat([grid.new_zeros(1), grid, 2 * grid[-1:] - grid[-2:-1]])
    ties = ((ends[:-1] + ends[1:]) / 2).float()
    some = torch.cat([ties[:: 7 if len(ties) > 1000 else 1], ties[:1], ties[-1:]])
    infinity = torch.tensor(math.inf)
    far = torch.tensor([0.0, FP32_MAX])
    return torch.cat(
        [grid.float(), ties, torch.nextafter(some, -infinity), torch.nextafter(some, infinity), far]
    )


def nearest_even(values: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """The nearest element of an ascending grid from 0, sign kept, ties to the even index, saturating: by search."""
    magnitude = values.abs().clamp(max=grid[-1])
    above = torch.searchsorted(grid, magnitude).clamp(min=1, max=len(grid) - 1)
    below = above - 1
    down = magnitude - grid[below]
    up = grid[above] - magnitude
    to_above = (up < down) | ((up == down) & (above % 2 == 0))
    return torch.where(to_above, grid[above], grid[below]).copysign(values)


@lru_cache(maxsize=64)
def decoded(row: Format) -> torch.Tensor:
    """Our decoding of every pattern."""
    assert row.bits <= 16, (
        f"{row.name} has {row.bits} bits: that is no small format, whose patterns can all be decoded"
    )
    return torch.tensor(
        [row.decode(pattern) for pattern in range(1 << row.bits)], dtype=torch.float64
    )


def fields_counted(values: torch.Tensor, bits: int) -> tuple[int, int]:
    """Exponent and fraction bits of a format, counted from all its values: 2^f of them lie in [1, 2)."""
    fraction_bits = int(math.log2(int(((values >= 1) & (values < 2)).sum())))
    return bits - int((values < 0).any()) - fraction_bits, fraction_bits


def difference(
    what: str, got: torch.Tensor, should: torch.Tensor, label: Callable[[int], str]
) -> str | None:
    """A sentence about the first place where two tensors differ; NaNs are equal, and -0 is not +0."""
    same = ((got == should) & (got.signbit() == should.signbit())) | (got.isnan() & should.isnan())
    if bool(same.all()):
        return None
    first = int((~same).nonzero()[0])
    count = int((~same).sum())
    return (
        f"{what}: accounting gives {got[first].item()!r}, but should give {should[first].item()!r} "
        f"[{label(first)}; {count} of {len(same)} differ]"
    )


@lru_cache(maxsize=64)
def decode_disagreement(row: Format, device: torch.device = CPU) -> str | None:
    """Our decoding against torch's: every pattern of up to 16 bits, every exponent with chosen fractions above."""
    dtype = torch_dtype(row)
    shift = 0
    if row.name == "tf32":  # fp32 with the low 13 fraction bits zero
        dtype = torch.float32
        shift = 13
    if row.name == "fp4_e2m1":
        should = torch.tensor([*E2M1_GRID, *(-value for value in E2M1_GRID)], dtype=torch.float64)
        return difference("fp4_e2m1 decode", decoded(row), should, lambda i: f"pattern {i:#x}")
    if dtype is None:
        return None
    if row.bits <= 16:
        should = values_of_patterns(dtype, None, device)
        return difference(f"{row.name} decode", decoded(row), should, lambda i: f"pattern {i:#x}")
    one = 1 << row.fraction_bits
    fractions = (0, 1, one // 2, one // 3, one - 1)
    exponents = range(
        0, 1 << (1 + row.exponent_bits), 3
    )  # the sign included; 3 divides 2^n - 1: all ones is there
    patterns = [exponent * one + fraction for exponent in exponents for fraction in fractions]
    # A device may lack fp64 (MPS), and reading a bit pattern back is no computation: the host can read it.
    should = values_of_patterns(dtype, [pattern << shift for pattern in patterns], CPU)
    got = torch.tensor([row.decode(pattern) for pattern in patterns], dtype=torch.float64)
    return difference(f"{row.name} decode", got, should, lambda i: f"pattern {patterns[i]:#x}")


@lru_cache(maxsize=64)
def rounding_disagreement(row: Format, device: torch.device = CPU) -> str | None:
    """Our rounding against torch's cast; for fp8 with the overflow policy that this torch has on this device."""
    dtype = torch_dtype(row)
    if row.name == "fp4_e2m1":
        probes = rounding_probes(torch.tensor(E2M1_GRID[1:], dtype=torch.float64))
        should = nearest_even(probes.double(), torch.tensor(E2M1_GRID, dtype=torch.float64))
        got = torch.tensor(
            [row.rounded(x, overflow="saturate") for x in probes.tolist()], dtype=torch.float64
        )
        return difference("fp4_e2m1 rounding", got, should, lambda i: f"of {probes[i].item()!r}")
    if dtype is None or row.bits > 16:
        return None
    table = values_of_patterns(dtype, None, device)
    probes = rounding_probes(table[(table > 0) & table.isfinite()].sort().values)
    if not row.subnormals:
        # torch's cast to e8m0 rounds fp32's subnormals above 2^-127 up, the nearest value being below.
        probes = probes[(probes <= 2.0**-127) | (probes >= 1.5 * 2.0**-127)]
        device = CPU  # no specification says how e8m0 is rounded to, so that another device may do otherwise
    else:
        probes = torch.cat([probes, -probes[::7]])
    # Only of fp8 does the policy differ between versions; the 16-bit formats follow IEEE 754.
    policy = overflow_policy(dtype, device) if row.bits == 8 else "inf"
    got = torch.tensor(
        [row.rounded(x, overflow=policy) for x in probes.tolist()], dtype=torch.float64
    )
    should = cast(probes, dtype, device)
    return difference(
        f"{row.name} rounding ({policy})", got, should, lambda i: f"of {probes[i].item()!r}"
    )


def published_disagreement(row: Format) -> str | None:
    """Our derived constants against the published ones."""
    if row.name not in PUBLISHED:
        return f"{row.name}: no specification is known under this name"
    published = PUBLISHED[row.name]
    for field in ("storage_bits", "max", "least_normal", "least_subnormal", "eps"):
        got = getattr(row, field)
        should = getattr(published, field)
        if got != should:
            return f"{row.name}.{field}={got!r}, but should be {should!r}"
    if published.specials is not None:
        values = decoded(row)
        got = (int(values.isinf().sum()), int(values.isnan().sum()), int((values == 0).sum()))
        if got != published.specials:
            return f"{row.name} has {got} infinities, NaNs and zeros, but should have {published.specials}"
        has = (row.has_inf, row.has_nan, row.has_signed_zero)
        if has != (published.specials[0] > 0, published.specials[1] > 0, published.specials[2] > 1):
            return f"{row.name} says {has} of having infinity, NaN and a signed zero, its patterns {published.specials}"
    return None


def finfo_disagreement(row: Format) -> str | None:
    """Our derived constants against torch.finfo; where that is wrong or silent, see the claim dtype.finfo."""
    dtype = torch_dtype(row)
    if dtype is None:
        return None
    packed = 2 if row.name == "fp4_e2m1" else 1
    if 8 * dtype.itemsize != packed * row.storage_bits:
        return f"{row.name} is stored in {row.storage_bits} bits, but {dtype} packs {packed} in {8 * dtype.itemsize}"
    try:
        info = torch.finfo(dtype)
        least = ("max", -info.min) if row.signed else ("least_normal", info.min)
        constants = [
            least,
            ("max", info.max),
            ("least_normal", info.smallest_normal),
            ("storage_bits", info.bits),
        ]
    except (TypeError, NotImplementedError):
        if packed == 2 and dtype.is_floating_point:  # torch.finfo does not know packed dtypes
            return None
        return f"{row.name}.torch_name={row.torch_name!r}, but that is no floating-point dtype"
    if row.name != "fp8_e5m2fnuz":  # torch says 0.125; two fraction bits make 0.25
        constants.append(("eps", info.eps))
    for field, should in constants:
        if getattr(row, field) != should:
            return f"{row.name}.{field}={getattr(row, field)!r}, but torch.finfo({dtype}) says {should!r}"
    return None


def integer_disagreement(row: IntegerFormat) -> str | None:
    """Our integer formats against the published limits, and against torch's reading of every pattern."""
    if row.name not in PUBLISHED_INTEGERS:
        return f"{row.name}: no integer format is known under this name"
    got = (row.storage_bits, row.min, row.max)
    if got != PUBLISHED_INTEGERS[row.name]:
        return f"{row.name} has bits, min and max {got}, but should have {PUBLISHED_INTEGERS[row.name]}"
    dtype = torch_dtype(row)
    if dtype is None:
        return None
    limits = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if (row.min, row.max) != limits:
        return f"{row.name} goes from {row.min} to {row.max}, but {dtype} from {limits[0]} to {limits[1]}"
    patterns = sorted(
        {
            p
            for p in (0, 1, row.max - 1, row.max, row.max + 1, (1 << row.bits) - 1)
            if not p >> row.bits
        }
    )
    packed = b"".join(p.to_bytes(row.storage_bits // 8, "little") for p in patterns)
    if len(packed) != len(patterns) * dtype.itemsize:
        return (
            f"{row.name} is stored in {row.storage_bits} bits, but {dtype} in {8 * dtype.itemsize}"
        )
    should = [int(value) for value in torch.frombuffer(bytearray(packed), dtype=dtype).tolist()]
    ours = [row.decode(pattern) for pattern in patterns]
    return (
        None
        if ours == should
        else f"{row.name} decodes {patterns} to {ours}, but torch to {should}"
    )


def disagreement(row: Format | IntegerFormat, device: torch.device = CPU) -> str | None:
    """The first disagreement of a format with the specifications and with torch, cheap checks first."""
    if (row.torch_name is None) != (row.name in NOT_IN_TORCH):
        has = "has no" if row.torch_name else "has a"
        return f"{row.name}.torch_name={row.torch_name!r}, but torch {has} such dtype"
    if isinstance(row, IntegerFormat):
        return integer_disagreement(row)
    return (
        finfo_disagreement(row)
        or published_disagreement(row)
        or decode_disagreement(row, device)
        or rounding_disagreement(row, device)
    )


def blocks_quantised(name: str, values: Sequence[float]) -> torch.Tensor:
    """`values` in a block format by its specification, in torch: whole blocks at once, rounding by search."""
    element, max_exponent, block_size, _, _ = PUBLISHED_BLOCKS[name]
    grid = torch.tensor(E2M1_GRID, dtype=torch.float64)
    if element is not None:
        table = values_of_patterns(getattr(torch, element), None, CPU)[:128]
        grid = table[table.isfinite()]
    padded = torch.zeros(-(-len(values) // block_size) * block_size, dtype=torch.float64)
    padded[: len(values)] = torch.tensor(values, dtype=torch.float64)
    blocks = padded.view(-1, block_size)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    if max_exponent is not None:
        exponents = torch.where(largest > 0, largest.frexp().exponent - 1 - max_exponent, -127)
        scales = torch.ldexp(torch.ones_like(largest), exponents.clamp(-127, 127))
    else:
        of_tensor = (
            (largest.max() / (6 * 448)).float().double() if largest.any() else torch.ones(())
        )
        of_block = (largest / 6 / of_tensor).clamp(max=448).float()
        scales = of_block.to(torch.float8_e4m3fn).double() * of_tensor
    quantised = nearest_even(blocks / scales.where(scales > 0, torch.inf), grid) * scales
    return quantised.flatten()[: len(values)]


def block_disagreement(row: BlockFormat, values: Sequence[float]) -> str | None:
    """Our block quantisation and its bits against the specification."""
    if row.name not in PUBLISHED_BLOCKS:
        return f"{row.name}: no specification is known under this name"
    _, _, block_size, bits_per_element, tensor_bits = PUBLISHED_BLOCKS[row.name]
    if row.bits_per_element != bits_per_element:
        return f"{row.name} takes {row.bits_per_element} bits per element, but should take {bits_per_element}"
    bits = int(bits_per_element) * len(values) + 8 * -(-len(values) // block_size) + tensor_bits
    if (got_bits := row.storage_bits(len(values))) != bits:
        return f"{row.name}.storage_bits({len(values)})={got_bits}, but should be {bits}"
    for given in (BLOCK_PROBES, values):
        got = torch.tensor(row.quantised(given).values, dtype=torch.float64)
        should = blocks_quantised(row.name, given)
        if wrong := difference(row.name, got, should, lambda i: f"element {i}, {given[i]!r}"):  # noqa: B023
            return wrong
    return None


def blocks_over(decades: float, width: int = 32) -> torch.Tensor:
    """64 rows of `width` normal values, each row with a magnitude of its own."""
    magnitudes = torch.rand(64, 1, generator=torch.Generator().manual_seed(1)).double() - 0.5
    return torch.randn(64, width, generator=torch.Generator().manual_seed(0)).double() * 10 ** (
        decades * magnitudes
    )


def block_errors(kept: torch.Tensor, x: torch.Tensor) -> float:
    """The mean relative error of a row."""
    return float(((kept - x).norm(dim=1) / x.norm(dim=1)).mean())


def kept_by(name: str, x: torch.Tensor) -> torch.Tensor:
    """The values after a round trip through the block format of this name."""
    values = block_format_of(name).quantised(x.flatten().tolist()).values
    return torch.tensor(values, dtype=torch.float64).view_as(x)
