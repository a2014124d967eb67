"""Faults that the claims about storage must notice."""

from __future__ import annotations

import math
import warnings

import torch

import accounting.layout
from accounting.layout import Layout
from meta_tests.faults import fault, replace
from prooflops.suite.speed import Ratio, Speed


@fault("storage.stride-4x4", "storage.arange-3x4")
def fresh_tensors_are_laid_out_by_columns(patch):
    def column_major(shape):
        return tuple(math.prod(shape[:dim]) for dim in range(len(shape)))

    replace(patch, accounting.layout.contiguous_strides, column_major)


@fault("storage.index-formula")
def the_storage_offset_is_dropped(patch):
    def without_offset(index, strides, offset=0):
        return sum(map(int.__mul__, index, strides))

    replace(patch, accounting.layout.storage_offset, without_offset)


@fault("storage.index-formula")
def a_slice_with_steps_keeps_the_stride(patch):
    original = Layout.slice

    def unstretched(layout, dim=0, start=None, end=None, step=1):
        right, strides = original(layout, dim, start, end, step), list(layout.strides)
        return Layout(right.shape, tuple(strides), right.offset)

    patch.setattr(Layout, "slice", unstretched)


@fault("storage.view-raises", "storage.reshape-noncontig-always-copies")
def a_stretch_ends_at_dimensions_of_size_1(patch):
    def cut(shape, strides):
        elements, stride = 1, strides[-1]
        for size, width in zip(reversed(shape), reversed(strides), strict=True):
            if width != elements * stride:
                yield elements, stride
                elements, stride = 1, width
            elements *= size
        yield elements, stride

    replace(patch, accounting.layout._runs, cut)


@fault("storage.contiguous-def", "storage.transpose-noncontig")
def unused_strides_decide_contiguity(patch):
    def strict(shape, strides):
        return tuple(strides) == accounting.layout.contiguous_strides(shape)

    replace(patch, accounting.layout.is_contiguous, strict)


@fault("storage.reshape-view-if-possible", "storage.reshape-noncontig-always-copies")
def reshape_always_copies(patch):
    original = torch.Tensor.reshape
    patch.setattr(torch.Tensor, "reshape", lambda x, *shape: original(x, *shape).clone())


@fault("storage.transpose-view", "storage.mutation-propagates", "storage.views-free")
def transposing_copies(patch):
    original = torch.Tensor.transpose
    patch.setattr(torch.Tensor, "transpose", lambda x, *dims: original(x, *dims).contiguous())


@fault("storage.view-2x3-3x2")
def view_copies(patch):
    original = torch.Tensor.view
    patch.setattr(torch.Tensor, "view", lambda x, *shape: original(x, *shape).clone())


@fault("storage.slices-are-views", "storage.metadata")
def slices_copy(patch):
    original = torch.Tensor.__getitem__
    patch.setattr(torch.Tensor, "__getitem__", lambda x, index: original(x, index).clone())


@fault("storage.contiguous-copies", "storage.mutation-propagates")
def contiguous_returns_what_it_was_given(patch):
    patch.setattr(torch.Tensor, "contiguous", lambda x, **options: x)


@fault("storage.elementwise-new")
def square_roots_are_taken_in_place(patch):
    patch.setattr(torch.Tensor, "sqrt", torch.Tensor.sqrt_)


@fault("storage.triu-causal")
def triu_ignores_the_diagonal_asked_for(patch):
    original = torch.Tensor.triu
    patch.setattr(torch.Tensor, "triu", lambda x, diagonal=0: original(x))


@fault("storage.pow-sqrt-rsqrt")
def rsqrt_forgets_the_root(patch):
    patch.setattr(torch.Tensor, "rsqrt", torch.Tensor.reciprocal)


@fault("storage.typed-storage")
def untyped_storages_warn_as_well(patch):
    original = torch.Tensor.untyped_storage

    def warning(x):
        warnings.warn("UntypedStorage is deprecated", UserWarning, stacklevel=2)
        return original(x)

    patch.setattr(torch.Tensor, "untyped_storage", warning)


@fault("storage.contiguous-for-speed")
def every_slow_way_takes_half_the_time(patch):
    patch.setattr(Speed, "ratio", lambda speed, slow, fast, **options: Ratio(0.5, 0.4, 0.6, 15))
