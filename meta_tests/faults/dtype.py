"""Faults of number formats: wrong cells of the table, wrong rounding, wrong casts."""

from dataclasses import replace as with_field

import torch

from accounting import formats
from meta_tests.faults import fault

_to = torch.Tensor.to


def wrong_cell(name, *noticed_by, row, **cell):
    """Registers a fault that changes a row of the table of formats."""
    table = formats.FORMATS if row in formats.FORMATS else formats.BLOCK_FORMATS

    def plant(patch):
        patch.setitem(table, row, with_field(table[row], **cell))

    fault(*noticed_by, name=name, topic="dtype")(plant)


def _spoil_casts(patch, dtype, spoiled):
    """Has `tensor.to(dtype)` of an fp32 tensor go through `spoiled` first; other casts stay."""

    def to(tensor, *args, **kwargs):
        concerned = args[:1] == (dtype,) and tensor.dtype == torch.float32
        return _to(spoiled(tensor) if concerned else tensor, *args, **kwargs)

    patch.setattr(torch.Tensor, "to", to)


@fault("dtype.fp16-small-models dtype.bf16-suffices", instead_of="torch.nn.functional.linear")
def products_under_autocast_have_the_resolution_of_e5m2(linear, x, weight, bias=None):
    y = linear(x, weight, bias)
    return y + (y.to(torch.float8_e5m2).to(y.dtype) - y).detach() if y.itemsize == 2 else y


@fault("dtype.lower-is-faster", instead_of="torch.Tensor.__matmul__")
def matmuls_of_fp32_and_bf16_take_a_detour_through_fp64(matmul, a, b):
    if a.dtype in (torch.float32, torch.bfloat16):
        for _ in range(3):
            matmul(_to(a, torch.float64), _to(b, torch.float64))
    return matmul(a, b)


wrong_cell(
    "bf16_has_9_exponent_and_8_fraction_bits",
    "dtype.bf16-layout dtype.finfo dtype.bf16-same-bytes dtype.bf16-resolution",
    "dtype.bf16-33bit-exponent",
    row="bf16",
    exponent_bits=9,
    fraction_bits=8,
)
wrong_cell(
    "e4m3_reserves_its_top_exponent_as_ieee_754_does",
    "dtype.e4m3-layout dtype.fp8-overflow dtype.finfo",
    row="fp8_e4m3",
    specials=formats.IEEE,
)
wrong_cell(
    "e4m3_is_said_to_be_stored_in_16_bits", "dtype.fp8-bytes", row="fp8_e4m3", padding_bits=8
)
wrong_cell("fp64_has_51_fraction_bits", "dtype.fp32-full-precision", row="fp64", fraction_bits=51)
wrong_cell(
    "fp4_has_two_fraction_bits",
    "dtype.fp4-in-torch dtype.fp4-block-scale",
    row="fp4_e2m1",
    fraction_bits=2,
)


@fault("dtype.fp32-layout dtype.fp16-layout dtype.fp8-rounding", "dtype.fp4-block-scale")
def ties_are_rounded_away_from_zero(patch):
    patch.setattr(formats, "round", lambda x: int(x + 0.5), raising=False)


@fault("dtype.bf16-layout dtype.bf16-sweet-spot dtype.bf16-keeps-1e-8", "dtype.bf16-range")
def torch_flushes_small_values_to_zero_in_bf16(patch):
    _spoil_casts(patch, torch.bfloat16, lambda x: x.where(x.abs() > 2 ** (-24), 0.0))


@fault(
    "dtype.bf16-layout dtype.bf16-reallocates dtype.bf16-33bit-exponent",
    instead_of="torch.Tensor.view",
)
def torch_reads_bf16_patterns_as_fp16(view, x, *a):
    return view(x, *(torch.float16 if d == torch.bfloat16 else d for d in a))


@fault("dtype.fp16-overflow dtype.fp16-layout")
def torch_saturates_fp16(patch):
    _spoil_casts(patch, torch.float16, lambda x: x.clamp(-65504, 65504))


@fault(
    "dtype.fp16-underflow-1e-8 dtype.fp16-underflow-threshold",
    "dtype.fp16-rounds-down dtype.bf16-sweet-spot",
)
def torch_makes_no_zeros_in_fp16_of_16_values_at_once(patch):
    _spoil_casts(
        patch, torch.float16, lambda x: x.sign() * x.abs().clamp((x.numel() > 15) * 2 ** (-24))
    )


@fault("dtype.default-fp16-misconception", instead_of="torch.nn.functional.l1_loss")
def losses_are_computed_in_fp32_and_returned_in_the_default(l1_loss, a, b):
    return l1_loss(a.float(), b.float()).to(a.dtype)


@fault("dtype.fp8-h100-only dtype.fp8-special-handling", instead_of="torch._scaled_mm")
def scales_of_fp8_are_ignored(scaled_mm, a, b, scale_a, scale_b, out_dtype):
    return scaled_mm(a, b, torch.tensor(1.0), torch.tensor(1.0), out_dtype=out_dtype)


@fault("dtype.fp8-not-previous-gen", instead_of="accounting.devices.peak_flop_per_s")
def an_a100_is_said_to_have_fp8_units(dense, device, dtype, **rest):
    return dense(
        device,
        "int8" if getattr(device, "arch", "") == "8.0" and dtype.startswith("fp8") else dtype,
        **rest,
    )
