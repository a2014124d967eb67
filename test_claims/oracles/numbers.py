"""Number formats by torch and by the published specifications.

The other side of every check of a format.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from accounting.formats import IntegerFormat, block_format_of
from test_claims.oracles.messages import equal
from test_claims.oracles.published import TABLES
from test_claims.strategies import in_fp64, with_dtype

CPU = torch.device("cpu")
METHODS = {torch.float16: torch.Tensor.half, torch.bfloat16: torch.Tensor.bfloat16}
FP32_MAX = torch.finfo(torch.float32).max
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
# A name of ours that torch has no dtype for, and never had.
NOT_IN_TORCH = frozenset({"tf32", "int4"})


class Published(NamedTuple):
    """Constants as a specification prints them.

    `specials` counts the patterns that are infinities, NaNs and zeros.
    """

    storage_bits: int
    max: float
    least_normal: float
    least_subnormal: float | None
    eps: float
    specials: tuple[int, int, int] | None = None


def published(row):
    """A row of the table, in which 0 stands for no value."""
    constants = [value or None for value in row[:5]]
    return Published(*constants, *map(tuple, row[5:]))


PUBLISHED = {name: published(row) for name, row in TABLES["formats"].items()}
PUBLISHED_INTEGERS = {name: tuple(row) for name, row in TABLES["integers"].items()}
# OCP MX 1.0 table 5, in the order of the patterns.
E2M1_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The element, the exponent of its max, block size, bits per element and per tensor: OCP MX 1.0
# table 1; arXiv:2509.25149 section 2.
PUBLISHED_BLOCKS = {
    "mxfp8_e4m3": ("float8_e4m3fn", 8, 32, 8.25, 0),
    "mxfp8_e5m2": ("float8_e5m2", 15, 32, 8.25, 0),
    "mxfp4": (None, 2, 32, 4.25, 0),
    "nvfp4": (None, None, 16, 4.5, 32),
}
# In every block a largest value that no element reaches, others down to below its least subnormal.
BLOCK_PROBES = tuple(
    1.9 * 1000.0**block * 0.47**place for block in range(-2, 3) for place in range(32)
)


def torch_dtype(row):
    """torch's dtype of this format, None where this torch has none."""
    return getattr(torch, row.torch_name, None) if row.torch_name else None


def on_the_host(tensor):
    """The values in fp64 on the CPU; every device casts to fp32, which holds smaller formats."""
    wide = tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
    return wide.cpu().double()


def read_patterns(dtype, patterns, device):
    """The tensor of bit patterns (all of them by default)."""
    bits = 8 * dtype.itemsize
    chosen = range(1 << bits) if patterns is None else patterns
    if bits > 8:
        # Torch's wider integers are signed.
        half = 1 << (bits - 1)
        chosen = [(pattern + half) % (1 << bits) - half for pattern in chosen]
    device = with_dtype(device, dtype)
    integers = torch.tensor(list(chosen), dtype=INTEGERS[bits], device=device)
    return integers.view(dtype)


def values_of_patterns(dtype, patterns, device):
    """The values that torch reads in bit patterns (all of them by default), in fp64."""
    return on_the_host(read_patterns(dtype, patterns, device))


def cast(values, dtype, device=CPU):
    """`values` after a cast to `dtype` on `device`; torch rounds fp64 twice, to fp32 first.

    A cast of all at once and ones of few, which other kernels may do, must give the same, and so
    must the other ways to cast.
    """
    given = values.to(with_dtype(with_dtype(device, dtype), values.dtype))
    together = given.to(dtype)
    # More than a block of a kernel, and one.
    for number in (600, 1):
        last = given.flatten()[-number:]
        ways = {
            "to": last.to(dtype),
            "from fp64": in_fp64(last).to(dtype),
            "type": last.type(dtype),
            "copy_": torch.empty_like(last, dtype=dtype).copy_(last),
        }
        if dtype in METHODS:
            ways["method"] = METHODS[dtype](last)
        should = repr(together.flatten()[-number:].tolist())
        for way, few in ways.items():
            equal(repr(few.tolist()), should, f"a cast to {dtype} of the last {number}", way=way)

    return on_the_host(together)


def cast_of(value, dtype, device=CPU):
    """One value, rounded to fp32, after a cast among more than a block of a kernel."""
    copies = torch.tensor([value] * 600, dtype=torch.float32)
    return float(cast(copies, dtype, device)[0])


def overflow_policy(dtype, device):
    """Result of a cast of fp32's largest value on this device: inf, saturate or nan."""
    value = cast(torch.tensor([FP32_MAX]), dtype, device).item()
    if math.isinf(value):
        return "inf"
    return "nan" if math.isnan(value) else "saturate"


def rounding_probes(grid):
    """Every positive value of an ascending grid, every midpoint and neighbours; and beyond its end.

    Of fp32's neighbours of midpoints one midpoint in seven is enough in a large grid: 7 divides no
    power of two, so that all places of the fraction come up, in many binades.
    """
    beyond = 2 * grid[-1:] - grid[-2:-1]
    ends = torch.cat([grid.new_zeros(1), grid, beyond])
    ties = ((ends[:-1] + ends[1:]) / 2).float()
    every = 7 if len(ties) > 1000 else 1
    some = torch.cat([ties[::every], ties[:1], ties[-1:]])
    infinity = torch.tensor(math.inf)
    below = torch.nextafter(some, -infinity)
    above = torch.nextafter(some, infinity)
    far = torch.tensor([0.0, FP32_MAX])
    return torch.cat([grid.float(), ties, below, above, far])


def nearest_even(values, grid):
    """The nearest element of an ascending grid from 0, by search.

    The sign is kept, ties go to the even index, and what is beyond the grid to its end.
    """
    magnitude = values.abs().clamp(max=grid[-1])
    above = torch.searchsorted(grid, magnitude).clamp(min=1, max=len(grid) - 1)
    below = above - 1
    down = magnitude - grid[below]
    up = grid[above] - magnitude
    to_above = (up < down) | ((up == down) & (above % 2 == 0))
    return torch.where(to_above, grid[above], grid[below]).copysign(values)


@lru_cache(maxsize=4)
def decoded(row, patterns):
    """Our decoding of patterns."""
    values = [row.decode(pattern) for pattern in patterns]
    return torch.tensor(values, dtype=torch.float64)


def fields_counted(values, bits):
    """Exponent and fraction bits, counted from all values of a format: 2^f lie in [1, 2)."""
    in_binade = (values >= 1) & (values < 2)
    fraction_bits = int(math.log2(int(in_binade.sum())))
    sign_bits = int((values < 0).any())
    return bits - sign_bits - fraction_bits, fraction_bits


def equal_numbers(got, should, what, of):
    """Asserts that two tensors have equal numbers; NaNs are equal, and -0 is not +0.

    `of` lists what each was made of: a pattern, or the number that was rounded.
    """
    __tracebackhide__ = True
    same = (got == should) & (got.signbit() == should.signbit())
    wrong = (~same & ~(got.isnan() & should.isnan())).nonzero().flatten().tolist()
    for place in wrong:
        equal(repr(got[place].item()), repr(should[place].item()), what, of=of[place])


@lru_cache(maxsize=64)
def check_decoding(row, device=CPU):
    """Our decoding against torch's: every pattern of up to 16 bits, chosen ones above."""
    __tracebackhide__ = True
    patterns = range(1 << row.bits)
    if row.name == "fp4_e2m1":
        should = torch.tensor([*E2M1_GRID, *(-value for value in E2M1_GRID)], dtype=torch.float64)
        equal_numbers(decoded(row, patterns), should, row.name, patterns)
        return

    # tf32 is fp32 with the low 13 fraction bits zero.
    dtype = torch.float32 if row.name == "tf32" else torch_dtype(row)
    shift = 13 if row.name == "tf32" else 0
    if dtype is None:
        return
    if row.bits > 16:
        one = 1 << row.fraction_bits
        fractions = (0, 1, one // 2, one // 3, one - 1)
        # The sign included; 3 divides 2^n - 1, so that all ones is among them.
        exponents = range(0, 1 << (1 + row.exponent_bits), 3)
        patterns = tuple(
            exponent * one + fraction for exponent in exponents for fraction in fractions
        )
        # A device may lack fp64 (MPS), and reading a bit pattern back is no computation.
        device = CPU
    read = read_patterns(dtype, [pattern << shift for pattern in patterns], device)
    values = on_the_host(read)
    equal_numbers(decoded(row, patterns), values, row.name, patterns)
    for wide in (torch.bfloat16, torch.float16, torch.float64):
        got = on_the_host(read.to(with_dtype(device, wide), wide))
        equal_numbers(got, on_the_host(values.to(wide)), f"{row.name} cast to {wide}", patterns)


def rounded(row, values, overflow):
    """Our rounding of each value."""
    ours = [row.rounded(value, overflow=overflow) for value in values.tolist()]
    return torch.tensor(ours, dtype=torch.float64)


@lru_cache(maxsize=64)
def check_rounding(row, device=CPU):
    """Our rounding against torch's cast, with the overflow policy of this torch and device."""
    __tracebackhide__ = True
    if row.name == "fp4_e2m1":
        grid = torch.tensor(E2M1_GRID, dtype=torch.float64)
        probes = rounding_probes(grid[1:])
        should = nearest_even(probes.double(), grid)
        equal_numbers(rounded(row, probes, "saturate"), should, row.name, probes)
        return

    dtype = torch_dtype(row)
    if dtype is None or row.bits > 16:
        return
    table = values_of_patterns(dtype, None, device)
    probes = rounding_probes(table[(table > 0) & table.isfinite()].sort().values)
    if row.subnormals:
        probes = torch.cat([probes, -probes[::7]])
    else:
        # torch's cast to e8m0 rounds fp32's subnormals above 2^-127 up, the nearest value being
        # below. No specification says how e8m0 is rounded to: another device may do otherwise.
        probes = probes[(probes <= 2.0**-127) | (probes >= 1.5 * 2.0**-127)]
        device = CPU

    if row.has_inf:
        probes = torch.cat([probes, torch.tensor([-FP32_MAX, math.inf, -math.inf])])
    # Only of fp8 does the policy differ between versions; the 16-bit formats follow IEEE 754.
    policy = overflow_policy(dtype, device) if row.bits == 8 else "inf"
    ours = rounded(row, probes, policy)
    equal_numbers(ours, cast(probes, dtype, device), f"{row.name} ({policy})", probes)

    # A finer format holds each value and midpoint, and all of fp32's or few of their neighbours.
    for finer in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        if torch.finfo(finer).eps < torch.finfo(dtype).eps:
            held = probes.to(finer)
            exact = held.float() == probes
            got = cast(held[exact], dtype, device)
            equal_numbers(got, ours[exact], f"{row.name} of {finer}", probes[exact])


def check_published(row):
    """Our derived constants against the published ones."""
    __tracebackhide__ = True
    published = PUBLISHED[row.name]
    for field in ("storage_bits", "max", "least_normal", "least_subnormal", "eps"):
        equal(getattr(row, field), getattr(published, field), f"{row.name}.{field}")

    if published.specials is None:
        return
    values = decoded(row, range(1 << row.bits))
    infinities = int(values.isinf().sum())
    nans = int(values.isnan().sum())
    zeros = int((values == 0).sum())
    equal((infinities, nans, zeros), published.specials, "infinities, NaNs and zeros")
    has = row.has_inf, row.has_nan, row.has_signed_zero
    equal(has, (infinities > 0, nans > 0, zeros > 1), "has infinity, NaN and a signed zero")


def check_finfo(row):
    """Our derived constants against torch.finfo; where that is wrong, see the claim dtype.finfo."""
    __tracebackhide__ = True
    dtype = torch_dtype(row)
    if dtype is None:
        return
    packed = 2 if row.name == "fp4_e2m1" else 1
    equal(packed * row.storage_bits, 8 * dtype.itemsize, "bits of an element")
    try:
        info = torch.finfo(dtype)
        constants = info.max, info.smallest_normal, info.tiny, info.bits, info.min
    except (TypeError, NotImplementedError):
        equal(packed, 2, f"values in an element of {dtype}, which torch.finfo does not know")
        return

    least = -row.max if row.signed else row.least_normal
    ours = row.max, row.least_normal, row.least_normal, row.storage_bits, least
    equal(ours, constants, f"max, least normal by both names, bits and min of {dtype}")
    decimals = math.floor(-math.log10(row.eps))
    equal(info.resolution, 10.0**-decimals, f"resolution of {dtype}")
    # torch says 0.125 of this one; two fraction bits make 0.25.
    if row.name != "fp8_e5m2fnuz":
        equal(row.eps, info.eps, f"eps of {dtype}")


def check_integer(row):
    """Our integer formats against the published limits, and torch's reading of chosen patterns."""
    __tracebackhide__ = True
    limits = row.storage_bits, row.min, row.max
    equal(limits, PUBLISHED_INTEGERS[row.name], f"bits, min and max of {row.name}")
    dtype = torch_dtype(row)
    if dtype is None:
        return
    ends = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    equal(limits, (8 * dtype.itemsize, *ends), f"bits, min and max of {dtype}")

    all_ones = (1 << row.bits) - 1
    some = {0, 1, row.max - 1, row.max, row.max + 1, all_ones}
    patterns = sorted(pattern for pattern in some if pattern <= all_ones)
    packed = bytearray()
    for pattern in patterns:
        packed += pattern.to_bytes(dtype.itemsize, "little")
    values = torch.frombuffer(packed, dtype=dtype).tolist()
    equal([row.decode(pattern) for pattern in patterns], values, f"patterns of {row.name}")


def check(row, device=CPU):
    """A format against specifications and torch, cheap checks first."""
    __tracebackhide__ = True
    equal(row.torch_name is None, row.name in NOT_IN_TORCH, "whether torch has no such dtype")
    if isinstance(row, IntegerFormat):
        check_integer(row)
        return
    check_finfo(row)
    check_published(row)
    check_decoding(row, device)
    check_rounding(row, device)


def blocks_quantised(name, values):
    """`values` in a block format by its specification: whole blocks at once, rounding by search."""
    element, max_exponent, block_size, _, _ = PUBLISHED_BLOCKS[name]
    grid = torch.tensor(E2M1_GRID, dtype=torch.float64)
    if element is not None:
        table = values_of_patterns(getattr(torch, element), None, CPU)[:128]
        grid = table[table.isfinite()]

    missing = -len(values) % block_size
    padded = torch.tensor([*values, *[0.0] * missing], dtype=torch.float64)
    blocks = padded.view(-1, block_size)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    if max_exponent is not None:
        exponents = torch.where(largest > 0, largest.frexp().exponent - 1 - max_exponent, -127)
        scales = torch.ldexp(torch.ones_like(largest), exponents.clamp(-127, 127))
    else:
        of_tensor = torch.ones(())
        if largest.any():
            of_tensor = (largest.max() / (6 * 448)).float().double()
        of_block = (largest / 6 / of_tensor).clamp(max=448).float()
        scales = of_block.to(torch.float8_e4m3fn).double() * of_tensor

    scaled = blocks / scales.where(scales > 0, torch.inf)
    quantised = nearest_even(scaled, grid) * scales
    return quantised.flatten()[: len(values)]


def check_blocks(row, values):
    """Our block quantisation and its bits against the specification."""
    __tracebackhide__ = True
    _, _, block_size, bits_per_element, tensor_bits = PUBLISHED_BLOCKS[row.name]
    equal(row.bits_per_element, bits_per_element, "bits per element")
    bits = int(bits_per_element) * len(values) + 8 * -(-len(values) // block_size) + tensor_bits
    equal(row.storage_bits(len(values)), bits, "storage_bits")
    for given in (BLOCK_PROBES, values):
        got = torch.tensor(row.quantised(given).values, dtype=torch.float64)
        equal_numbers(got, blocks_quantised(row.name, given), row.name, given)


def blocks_over(decades, width=32):
    """64 rows of `width` normal values, each row with a magnitude of its own."""
    of_rows = torch.Generator().manual_seed(1)
    exponents = torch.rand(64, 1, generator=of_rows).double() - 0.5
    of_values = torch.Generator().manual_seed(0)
    values = torch.randn(64, width, generator=of_values).double()
    return values * 10 ** (decades * exponents)


def block_errors(kept, x):
    """The mean relative error of a row."""
    return float(((kept - x).norm(dim=1) / x.norm(dim=1)).mean())


def kept_by(name, x):
    """The values after a round trip through the block format of this name."""
    values = block_format_of(name).quantised(x.flatten().tolist()).values
    return torch.tensor(values, dtype=torch.float64).view_as(x)
