"""Formats, layouts and bytes beyond the claims: every small pattern, any strides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import memory
from accounting.formats import FORMATS, Format, dtype_name
from accounting.layout import Layout, contiguous_strides, view_strides
from test_claims.strategies import TORCH_DTYPES, dtypes, factorisations, shapes, sizes

SMALL = [row for row in FORMATS.values() if isinstance(row, Format) and row.bits <= 8]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_decoding_and_encoding_undo_each_other(row):
    for pattern in range(1 << row.bits):
        value = row.decode(pattern)
        again = row.encode(value, overflow=None if row.has_inf else "saturate")
        if math.isnan(value):
            assert math.isnan(row.decode(again)), (
                f"{row.name}: NaN {pattern:#x} is encoded as {row.decode(again)}"
            )
        else:
            assert again == pattern, (
                f"{row.name}: {value} is encoded as {again:#x}, but should be as {pattern:#x}"
            )


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.torch_name])
def test_a_dtype_is_taken_as_torch_and_numpy_have_it(name):
    called = FORMATS[name].torch_name
    spellings = [name, name.upper(), called, f"torch.{called}", FORMATS[name]]
    spellings += [getattr(torch, called)] if hasattr(torch, called) else []
    spellings += [np.dtype(called), getattr(np, called, np.bool_)] if hasattr(np, called) else []
    wrong = [each for each in spellings if dtype_name(each) != name]
    assert not wrong, f"{wrong} are not taken for {name}"


@st.composite
def strided(draw):
    """A layout of any strides, and a shape to view it in.

    Some strides are those of dimensions that are never stepped along.
    """
    shape = draw(shapes((0, 4), (0 if draw(st.integers(0, 9)) == 9 else 1, 4)))
    dense = contiguous_strides(shape)
    # Strides near the contiguous ones make stretches that a view can merge; any others seldom do.
    strides = tuple(draw(st.sampled_from([width, 2 * width, 0, 1, 7])) for width in dense)
    return Layout(shape, strides, draw(st.integers(0, 3))), draw(factorisations(math.prod(shape)))


@given(drawn=strided())
@example(drawn=(Layout((4, 1, 3), (6, 24, 2)), (2, 6)))
@example(drawn=(Layout((2, 0), (7, 3)), (2, 0)))
def test_view_strides_and_contiguity_are_torchs_for_any_strides(drawn):
    layout, shape = drawn
    x = torch.empty(layout.storage_numel + layout.offset).as_strided(
        layout.shape, layout.strides, layout.offset
    )
    try:
        expected = x.view(shape).stride()
    except RuntimeError:
        expected = None
    strides = view_strides(layout.shape, layout.strides, shape)
    assert strides == expected, (
        f"view_strides={strides}, but should be {expected} [{layout}, {shape=}]"
    )
    assert layout.is_contiguous == x.is_contiguous(), (
        f"is_contiguous={layout.is_contiguous} [{layout}]"
    )


@given(dims=st.lists(st.tuples(sizes(0, 5), sizes(0, 7)), max_size=4), dtype=dtypes)
def test_storage_bytes_are_what_torch_allocates_for_these_strides(dims, dtype):
    shape, strides = [size for size, _ in dims], [stride for _, stride in dims]
    real = torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[dtype]).untyped_storage().nbytes()
    got = memory.storage_bytes(shape, strides, dtype)
    assert got == real, (
        f"storage_bytes={got}, but should be {real} [{shape=}, {strides=}, {dtype=}]"
    )
