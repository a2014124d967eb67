"""Formats, layouts and bytes beyond the claims: every small pattern, any strides."""

import math

import numpy as np
import pytest
import torch

from accounting.formats import FORMATS, Format, dtype_name

SMALL = [row for row in FORMATS.values() if isinstance(row, Format) and row.bits <= 8]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_decoding_and_encoding_undo_each_other(row):
    for pattern in range(1 << row.bits):
        value = row.decode(pattern)
        again = row.encode(value, overflow=None if row.has_inf else "saturate")
        if math.isnan(value):
            assert math.isnan(row.decode(again))
        else:
            assert again == pattern


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.torch_name])
def test_a_dtype_is_taken_as_torch_and_numpy_have_it(name):
    called = FORMATS[name].torch_name
    spellings = [name, name.upper(), called, f"torch.{called}", FORMATS[name]]
    spellings += [getattr(torch, called)] if hasattr(torch, called) else []
    spellings += [np.dtype(called), getattr(np, called, np.bool_)] if hasattr(np, called) else []
    wrong = [each for each in spellings if dtype_name(each) != name]
    assert not wrong
