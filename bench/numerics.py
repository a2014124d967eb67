"""What products keep of their numbers: subnormal ones, the bits of a fraction, the bits of a long
sum.

Every number is a power of two, or 1 and a single further bit: no rounding explains a result that is
not the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from accounting.formats import Format, format_of
from bench.products import RESULTS, Unsupported, multiplication, probe_tf32

# Terms of a sum, and the small ones among them.
LENGTH, TERMS = 4096, 15
# Columns of the second operand, all alike.
COLUMNS = 64
# Bits of a sum's significand, at least. Hopper and Ada add fp8 to 1 + 13 bits (DeepSeek-V3,
# arXiv:2412.19437, section 3.3.2; SageAttention2, arXiv:2411.10958); tensor cores add fp16, bf16
# and tf32 to 24 (Fasi, Higham, Mikaitis and Pranesh 2021, doi:10.7717/peerj-cs.330).
SUM_BITS = {"fp64": 53, "fp8_e4m3": 14, "fp8_e5m2": 14}
FP32_SUM_BITS = 24
# Fewer are not told apart.
FEWEST_BITS = 12


def may_flush(dtype: str, device: torch.device) -> bool:
    """Whether 0 is a legal outcome for a subnormal number, by what the format or the unit promises.

    IEEE 754 keeps subnormals in fp64, fp32 and fp16, and OCP's specifications do in fp8 and fp4.
    Nobody promises it of bf16 and tf32: AVX512_BF16 and AMX read and write them as 0 (Intel,
    Architecture Instruction Set Extensions, TDPBF16PS). An MI200 does in fp16 too (AMD, MI200 MFMA
    behavior specifics), and Metal in any.
    """
    if device.type == "cuda" and dtype == "fp16":
        return str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")).startswith(
            "gfx90a"
        )
    return dtype in ("bf16", "tf32") or device.type not in ("cpu", "cuda")


def powers(low: float, high: float) -> Tensor:
    """All powers of two from `low` to `high`, in fp64."""
    exponents = range(int(math.log2(low)), int(math.log2(high)) + 1)
    return torch.tensor([math.ldexp(1, e) for e in exponents], dtype=torch.float64)


def subnormals(
    what: str, got: Tensor, exact: Tensor, least_normal: float, zero_is_legal: bool
) -> str:
    """Whether the columns of `got` are `exact`, "kept", or have 0 for each number below
    `least_normal`, "flushed".

    Raises AssertionError for anything else, and for flushed numbers where that is not legal.
    """
    __tracebackhide__ = True
    wrong, subnormal = got != exact[:, None], (exact < least_normal)[:, None].expand_as(got)
    if not wrong.any():
        return "kept"
    if zero_is_legal and torch.equal(wrong, subnormal) and not got[subnormal].any():
        return "flushed"
    row, column = wrong.nonzero()[-1].tolist()
    legal = ", or all subnormal numbers and no others become 0" * zero_is_legal
    raise AssertionError(
        f"{what} {exact[row]:g} became {got[row, column]:g}, but should be kept{legal}"
    )


def operand(numbers: Tensor, dtype: str, device: torch.device) -> Tensor:
    """The numbers in `dtype`, converted by the host; torch has no cast to fp4, which lies two
    patterns a byte.
    """
    form = format_of(dtype)
    if dtype == "fp4_e2m1" and isinstance(form, Format):
        values, places = numbers.unique(return_inverse=True)
        codes = torch.tensor(
            [form.encode(x, "saturate") for x in values.tolist()], dtype=torch.uint8
        )[places]
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(device).view(torch.float4_e2m1fn_x2)
    return numbers.to(
        torch.float32 if dtype == "tf32" else getattr(torch, str(form.torch_name))
    ).to(device)


def probe(
    dtype: str, rows: Tensor, column: Tensor, device: torch.device, fast: bool = False
) -> Callable[[], Tensor]:
    """The call that multiplies `rows` by columns that are all `column`; no unit multiplies two
    operands of e5m2.
    """
    second = "fp8_e4m3" if dtype == "fp8_e5m2" else dtype
    a = operand(torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % 16)), dtype, device)
    return multiplication(
        dtype, a, operand(column.expand(COLUMNS, -1), second, device).t(), None, fast=fast
    )


def halves_and_ones(dtype: str, device: torch.device) -> Callable[[], Tensor]:
    """A long product of numbers that every dtype has. Raises Unsupported with the reason."""
    try:
        probe_tf32(device) if dtype == "tf32" else None
        call = probe(dtype, torch.randint(1, 3, (COLUMNS, LENGTH)) / 2, torch.ones(LENGTH), device)
        call()
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise Unsupported(
            f"{device} does not multiply {dtype}: {str(error).splitlines()[0]}"
        ) from error
    return call


@contextmanager
def whole_sums() -> Iterator[None]:
    """Within, cuBLAS keeps no part of a split sum in fp16 or bf16, which torch allows by
    default.
    """
    flags = torch.backends.cuda.matmul
    before = (
        flags.allow_fp16_reduced_precision_reduction,
        flags.allow_bf16_reduced_precision_reduction,
    )
    flags.allow_fp16_reduced_precision_reduction = flags.allow_bf16_reduced_precision_reduction = (
        False
    )
    try:
        yield
    finally:
        (
            flags.allow_fp16_reduced_precision_reduction,
            flags.allow_bf16_reduced_precision_reduction,
        ) = before


def one_term(dtype: str, numbers: Tensor, factor: float, device: torch.device) -> Tensor:
    """Each number times the factor, in all columns, by sums whose other terms are 0."""
    rows, column = torch.zeros(len(numbers), COLUMNS).double(), torch.zeros(COLUMNS).double()
    rows[:, 0], column[0] = numbers, factor
    return probe(dtype, rows, column, device)()[: len(numbers)].cpu().double()


def subnormals_of_products(dtype: str, device: torch.device) -> dict[str, str]:
    """What becomes of subnormal operands and, where products have such, of subnormal results."""
    __tracebackhide__ = True
    form, result = (
        format_of(dtype),
        format_of({"tf32": "fp32"}.get(dtype, RESULTS.get(dtype, dtype))),
    )
    assert isinstance(form, Format)
    assert isinstance(result, Format)
    legal = may_flush(dtype, device)
    numbers = powers(form.least_subnormal, 2 * form.least_normal)
    # So that no result is subnormal.
    up = max(1.0, 2 * result.least_normal / form.least_subnormal)
    got = one_term(dtype, numbers, up, device) / up
    found = {
        "subnormal_operands": subnormals(f"{dtype} operand", got, numbers, form.least_normal, legal)
    }
    if form.least_subnormal**2 >= result.least_normal:
        return found
    numbers = powers(result.least_subnormal, 2 * result.least_normal)
    # So that no operand is subnormal.
    down = 2.0 ** (math.log2(result.least_subnormal) // 2)
    got = one_term(dtype, numbers / down, down, device)
    return found | {
        "subnormal_results": subnormals(f"{dtype} result", got, numbers, result.least_normal, legal)
    }


def fraction_bits(dtype: str, device: torch.device) -> int:
    """The most bits b up to which a product by 1 keeps 1 + 2^-b."""
    numbers = 1 + powers(
        2.0 ** -format_of("fp32" if dtype == "tf32" else dtype).fraction_bits, 0.5
    ).flip(0)
    return int((one_term(dtype, numbers, 1.0, device) == numbers[:, None]).all(1).cumprod(0).sum())


def sum_bits(dtype: str, apart: int, device: torch.device, fast: bool = False) -> int:
    """Bits of the significand of sums of 1, 15 times 2^-b that lie `apart`, and -1 at the end, all
    times 2^14.

    15 · 2^-b, an odd number of them, is left if all were added in full: to b + 1 bits. A row for
    each b from 11.
    """
    # 2^-25 is the least that e4m3 reaches with normal operands.
    most = max(25, SUM_BITS.get(dtype, FP32_SUM_BITS) + 1)
    small = powers(2.0 ** (14 - most), 2.0 ** (15 - FEWEST_BITS)).flip(0)
    rows, column = torch.zeros(len(small), LENGTH).double(), torch.full((LENGTH,), 2.0**-5).double()
    rows[:, apart : apart * TERMS + 1 : apart] = (small / column[1])[:, None]
    rows[:, 0], rows[:, -1], column[0], column[-1] = 2.0**7, -(2.0**7), 2.0**7, 2.0**7
    got = probe(dtype, rows, column, device, fast)()[: len(small)].cpu().double()
    return FEWEST_BITS - 1 + int((got == TERMS * small[:, None]).all(1).cumprod(0).sum())


def kept_by_products(dtype: str, device: torch.device) -> dict[str, Any]:
    """What products of `dtype` keep. Raises AssertionError where that is less than is promised or
    published.

    `sum_bits`: of small terms beside the large one, as the unit adds them; `long_sum_bits`: of
    terms far apart, as the kernel adds the unit's sums; with `fast_`: of fp8 with use_fast_accum.
    """
    __tracebackhide__ = True
    kept: dict[str, Any] = subnormals_of_products(dtype, device)
    bits, should = fraction_bits(dtype, device), format_of(dtype).fraction_bits
    assert bits == should, (
        f"{dtype} products by 1 keep {bits} bits of a fraction, but should keep {should}"
    )
    least = SUM_BITS.get(dtype, FP32_SUM_BITS)
    for fast in (False, True) if dtype.startswith("fp8") and device.type == "cuda" else (False,):
        for name, apart in (("sum_bits", 1), ("long_sum_bits", LENGTH // (TERMS + 1))):
            if dtype == "fp4_e2m1":
                # Its numbers span too few powers of two.
                continue
            kept["fast_" * fast + name] = bits = sum_bits(dtype, apart, device, fast)
            assert bits >= least, (
                f"{dtype} products {apart} terms apart are added to {bits} bits, but should be to "
                f"at least {least}" + ", use_fast_accum" * fast
            )
    flushed = " and ".join(
        key.removeprefix("subnormal_") for key, value in kept.items() if value == "flushed"
    )
    widths = " to ".join(
        dict.fromkeys(str(value) for key, value in kept.items() if "sum_bits" in key)
    )
    label = f"subnormal {flushed} flushed" if flushed else "subnormals kept"
    return kept | {
        "fraction_bits": should,
        "label": label + f", sums of {widths} bits" * bool(widths),
    }
