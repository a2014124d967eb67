"""The checks of number formats can fail: each cell of the tables is perturbed, and each perturbation is noticed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from accounting import devices, memory, roofline
from accounting.formats import (
    BLOCK_FORMATS,
    FORMATS,
    BlockFormat,
    Format,
    IntegerFormat,
    block_format_of,
    dtype_name,
    element_bits,
    format_of,
)
from meta_tests.accounting.refusals import refuses
from test_claims.oracles import numbers

SMALL = [row for row in FORMATS.values() if isinstance(row, Format) and row.bits <= 8]


def perturbed_cells(row: Format | IntegerFormat | BlockFormat) -> Iterator[tuple[str, Any]]:
    """Every field of a row with every value that it could be mistaken for."""
    for field in fields(row):
        value = getattr(row, field.name)
        others: list[Any]
        if field.name == "specials":
            others = ["ieee", "fn", "fnuz", "all_finite"]
        elif field.name == "torch_name":
            # A dtype that this torch has not cannot be compared with.
            others = [None, *(other.torch_name for other in FORMATS.values() if hasattr(torch, str(other.torch_name)))]
        elif field.name in ("element", "scale", "tensor_scale"):
            others = [*(other for other in FORMATS.values() if isinstance(other, Format) and other.bits <= 32)]
            others += [None] if field.name == "tensor_scale" else []
        elif isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int):
            others = [value - 1, value + 1, 2 * value]
        else:
            others = [f"{value}x"]
        for other in others:
            if other != value:
                yield field.name, other


def noticed(check: Any, row: Any, field: str, value: Any) -> str | None:
    """What the check says of a row with one cell changed; a row so wrong that it cannot compute says so itself."""
    try:
        return check(replace(row, **{field: value}))
    except (ArithmeticError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        return repr(error)


@pytest.mark.prove(sample=6)
@pytest.mark.parametrize("name", FORMATS)
def test_every_perturbed_cell_of_the_format_table_is_noticed(name):
    assert numbers.disagreement(FORMATS[name]) is None
    missed = [
        (field, value)
        for field, value in perturbed_cells(FORMATS[name])
        if noticed(numbers.disagreement, FORMATS[name], field, value) is None
    ]
    assert not missed, f"{name} with any of these cells passes every check: {missed}"


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_perturbed_cell_of_the_block_format_table_is_noticed(name):
    def check(row: BlockFormat) -> str | None:
        return numbers.block_disagreement(row, [])

    assert check(BLOCK_FORMATS[name]) is None
    missed = [
        (field, getattr(value, "name", value))
        for field, value in perturbed_cells(BLOCK_FORMATS[name])
        if noticed(check, BLOCK_FORMATS[name], field, value) is None
    ]
    assert not missed, f"{name} with any of these cells passes every check: {missed}"


def test_the_published_tables_know_every_format_and_no_other():
    known = {*numbers.PUBLISHED, *numbers.PUBLISHED_INTEGERS}
    assert known == set(FORMATS), f"without a counterpart: {sorted(known ^ set(FORMATS))}"
    assert set(numbers.PUBLISHED_BLOCKS) == set(BLOCK_FORMATS)


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_decoding_and_encoding_undo_each_other(row):
    for pattern in range(1 << row.bits):
        value = row.decode(pattern)
        again = row.encode(value, overflow=None if row.has_inf else "saturate")
        if math.isnan(value):
            assert math.isnan(row.decode(again)), f"{row.name}: NaN {pattern:#x} is encoded as {row.decode(again)}"
        else:
            assert again == pattern, f"{row.name}: {value} is encoded as {again:#x}, but should be as {pattern:#x}"


@pytest.mark.parametrize(
    ("name", "overflow", "should"),
    [
        ("fp8_e5m2", None, math.inf),
        ("fp8_e5m2", "inf", math.inf),
        ("fp8_e5m2", "saturate", 57344.0),
        ("fp8_e5m2", "nan", math.nan),
        ("fp8_e4m3", "saturate", 448.0),
        ("fp8_e4m3", "nan", math.nan),
        ("fp4_e2m1", "saturate", 6.0),
        ("e8m0", "nan", math.nan),
        ("fp64", None, math.inf),
    ],
)
def test_overflow_becomes_what_the_policy_says(name, overflow, should):
    for value in (math.inf, 1e300 if name != "fp64" else math.inf):
        assert format_of(name).rounded(value, overflow) == pytest.approx(should, nan_ok=True)
        if format_of(name).signed:
            assert format_of(name).rounded(-value, overflow) == pytest.approx(-should, nan_ok=True)


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, -1.7976931348623157e308, 2.0**-1022, 1 / 3])
def test_rounding_to_fp64_changes_nothing(value):
    assert math.copysign(1, format_of("fp64").rounded(value)) == math.copysign(1, value)
    assert format_of("fp64").rounded(value) == value


def test_a_block_of_zeros_and_a_last_short_block_are_quantised_like_any_other():
    for row in BLOCK_FORMATS.values():
        assert row.quantised([0.0] * 40).values == [0.0] * 40
        assert row.quantised([]).values == []
        assert len(row.quantised([1.0] * 40).scales) == math.ceil(40 / row.block_size)
        assert row.storage_bits(row.block_size + 1) - row.storage_bits(row.block_size) == (
            row.element.bits + row.scale.bits
        )


def test_mxfp4_cuts_off_what_exceeds_the_largest_element_times_the_scale():
    assert block_format_of("mxfp4").quantised([7.9, 4.0]).values == [6.0, 4.0]
    assert block_format_of("nvfp4").quantised([7.9, 4.0]).values[0] == pytest.approx(7.9, rel=1e-6)


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.torch_name])
def test_a_dtype_is_taken_as_torch_and_numpy_have_it(name):
    called = FORMATS[name].torch_name
    spellings = [name, name.upper(), called, f"torch.{called}", FORMATS[name]]
    spellings += [getattr(torch, called)] if hasattr(torch, called) else []
    spellings += [np.dtype(called), getattr(np, called, np.bool_)] if hasattr(np, called) else []
    wrong = [each for each in spellings if dtype_name(each) != name]
    assert not wrong, f"{wrong} are not taken for {name}"


def test_a_dtype_of_torch_or_numpy_costs_what_its_name_costs():
    for function in (element_bits, format_of, partial(memory.tensor_bytes, (3, 4)), partial(roofline.dot_work, 9)):
        assert function(torch.bfloat16) == function("bf16")
        assert function(np.float32) == function("F32") == function("fp32")
    assert devices.peak_flop_per_s("NVIDIA H100 PCIe", torch.float16) == 756e12


test_bad_input_is_refused_by_an_error_that_names_it = refuses(
    (lambda: element_bits("bf32"), ValueError, ["dtype", "'bf32'", "bf16", "did you mean"]),
    (lambda: element_bits("fp8"), ValueError, ["got 'fp8'; did you mean 'fp8_e4m3' or 'fp8_e5m2'?"]),
    (lambda: element_bits("float8"), ValueError, ["got 'float8'; did you mean 'fp8_e4m3' or 'fp8_e5m2'?"]),
    (lambda: element_bits("fp4"), ValueError, ["got 'fp4'; did you mean 'fp4_e2m1'?"]),
    (lambda: element_bits(torch.complex64), ValueError, ["must be one of fp64, fp32", "torch.complex64"]),
    (lambda: element_bits(None), ValueError, ["must be one of fp64, fp32", "None"]),
    (lambda: element_bits(["fp32"]), ValueError, ["dtype", "['fp32']", "fp32"]),
    (lambda: block_format_of("mxfp5"), ValueError, ["block format", "'mxfp5'", "mxfp4"]),
    (lambda: format_of("fp16").decode(1 << 16), ValueError, ["pattern", "65536", "2**16", "fp16"]),
    (lambda: format_of("fp16").decode(-1), ValueError, ["pattern", "-1"]),
    (lambda: format_of("fp16").decode(1.5), TypeError, ["pattern", "1.5"]),
    (lambda: format_of("int8").decode(256), ValueError, ["pattern", "256", "int8"]),
    (lambda: format_of("fp8_e4m3").rounded(1.0), ValueError, ["overflow", "saturate, nan", "None"]),
    (lambda: format_of("fp8_e4m3").rounded(1.0, "inf"), ValueError, ["overflow", "saturate, nan", "'inf'"]),
    (lambda: format_of("fp4_e2m1").rounded(1.0, "nan"), ValueError, ["overflow", "saturate", "'nan'"]),
    (lambda: format_of("fp4_e2m1").rounded(math.nan, "saturate"), ValueError, ["value", "no NaN", "nan"]),
    (lambda: format_of("e8m0").rounded(-1.0, "nan"), ValueError, ["value", "no sign", "-1.0"]),
    (lambda: format_of("fp16").rounded("1"), TypeError, ["value", "'1'", "str"]),
    (lambda: format_of("fp16").rounded(True), TypeError, ["value", "True", "bool"]),
    (lambda: block_format_of("nvfp4").quantised([1.0, math.inf]), ValueError, ["values", "inf"]),
    (lambda: block_format_of("nvfp4").quantised([None]), TypeError, ["values", "None"]),
    (lambda: block_format_of("nvfp4").storage_bits(-1), ValueError, ["elements", "-1"]),
)
