"""`accounting.layout` beyond the claims: any strides at all, torch's refusals, and the errors for bad input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.layout import Layout, contiguous_layout, contiguous_strides, view_strides
from test_claims.strategies import factorisations, shapes


@st.composite
def strided(draw):
    """A layout of any strides, those of dimensions that are never stepped along included; and a shape to view it in."""
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
    x = torch.empty(layout.storage_numel + layout.offset).as_strided(layout.shape, layout.strides, layout.offset)
    try:
        expected = x.view(shape).stride()
    except RuntimeError:
        expected = None
    strides = view_strides(layout.shape, layout.strides, shape)
    assert strides == expected, f"view_strides={strides}, but should be {expected} [{layout}, {shape=}]"
    assert layout.is_contiguous == x.is_contiguous(), f"is_contiguous={layout.is_contiguous} [{layout}]"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        *(("slice", each) for each in ((1, 0, 3, 2), (2, 1, None, 1), (0, 1, 9, 3), (-1, -2, None, 2))),
        *(("select", each) for each in ((0, 1), (1, -1), (-1, 2))),
        *(("transpose", each) for each in ((0, 1), (0, -1))),
        *(("permute", [each]) for each in ((2, 0, 1), (0, -1, 1))),
        *(("unsqueeze", [each]) for each in (0, 1, 3, -1, -2)),
        *(("squeeze", each) for each in ((), (0,), (1,), ((0, 2),))),
        *(("expand", [each]) for each in ((2, 3, 4), (5, 2, 3, 4), (-1, 3, 4), (1, 7, 2, 3, 4), (2, 1, 2, 3, 4))),
        *(("diagonal", each) for each in ((), (1, 1, 2), (-1, 2, 0), (2, 2, 1), (-9, 0, 1))),
        *(("flatten", each) for each in ((), (1, 2), (0, 1), (1, 1))),
        *(("unflatten", each) for each in ((2, (2, 2)), (-1, (-1, 1)))),
        *(("reshape", [each]) for each in ((24,), (6, -1), (4, 6))),
        *(("view", [each]) for each in ((2, 3, 2, 2), (2, 1, 3, 4))),
        *(("as_strided", each) for each in (((2, 2), (1, 5)), ((3,), (2,), 4))),
    ],
)
def test_an_operation_gives_the_shape_strides_and_offset_that_torch_gives(method, arguments):
    storage = torch.arange(100)
    of_torch = getattr(torch.Tensor, method, torch.ops.aten.slice)  # a method of all but slice
    for shape, strides in (((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (4, 8, 1)), ((1, 3, 1), (1, 2, 9))):
        tensor = storage.as_strided(shape, strides, 3)
        try:
            expected = of_torch(tensor, *arguments)
        except (RuntimeError, IndexError):
            continue  # what is refused is below
        got = getattr(Layout(shape, strides, 3), method)(*arguments)
        own = expected.untyped_storage().data_ptr() == storage.untyped_storage().data_ptr()
        should = Layout(tuple(expected.shape), expected.stride(), expected.storage_offset() if own else 0)
        assert got == should, f"{got}, but torch has {should} [{shape}, {strides}]"
        assert [storage[offset] for offset in got.offsets()] == expected.flatten().tolist() or not own


x = contiguous_layout((2, 3))
