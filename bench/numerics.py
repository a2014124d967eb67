"""The numbers that products preserve: subnormal ones, and the bits of a fraction.

Every number is a power of two, or 1 and a single further bit, so rounding explains no inexact
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.products import (
    RESULTS,
    Unsupported,
    float_format,
    multiplication,
    probe_tf32,
    torch_dtype,
)

# Terms of the sums that are timed.
LENGTH = 4096
# Columns of the second operand, all alike.
COLUMNS = 64


def may_flush(dtype: str, device: torch.device) -> bool:
    """True if 0 is a legal outcome for a subnormal number, by what the format or the unit promises.

    IEEE 754 keeps subnormals in fp64, fp32 and fp16, OCP's specification in fp8. No standard
    requires it for bf16 and tf32: AVX512_BF16 and AMX read and write them as 0 (Intel,
    Architecture Instruction Set Extensions, TDPBF16PS). An MI200 also flushes fp16 (AMD, MI200 MFMA
    behavior specifics), and Metal any dtype.

    >>> cpu, metal = torch.device("cpu"), torch.device("mps")
    >>> [may_flush("bf16", cpu), may_flush("fp16", cpu), may_flush("fp16", metal)]
    [True, False, True]
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
    """Returns "kept" if columns have the numbers below `least_normal`, "flushed" if all are 0.

    Raises AssertionError for anything else, and for flushed numbers where that is not legal.

    >>> exact = powers(0.25, 2.0)
    >>> flushed = torch.where(exact < 1, 0.0, exact)[:, None]
    >>> [subnormals("an operand", got, exact, 1.0, True) for got in (exact[:, None], flushed)]
    ['kept', 'flushed']
    >>> subnormals("an operand", flushed, exact, 1.0, False)
    Traceback (most recent call last):
    AssertionError: an operand 0.5 became 0, but should be kept
    >>> subnormals("an operand", 0 * flushed, exact, 1.0, True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: an operand 2 became 0, but should be kept, or all ... and no others become 0
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
    """The numbers in `dtype`, converted by the host."""
    return numbers.to(torch_dtype(dtype)).to(device)


def probe(dtype: str, rows: Tensor, column: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """The call that multiplies `rows` by columns that are all `column`.

    No unit multiplies two operands of e5m2.
    """
    second = "fp8_e4m3" if dtype == "fp8_e5m2" else dtype
    a = operand(torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % 16)), dtype, device)
    return multiplication(dtype, a, operand(column.expand(COLUMNS, -1), second, device).t(), None)


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


def one_term(dtype: str, numbers: Tensor, factor: float, device: torch.device) -> Tensor:
    """Each number times the factor, in all columns, by sums whose other terms are 0."""
    rows, column = torch.zeros(len(numbers), COLUMNS).double(), torch.zeros(COLUMNS).double()
    rows[:, 0], column[0] = numbers, factor
    return probe(dtype, rows, column, device)()[: len(numbers)].cpu().double()


def subnormals_of_products(dtype: str, device: torch.device) -> dict[str, str]:
    """The treatment of subnormal operands and, where products have such, of subnormal results."""
    __tracebackhide__ = True
    form = float_format(dtype)
    result = float_format("fp32" if dtype == "tf32" else RESULTS.get(dtype, dtype))
    least, least_result = form.decode(1), result.decode(1)
    legal = may_flush(dtype, device)
    numbers = powers(least, 2 * form.least_normal)
    # Scales up, so that no result is subnormal.
    up = max(1.0, 2 * result.least_normal / least)
    got = one_term(dtype, numbers, up, device) / up
    found = {
        "subnormal_operands": subnormals(f"{dtype} operand", got, numbers, form.least_normal, legal)
    }
    if least**2 >= result.least_normal:
        return found
    numbers = powers(least_result, 2 * result.least_normal)
    # Scales down, so that no operand is subnormal.
    down = 2.0 ** (math.log2(least_result) // 2)
    got = one_term(dtype, numbers / down, down, device)
    return found | {
        "subnormal_results": subnormals(f"{dtype} result", got, numbers, result.least_normal, legal)
    }


def fraction_bits(dtype: str, device: torch.device) -> int:
    """The most bits b up to which a product by 1 keeps 1 + 2^-b."""
    stored_bits = float_format("fp32" if dtype == "tf32" else dtype).fraction_bits
    numbers = 1 + powers(2.0**-stored_bits, 0.5).flip(0)
    return int((one_term(dtype, numbers, 1.0, device) == numbers[:, None]).all(1).cumprod(0).sum())


def kept_by_products(dtype: str, device: torch.device) -> dict[str, Any]:
    """The numbers that products of `dtype` keep.

    Raises AssertionError where that is less than the format or the unit promises.
    """
    __tracebackhide__ = True
    kept: dict[str, Any] = subnormals_of_products(dtype, device)
    bits, should = fraction_bits(dtype, device), float_format(dtype).fraction_bits
    assert bits == should, (
        f"{dtype} products by 1 keep {bits} fraction bits, but should keep {should}"
    )
    flushed = " and ".join(
        key.removeprefix("subnormal_") for key, value in kept.items() if value == "flushed"
    )
    label = f"subnormal {flushed} flushed" if flushed else "subnormals kept"
    return kept | {"fraction_bits": bits, "label": label}
