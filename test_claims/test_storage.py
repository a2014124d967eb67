"""Claims about storage: strides over an allocation, views that share it, and copies."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from accounting.layout import (
    contiguous_layout,
    contiguous_strides,
    is_contiguous,
    storage_offset,
    view_strides,
)
from prooflops.memory import measured_memory
from test_claims.oracles.messages import agree, equal
from test_claims.oracles.tensors import layout_of, metered, places, shares_storage
from test_claims.strategies import (
    SHAPES,
    TORCH_DTYPES,
    chains_of,
    covering,
    with_dtype,
)


@pytest.mark.claim("storage.stride-4x4")
@pytest.mark.parametrize(
    "make",
    [
        *(torch.empty, torch.zeros, torch.rand, torch.randn, torch.eye, torch.ones),
        lambda rows, columns, **of: torch.tensor([[1] * columns] * rows, **of),
        lambda *shape, **of: torch.full(shape, 1, **of),
    ],
)
def test_a_fresh_4x4_matrix_has_strides_4_and_1(device, make):
    is_random = make in (torch.rand, torch.randn)
    for dtype, *_ in covering("storage.stride-4x4", row=is_random):
        with_it = with_dtype(device, TORCH_DTYPES[dtype])
        x = make(4, 4, device=with_it, dtype=TORCH_DTYPES[dtype])
        down = x[1].data_ptr() - x.data_ptr()
        right = x[0, 1].data_ptr() - x.data_ptr()
        counted = down // x.element_size(), right // x.element_size()
        formula = contiguous_strides((4, 4))
        agree(
            f"strides in {dtype}", memory=counted, torchs=x.stride(), formula=formula, should=(4, 1)
        )


@pytest.mark.claim("storage.index-formula")
def test_element_1_2_of_a_4x4_matrix_lies_at_6(device):
    x = torch.arange(16, device=device).reshape(4, 4)
    formula = storage_offset((1, 2), x.stride())
    agree("the place of (1, 2)", formula=formula, value=x[1, 2].item(), should=6)

    column = x[:, 1]
    offsets = 0, column.storage_offset()
    found = [storage_offset((2,), column.stride(), offset) for offset in offsets]
    equal(found, [8, 9], "places of column[2] without and with the offset")

    large = torch.empty(2**20, 2**20, device="meta")
    place = large[2**19, 3].storage_offset()
    equal(storage_offset((2**19, 3), large.stride()), place, "a place in a large storage")


@pytest.mark.claim("storage.index-formula")
def test_every_chain_of_views_follows_the_layout_formulas_at_every_step(device):
    for chain in chains_of("storage.index-formula"):
        x = chain.base(device)
        layout = contiguous_layout(chain.shape)
        # The contents of the storage, place by place.
        contents = x.flatten().tolist()
        for step in chain.steps:
            after = step.of(x)
            formula = step.of(layout)
            if not shares_storage(x, after):
                contents = [contents[place] for place in layout.offsets()]
            x = after
            layout = formula

            equal(layout_of(x), formula, "the layout", chain=chain)
            sought = [formula.offset_of(*index) for index in np.ndindex(*formula.shape)]
            equal(sought, formula.offsets(), "places by offset_of", chain=chain)

            values = [contents[place] for place in sought]
            equal(x.flatten().tolist(), values, "values", chain=chain)
            # torch's pointer of a tensor without elements is 0.
            if x.numel():
                index = tuple(dim % size for dim, size in enumerate(x.shape))
                value = contents[formula.offset_of(*index)]
                equal(x[index].item(), value, "a value", index=index, chain=chain)
                distance = (x.data_ptr() - x.untyped_storage().data_ptr()) // x.element_size()
                equal(distance, formula.offset, "the offset in memory", chain=chain)


@pytest.mark.claim("storage.metadata")
def test_allocation_shape_strides_and_offset_are_all_of_a_tensor(device):
    for chain in chains_of("storage.metadata"):
        x = chain.tensor(device)
        empty = torch.empty(0, dtype=x.dtype, device=x.device)
        rebuilt = empty.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        equal(rebuilt, x, "a tensor rebuilt", chain=chain)
        equal(rebuilt.data_ptr(), x.data_ptr(), "the address", chain=chain)


@pytest.mark.claim("storage.contiguous-def")
def test_contiguous_means_that_iteration_walks_the_storage_place_by_place(device):
    for chain in chains_of("storage.contiguous-def"):
        x = chain.tensor(device)
        walked = places(x).flatten().tolist()
        start = walked[0] if walked else 0
        in_order = walked == list(range(start, start + len(walked)))
        equal(is_contiguous(x.shape, x.stride()), in_order, "is_contiguous", chain=chain)
        equal(x.is_contiguous(), in_order, "torch's is_contiguous", chain=chain)


@pytest.mark.claim("storage.transpose-noncontig")
def test_a_transposed_matrix_is_contiguous_only_if_a_dimension_is_short(device):
    for case in covering("storage.transpose-noncontig"):
        for m, n in (SHAPES[case.size], (2, 2), (1, 4096), (4096, 4096)):
            dtype = TORCH_DTYPES[case.dtype]
            matrix = torch.empty(m, n, dtype=dtype, device=with_dtype(device, dtype))
            layout = contiguous_layout((m, n)).transpose(0, 1)
            is_short = min(m, n) < 2
            equal(layout.is_contiguous, is_short, "is_contiguous by formula")
            equal(matrix.T.is_contiguous(), is_short, "is_contiguous", case=case)
            equal(matrix.T.T.is_contiguous(), True, "is_contiguous of its transpose", case=case)


@pytest.mark.claim("storage.contiguous-copies")
def test_contiguous_copies_exactly_those_that_are_not_contiguous(device):
    for chain in chains_of("storage.contiguous-copies"):
        x = chain.tensor(device)
        y = x.contiguous()
        copied = not shares_storage(x, y)
        is_scattered = not is_contiguous(x.shape, x.stride())
        equal(copied, is_scattered, "whether contiguous() copies", chain=chain)
        equal(y, x, "contiguous()", chain=chain)
        if copied:
            equal(layout_of(y), contiguous_layout(x.shape), "the copy's layout", chain=chain)
        else:
            assert y is x, "contiguous() made another tensor over the storage"


@pytest.mark.claim("storage.slices-are-views", "storage.metadata")
def test_an_index_of_integers_and_slices_shares_the_storage(device):
    every_second = slice(None, None, 2)
    indices = (
        every_second,
        slice(-3, -1),
        (slice(1, None), 0),
        (every_second, slice(-9, 9, 3)),
        (..., -1),
        (..., every_second),
    )
    for case in covering("storage.slices-are-views"):
        x = case.tensor(device)
        values = np.array(x.tolist()).reshape(x.shape)
        for index in (0, -1, *indices) if x.numel() else indices:
            assert shares_storage(x, x[index]), f"x[{index}] copied [{case}]"
            equal(x[index].tolist(), values[index].tolist(), "values", index=index, case=case)


@pytest.mark.claim("storage.slices-are-views")
def test_lists_index_tensors_and_masks_copy(device):
    for case in covering("storage.slices-are-views"):
        x = case.tensor(device)
        if not x.numel():
            continue
        row = torch.tensor(0, device=x.device)
        assert shares_storage(x, x[row]), f"an index tensor without dimensions copied [{case}]"
        mask = torch.ones_like(x, dtype=torch.bool)
        for index in ([0], (slice(None), [0]), row[None], mask, mask[:, 0]):
            assert not shares_storage(x, x[index]), f"x[{index}] shares the storage of x [{case}]"


@pytest.mark.claim("storage.transpose-view")
def test_transposing_exchanges_two_strides_and_copies_nothing(device):
    for chain in chains_of("storage.transpose-view"):
        assert_transposed(chain.tensor(device))


def assert_transposed(x):
    """That each way to exchange two dimensions exchanges their strides in place."""
    __tracebackhide__ = True
    values = np.array(x.tolist()).reshape(x.shape)
    for first, second in combinations(range(x.dim()), 2):
        order = list(range(x.dim()))
        order[first], order[second] = second, first
        ways = {"transpose": x.transpose(first, second), "permute": x.permute(order)}
        strides = tuple(x.stride(dim) for dim in order)
        for name, y in ways.items():
            assert shares_storage(x, y), f"{name} copied"
            equal(y.stride(), strides, "strides", name=name, x=layout_of(x))
            equal(y.tolist(), values.transpose(order).tolist(), "values", name=name)


@pytest.mark.claim("storage.mutation-propagates")
def test_a_write_through_a_view_shows_in_the_base_and_the_reverse(device):
    for chain in chains_of("storage.mutation-propagates", views_only=True):
        assert_written_through(chain, device)


def assert_written_through(chain, device):
    """That a write to the base or to its view shows in the other, and in no copy."""
    __tracebackhide__ = True
    base = chain.base(device)
    view = chain.viewed(base)
    copy = view.clone() if view.is_contiguous() else view.contiguous()
    before = copy.tolist()
    if not view.numel():
        return
    last = tuple(size - 1 for size in view.shape)
    unchanged = base.clone()
    view[last] = not view[last]

    changed = (base != unchanged).flatten().nonzero().flatten().tolist()
    equal(changed, [layout_of(view).offset_of(*last)], "places changed")
    equal(copy.tolist(), before, "the copy")

    # Elements that share a place can be filled, but not written one by one.
    for x in (base,) if 0 in view.stride() else (base, view):
        ones = torch.ones_like(x)
        for way, write in {
            "fill_": lambda x=x: x.fill_(1),
            "copy_": lambda x=x, ones=ones: x.copy_(1 - ones.int()),
            "add_": lambda x=x, ones=ones: x.add_(ones),
            "zero_": x.zero_,
        }.items():
            write()
            should = way in ("fill_", "add_")
            equal(view, torch.full_like(view, should), "the view after a write", way=way)
            equal(chain.viewed(base.clone()), view, "the base after a write", way=way)


@pytest.mark.claim(
    "storage.reshape-view-if-possible",
    "storage.reshape-noncontig-always-copies",
    "storage.view-raises",
    "storage.contiguous-then-view",
)
def test_reshape_copies_exactly_where_view_raises(device):
    for chain in chains_of("storage.reshape-view-if-possible"):
        x = chain.tensor(device)
        elements = x.numel()
        assert_reshaped(x, (elements,))
        for rows in (2, 3) if elements else ():
            if elements % rows == 0:
                assert_reshaped(x, (rows, elements // rows))
                assert_reshaped(x, (elements // rows, 1, rows))
    for case in covering("storage.reshape-noncontig-always-copies"):
        x = case.tensor(device)
        assert_reshaped(x, (x.numel(),))


def assert_reshaped(x, shape):
    """That view and reshape do to this shape what the formula says."""
    __tracebackhide__ = True
    try:
        viewed = x.view(shape).stride()
    except RuntimeError:
        viewed = None
    equal(view_strides(x.shape, x.stride(), shape), viewed, "view_strides")

    reshaped = x.reshape(shape) if len(shape) > 1 else x.flatten()
    if x.numel():
        equal(shares_storage(x, reshaped), viewed is not None, "whether reshape shares the storage")

    equal(layout_of(reshaped), layout_of(x).reshape(shape), "the layout")

    values = np.array(x.tolist()).reshape(shape).tolist()
    equal(reshaped.tolist(), values, "values")
    equal(x.contiguous().view(shape).tolist(), values, "values viewed after contiguous()")


@pytest.mark.claim("storage.typed-storage")
def test_comparing_typed_storages_warns_and_untyped_storages_do_not(device, recwarn):
    for case in covering("storage.typed-storage"):
        x = case.tensor(device)
        column = x[:, 1]
        copy = x.clone()
        # torch warns of typed storages once a process.
        vars(torch.storage._warn_typed_storage_removal).pop("has_warned", None)
        with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
            typed = [y.storage().data_ptr() for y in (x, column, copy)]
        recwarn.clear()
        untyped = [y.untyped_storage().data_ptr() for y in (x, column, copy)]

        equal(typed, untyped, "addresses of typed storages", case=case)
        equal(untyped[0], untyped[1], "the address of x[:, 1]'s storage", case=case)
        assert untyped[0] != untyped[2], f"a copy has the storage of x [{case}]"
        assert not recwarn.list, f"untyped_storage() warned: {recwarn.list[0].message}"
        assert x.data_ptr() != column.data_ptr(), "x.data_ptr() would do as well"


def chained_views(x):
    x = x.transpose(0, 1)[1:]
    x = x.unsqueeze(0).expand(3, -1, -1)
    x = x.permute(2, 0, 1).unflatten(0, (-1, 1))
    x = x.squeeze(1).diagonal(0, 0, 1)
    return x.select(0, 0).as_strided((2,), (1,))


@pytest.mark.claim("storage.views-free")
def test_making_views_allocates_nothing(device):
    device = metered(device)
    cases = [*covering("storage.views-free"), *covering("storage.views-free", row=1)]
    bases = [case.tensor(device) for case in cases]
    with measured_memory(device) as held:
        for x in bases:
            for view in (x, x.permute(1, 0).unsqueeze(0).squeeze(0)):
                chained_views(view)
                view.chunk(2), view.diagonal(), x.select(0, 0), x.unbind(), x.narrow(0, 0, 2)
                x.expand(2, *x.shape), x.detach()
        held.mark("views")
        copies = [x.clone() for x in bases]
    got = held.phases["views"].allocated_bytes, held.allocated_bytes
    should = 0, sum(copy.nbytes for copy in copies)
    equal(got, should, "bytes allocated by views, and with copies")


@pytest.mark.claim("storage.views-free")
def test_making_views_takes_a_time_that_does_not_grow_with_their_size(device, sizing, speed):
    wanted = 2**21
    if device.type != "cpu":
        # Eleven views take the host some 20 µs; reading and writing the clone, 8 bytes for each
        # element, takes the accelerator a millisecond.
        wanted = 2 ** round(math.log2(sizing.bytes_moved_in(1e-3) / 8))
    elements = sizing.fitting(wanted, lambda elements: 4 * 2 * elements, least=2**21)
    small = torch.zeros(2**3, device=device)
    large = torch.zeros(elements, device=device)
    speed.assert_slower(
        lambda: chained_views(large.view(2, -1)),
        lambda: chained_views(small.view(2, -1)),
        f"views of {elements // 8:,} times the elements",
        at_least=0,
        at_most=4,
    )
    what = f"copying {large.nbytes / 2**20:.0f} MiB over making eleven views"
    speed.assert_slower(
        large.clone, lambda: chained_views(large.view(2, -1)), what, at_least=10, pairs=15
    )


@pytest.mark.claim("storage.views-free")
def test_a_view_keeps_the_whole_storage_of_its_base(device):
    with measured_memory(metered(device)) as held:
        base = torch.zeros(1_000_000, device=metered(device))
        view = base[:10]
        del base
        held.mark("view")
        copy = view.clone()
        del view
        held.mark("copy")
    equal(held.phases["view"].live_bytes, 4_000_000, "bytes kept by a view of 40")
    equal(held.phases["copy"].live_bytes, copy.nbytes, "bytes kept by a copy of the view")
