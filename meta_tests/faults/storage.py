"""Faults that the claims about storage must notice."""

import math

import accounting.layout
from accounting.layout import Layout
from meta_tests.faults import fault


@fault("storage.index-formula", instead_of="accounting.layout.Layout.slice")
def a_slice_with_steps_keeps_the_stride(original, layout, dim=0, start=None, end=None, step=1):
    right, strides = original(layout, dim, start, end, step), list(layout.strides)
    return Layout(right.shape, tuple(strides), right.offset)


@fault("storage.typed-storage", instead_of="torch.TypedStorage.data_ptr")
def the_address_of_a_typed_storage_is_its_own(original, storage):
    return original(storage) + id(storage)


@fault("storage.stride-4x4 storage.arange-3x4", instead_of="accounting.layout.contiguous_strides")
def fresh_tensors_are_laid_out_by_columns(_, shape):
    return tuple(math.prod(shape[:dim]) for dim in range(len(shape)))


@fault(
    "storage.contiguous-def storage.transpose-noncontig",
    instead_of="accounting.layout.is_contiguous",
)
def unused_strides_decide_contiguity(_, shape, strides):
    return tuple(strides) == accounting.layout.contiguous_strides(shape)


@fault(
    "storage.reshape-view-if-possible storage.reshape-noncontig-always-copies",
    instead_of="torch.Tensor.reshape",
)
def reshape_always_copies(original, x, *shape):
    return original(x, *shape).clone()


@fault(
    "storage.transpose-view storage.mutation-propagates storage.views-free",
    instead_of="torch.Tensor.transpose",
)
def transposing_a_view_copies(of, x, *dims):
    return of(x if x.is_contiguous() else x.clone(), *dims)


@fault("storage.view-raises", instead_of="torch.Tensor.view")
def view_copies_columns(view, x, *shape):
    is_of_columns = x.dim() == 2 and x.stride(1) == 1 and x.stride(0) > x.shape[1] > 0
    return view(x.contiguous() if is_of_columns else x, *shape)


@fault("storage.slices-are-views storage.metadata", instead_of="torch.Tensor.__getitem__")
def rows_chosen_by_a_number_are_copied(original, x, index):
    return original(x, index).clone() if isinstance(index, int) else original(x, index)


@fault(
    "storage.contiguous-copies storage.contiguous-then-view storage.mutation-propagates",
    "storage.contiguous-for-speed",
    instead_of="torch.Tensor.contiguous",
)
def contiguous_returns_what_it_was_given(_, x, **options):
    return x
