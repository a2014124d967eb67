"""Faults that the claims about storage must notice."""

import math
import warnings

import torch

import accounting.layout
from accounting.layout import Layout
from meta_tests.faults import fault


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


@fault("storage.view-2x3-3x2", instead_of="torch.Tensor.view")
def view_copies(original, x, *shape):
    return original(x, *shape).clone()


@fault("storage.view-raises", instead_of="torch.Tensor.view")
def view_copies_columns(view, x, *shape):
    is_of_columns = x.dim() == 2 and x.stride(1) == 1 and x.stride(0) > x.shape[1] > 0
    return view(x.contiguous() if is_of_columns else x, *shape)


@fault("storage.slices-are-views storage.metadata", instead_of="torch.Tensor.__getitem__")
def rows_chosen_by_a_number_are_copied(original, x, index):
    return original(x, index).clone() if isinstance(index, int) else original(x, index)


@fault(
    "storage.contiguous-copies storage.mutation-propagates",
    "storage.contiguous-for-speed",
    instead_of="torch.Tensor.contiguous",
)
def contiguous_returns_what_it_was_given(_, x, **options):
    return x


@fault("storage.elementwise-new", instead_of="torch.Tensor.sqrt")
def square_roots_are_taken_in_place(_, x):
    return x.sqrt_()


@fault("storage.triu-causal", instead_of="torch.Tensor.triu")
def triu_ignores_the_diagonal_asked_for(original, x, diagonal=0):
    return original(x)


@fault("storage.pow-sqrt-rsqrt")
def rsqrt_forgets_the_root(patch):
    patch.setattr(torch.Tensor, "rsqrt", torch.Tensor.reciprocal)


@fault("storage.contiguous-copies", instead_of="torch.Tensor.contiguous")
def a_contiguous_copy_of_many_loses_its_last_value(contiguous, x, **options):
    y = contiguous(x, **options)
    if y.data_ptr() != x.data_ptr() and x.numel() > 4096:
        y.view(-1)[-1] = 0
    return y


@fault("storage.reshape-noncontig-always-copies", instead_of="torch.Tensor.reshape")
def reshape_copies_16_bits_in_the_order_of_memory(reshape, x, *shape):
    y = reshape(x, *shape)
    if x.element_size() == 2 and y.data_ptr() != x.data_ptr():
        return reshape(x.transpose(-1, -2), y.shape)
    return y


@fault("storage.triu-causal", instead_of="torch.Tensor.triu")
def triu_of_many_rows_is_one_diagonal_too_high(triu, x, diagonal=0):
    return triu(x, diagonal + (len(x) > 64))


@fault("storage.elementwise-new", instead_of="torch.Tensor.relu")
def relu_of_many_works_in_place(relu, x):
    return x.relu_() if x.numel() > 65_536 else relu(x)


@fault("storage.contiguous-copies", instead_of="torch.Tensor.contiguous")
def a_large_transposed_matrix_is_handed_back_as_a_view(contiguous, x, **options):
    transposed = x.dim() > 1 and not x.is_contiguous() and x.mT.is_contiguous()
    return x.view_as(x) if transposed and x.nbytes > 2**20 else contiguous(x, **options)


@fault("storage.transpose-noncontig", instead_of="torch.Tensor.t")
def large_matrices_are_copied_when_transposed(t, x):
    return t(x).contiguous() if min(x.shape) >= 1024 else t(x)
