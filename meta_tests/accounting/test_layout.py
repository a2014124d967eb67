"""`accounting.layout` beyond the claims: any strides at all, torch's refusals, and the errors for bad input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.layout import (
    Layout,
    broadcast_shape,
    contiguous_layout,
    contiguous_strides,
    inferred_shape,
    is_contiguous,
    storage_extent,
    storage_offset,
    view_strides,
)
from meta_tests.accounting.refusals import refuses
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
@example(drawn=(Layout((2, 3, 1), (3, 1, 7)), (6, 1)))
def test_a_view_exists_exactly_where_some_strides_list_the_elements_in_order(drawn):
    layout, shape = drawn
    offsets = layout.offsets()
    # If strides exist, they are the distances from the first element to its neighbours, in row-major position.
    position = contiguous_strides(shape)
    distances = [offsets[p] - offsets[0] if size > 1 else 0 for p, size in zip(position, shape, strict=True) if offsets]
    exists = not offsets or Layout(shape, tuple(map(abs, distances)), layout.offset).offsets() == offsets
    strides = view_strides(layout.shape, layout.strides, shape)
    assert (strides is not None) == exists, f"view_strides={strides}, but a view exists={exists} [{layout}, {shape=}]"
    if strides is not None:
        viewed = layout.view(shape).offsets()
        assert viewed == offsets, f"the view lists {viewed}, but should list {offsets} [{layout}, {shape=}]"


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


@given(drawn=strided())
def test_a_storage_of_storage_numel_elements_is_just_enough(drawn):
    layout, _ = drawn

    def fits(elements):
        try:
            torch.empty(elements).as_strided(layout.shape, layout.strides, layout.offset)
        except RuntimeError:
            return False
        return True

    needed = layout.storage_numel
    assert fits(needed), f"torch wants more than storage_numel={needed} [{layout}]"
    assert not needed or not fits(needed - 1), f"torch is content with less than storage_numel={needed} [{layout}]"


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


test_bad_input_is_refused_by_the_name_of_the_argument_and_its_value = refuses(
    (lambda: contiguous_strides((2, -1)), ValueError, r"shape\[1\] must be at least 0, got -1"),
    (lambda: contiguous_strides((2, 1.5)), TypeError, r"shape\[1\] must be an integer, got 1.5"),
    (lambda: contiguous_strides((True,)), TypeError, r"shape\[0\] must be an integer, got True"),
    (lambda: contiguous_strides("23"), TypeError, "shape must be a sequence of integers, got '23'"),
    (lambda: contiguous_strides(3), TypeError, "shape must be a sequence of integers, got 3"),
    (lambda: storage_offset((1,), (4, 1)), ValueError, r"one entry per stride of \(4, 1\), got \(1,\)"),
    (lambda: storage_offset((-1,), (4,)), ValueError, r"index\[0\] must be at least 0, got -1"),
    (lambda: storage_offset((1,), (-4,)), ValueError, r"strides\[0\] must be at least 0, got -4"),
    (lambda: storage_offset((1,), (4,), offset=-1), ValueError, "offset must be at least 0, got -1"),
    (lambda: is_contiguous((2, 3), (3,)), ValueError, r"one entry per dimension of shape \(2, 3\), got \(3,\)"),
    (lambda: storage_extent((2,), (-1,)), ValueError, r"strides\[0\] must be at least 0, got -1"),
    (lambda: broadcast_shape((2, 3), (2,)), ValueError, r"got \(2, 3\), \(2,\): sizes 2 and 3 meet in dimension -1"),
    (lambda: inferred_shape((6,), (-1, -1)), ValueError, r"at most one -1, got \(-1, -1\)"),
    (lambda: inferred_shape((0, 2), (0, -1)), ValueError, r"\(0, -1\): any size could stand for -1"),
    (lambda: inferred_shape((6,), (4, -1)), ValueError, r"hold the 6 elements of shape \(6,\), got \(4, -1\)"),
    (lambda: view_strides((6,), (1,), (5,)), ValueError, r"hold the 6 elements of shape \(6,\), got \(5,\)"),
    (lambda: view_strides((6,), (1,), (-2, -3)), ValueError, r"new_shape\[0\] must be at least -1, got -2"),
    (lambda: Layout((2,), (1, 1)), ValueError, r"one entry per dimension of shape \(2,\), got \(1, 1\)"),
    (lambda: Layout((2,), (1,), -1), ValueError, "offset must be at least 0, got -1"),
    (lambda: x.offset_of(1), ValueError, r"one entry per dimension of shape \(2, 3\), got \(1,\)"),
    (lambda: x.offset_of(1, 3), ValueError, "index must be from -3 to 2, got 3"),
    (lambda: x.select(2, 0), ValueError, "dim must be from -2 to 1, got 2"),
    (lambda: x.select(True, 0), TypeError, "dim must be an integer, got True of type bool"),
    (lambda: contiguous_layout((0,)).select(0, 0), ValueError, "there is no dimension or element to choose, got 0"),
    (lambda: x.slice(0, step=-1), ValueError, "step must be at least 1, got -1"),
    (lambda: x.transpose(0, "1"), TypeError, "dim1 must be an integer, got '1'"),
    (lambda: x.permute((0, 0)), ValueError, r"each of the 2 dimensions once, got \(0, 0\)"),
    (lambda: x.expand((3,)), ValueError, r"at least the 2 dimensions of \(2, 3\), got \(3,\)"),
    (lambda: x.expand((4, 3)), ValueError, r"keep the sizes other than 1 of \(2, 3\), got \(4, 3\)"),
    (lambda: x.expand((-1, 2, 3)), ValueError, "shape must be at least 0, got -1"),
    (lambda: x.transpose(0, 1).view((6,)), ValueError, r"needs a copy"),
    (lambda: x.flatten(1, 0), ValueError, "start_dim must not come after end_dim, got 1 and 0"),
    (lambda: x.unflatten(1, (2, -1)), ValueError, r"hold the 3 elements of shape \(3,\), got \(2, -1\)"),
    (lambda: x.diagonal(0, 1, -1), ValueError, r"two dimensions, got 1 and -1 of \(2, 3\)"),
)
