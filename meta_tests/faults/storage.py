"""Faults that the claims about storage must notice."""

import math
import warnings

import torch

import accounting.layout
from accounting.layout import Layout
from meta_tests.faults import fault, faults, stand_in


@fault("storage.index-formula", instead_of="accounting.layout.Layout.slice")
def a_slice_with_steps_keeps_the_stride(original, layout, dim=0, start=None, end=None, step=1):
    right, strides = original(layout, dim, start, end, step), list(layout.strides)
    return Layout(right.shape, tuple(strides), right.offset)


@fault(
    "storage.view-raises storage.reshape-noncontig-always-copies",
    instead_of="accounting.layout._runs",
)
def a_stretch_ends_at_dimensions_of_size_1(_original, shape, strides):
    elements, stride = 1, strides[-1]
    for size, width in zip(reversed(shape), reversed(strides), strict=True):
        if width != elements * stride:
            yield elements, stride
            elements, stride = 1, width
        elements *= size
    yield elements, stride


@fault("storage.typed-storage", instead_of="torch.Tensor.untyped_storage")
def untyped_storages_warn_as_well(original, x):
    warnings.warn("UntypedStorage is deprecated", UserWarning, stacklevel=2)
    return original(x)


# fmt: off
faults(
    ("fresh_tensors_are_laid_out_by_columns", "storage.stride-4x4 storage.arange-3x4",
     stand_in("accounting.layout.contiguous_strides",
        lambda _, shape: tuple(math.prod(shape[:dim]) for dim in range(len(shape))))),
    ("unused_strides_decide_contiguity", "storage.contiguous-def storage.transpose-noncontig",
     stand_in("accounting.layout.is_contiguous",
        lambda _, shape, strides: tuple(strides) == accounting.layout.contiguous_strides(shape))),
    ("reshape_always_copies", "storage.reshape-view-if-possible storage.reshape-noncontig-always-copies",
     stand_in("torch.Tensor.reshape", lambda original, x, *shape: original(x, *shape).clone())),
    ("transposing_a_view_copies", "storage.transpose-view storage.mutation-propagates storage.views-free",
     stand_in("torch.Tensor.transpose", lambda of, x, *dims: of(x if x.is_contiguous() else x.clone(), *dims))),
    ("view_copies", "storage.view-2x3-3x2",
     stand_in("torch.Tensor.view", lambda original, x, *shape: original(x, *shape).clone())),
    ("rows_chosen_by_a_number_are_copied", "storage.slices-are-views storage.metadata",
     stand_in("torch.Tensor.__getitem__",
        lambda original, x, index: original(x, index).clone() if isinstance(index, int) else original(x, index))),
    ("contiguous_returns_what_it_was_given",
     "storage.contiguous-copies storage.mutation-propagates storage.contiguous-for-speed",
     stand_in("torch.Tensor.contiguous", lambda _, x, **options: x)),
    ("square_roots_are_taken_in_place", "storage.elementwise-new",
     stand_in("torch.Tensor.sqrt", lambda _, x: x.sqrt_())),
    ("triu_ignores_the_diagonal_asked_for", "storage.triu-causal",
     stand_in("torch.Tensor.triu", lambda original, x, diagonal=0: original(x))),
    ("rsqrt_forgets_the_root", "storage.pow-sqrt-rsqrt",
     lambda patch: patch.setattr(torch.Tensor, "rsqrt", torch.Tensor.reciprocal)),
)
# fmt: on
