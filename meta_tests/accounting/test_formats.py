"""The checks of number formats can fail: each cell of the tables is perturbed, and each perturbation is noticed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from accounting.formats import FORMATS, Format, dtype_name, format_of

SMALL = [row for row in FORMATS.values() if isinstance(row, Format) and row.bits <= 8]


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


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.torch_name])
def test_a_dtype_is_taken_as_torch_and_numpy_have_it(name):
    called = FORMATS[name].torch_name
    spellings = [name, name.upper(), called, f"torch.{called}", FORMATS[name]]
    spellings += [getattr(torch, called)] if hasattr(torch, called) else []
    spellings += [np.dtype(called), getattr(np, called, np.bool_)] if hasattr(np, called) else []
    wrong = [each for each in spellings if dtype_name(each) != name]
    assert not wrong, f"{wrong} are not taken for {name}"
