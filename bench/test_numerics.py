"""Underflow and overflow of each dtype on the device: the losses of a cast, and its speed."""

import math

import pytest
import torch
from torch import Tensor

from accounting.formats import Format
from accounting.memory import element_bytes
from accounting.roofline import Work
from bench.checks import assert_random
from bench.numerics import (
    halves_and_ones,
    kept_by_products,
    may_flush,
    powers,
    subnormals,
)
from bench.products import Unsupported, float_format, torch_dtype
from bench.streams import assert_bytes
from prooflops.precision import Float32Products

PRODUCTS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")
FORMATS = ("fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")
ELEMENTS = {"quick": 2**20, "default": 2**23, "thorough": 2**26}


def overflow_threshold(form: Format) -> float:
    """Half a step beyond the largest finite number: larger numbers do not round to a finite one."""
    largest_power_of_two = 2.0 ** (math.frexp(form.max)[1] - 1)
    return form.max + largest_power_of_two * form.eps / 2


@pytest.fixture
def gradients(device, pace) -> torch.Tensor:
    """Magnitudes spread evenly over every power of two from 2^-40 to 2^20, both signs."""
    exponent = torch.empty(ELEMENTS[pace], device=device).uniform_(-40, 20)
    sign = torch.randint(0, 2, exponent.shape, device=device) * 2 - 1
    return sign * torch.exp2(exponent)


def share_flushed(form: Format, size: Tensor, back: Tensor) -> float:
    """The share of values that a cast made 0: at most half of the least subnormal number."""
    __tracebackhide__ = True
    zeros = int((back == 0).sum())
    # Ties go to the even zero.
    flushed = int((size <= form.decode(1) / 2).sum())
    assert zeros == flushed, (
        f"{zeros} of {len(back)} values became 0 in {form.name}, but {flushed} should"
    )
    return zeros / len(back)


def share_overflowed(form: Format, size: Tensor, back: Tensor) -> float:
    """The share of values beyond the largest number; asserts that no cast made one smaller."""
    __tracebackhide__ = True
    over = size > overflow_threshold(form)
    # Infinity, the largest number or NaN: which of them is the policy of the format and of this
    # version of torch.
    lost = ~(back.abs() < form.max) & over
    assert torch.equal(lost, over), (
        f"{int((over & ~lost).sum())} values beyond the largest {form.name} became smaller ones"
    )
    return float(over.float().mean())


def assert_rounded(form: Format, size: Tensor, moved: Tensor) -> None:
    """A cast moved normal numbers by half a step of their own, subnormal ones by half of theirs."""
    __tracebackhide__ = True
    normal = (size >= form.least_normal) & (size < overflow_threshold(form))
    error = float((moved / size)[normal].max())
    assert error <= form.eps / 2, (
        f"{form.name} rounds with a relative error of {error:.3g}, should be <= {form.eps / 2:.3g}"
    )
    moved_by = float(torch.where(size < form.least_normal, moved, 0).max())
    assert moved_by <= form.decode(1) / 2, (
        f"{form.name} rounds a subnormal number by {moved_by:.3g}, should by <= "
        f"{form.decode(1) / 2:.3g}"
    )


def subnormals_of_a_cast(form: Format, target: torch.dtype, device: torch.device) -> str:
    """Returns whether a cast keeps subnormal numbers."""
    small = powers(form.decode(1), form.least_normal)
    # More of each power of two than a vector has elements, and some over, which other code
    # converts.
    many = small.float().to(device)[:, None].expand(-1, 67).contiguous()
    cast = many.to(target).float().cpu().double()
    what = f"{form.name} cast of"
    return subnormals(what, cast, small, form.least_normal, may_flush(form.name, device))


@pytest.mark.parametrize("dtype", FORMATS)
def test_cast(dtype, gradients, device, measure):
    form, target = float_format(dtype), torch_dtype(dtype)
    assert_random([gradients])
    size, back = gradients.abs(), gradients.to(target).float()
    shares = {
        "underflowed": share_flushed(form, size, back),
        "overflowed": share_overflowed(form, size, back),
    }
    assert_rounded(form, size, (back - gradients).abs())
    kept = subnormals_of_a_cast(form, target, device)

    moved = element_bytes(gradients.numel(), "fp32") + element_bytes(gradients.numel(), dtype)
    assert_bytes(Work(0, moved), lambda: gradients.to(target, copy=True))
    seconds = measure.median_s(lambda: gradients.to(target, copy=True), dtype=dtype, bytes=moved)
    lost = f", {shares['underflowed']:.0%} of 2^-40 to 2^20 become 0" * bool(shares["underflowed"])
    measure.declare(
        bytes_per_s=moved / seconds, subnormals=kept, label=f"subnormals {kept}{lost}", **shares
    )


@pytest.mark.parametrize("dtype", PRODUCTS)
def test_product(dtype, device, measure):
    """Products keep subnormal numbers and every bit of a fraction."""
    with Float32Products(dtype):
        try:
            call = halves_and_ones(dtype, device)
        except Unsupported as reason:
            pytest.skip(str(reason))
        kept = measure.once(lambda: kept_by_products(dtype, device)) or {}
        measure.median_s(call, dtype=dtype, **kept)
