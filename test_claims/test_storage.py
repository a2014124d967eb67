"""Claims about storage: a tensor is strides over an allocation; which operations view it, and which copy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as attention

from accounting.layout import contiguous_layout, contiguous_strides, is_contiguous, storage_offset, view_strides
from accounting.measured import memory
from test_claims.oracles import operators
from test_claims.oracles.tensors import layout_of, metered, places, shares_storage
from test_claims.strategies import (
    ALWAYS_VIEWS,
    ViewChain,
    factorisations,
    shapes,
    sizes,
    view_chains,
    with_dtype,
    with_each_operation,
)


@pytest.mark.claim("storage.stride-4x4")
def test_a_4x4_matrix_has_strides_4_and_1(device):
    x = torch.arange(16, device=device).reshape(4, 4)
    down, right = (x[1, 0] - x[0, 0]).item(), (x[0, 1] - x[0, 0]).item()  # counted: the values are storage places
    strides, formula = x.stride(), contiguous_strides((4, 4))
    assert strides == (down, right) == formula == (4, 1), f"{strides=}, {formula=}, {down=}, {right=}, not (4, 1)"


@pytest.mark.claim("storage.arange-3x4")
def test_twelve_numbers_in_3_rows_have_strides_4_and_1_and_view_as_4_rows(device):
    x = torch.arange(12, device=device).reshape(3, 4)
    formula = contiguous_strides((3, 4))
    assert x.stride() == formula == (4, 1), f"strides={x.stride()} and {formula=}, but should be (4, 1)"
    y = x.view(4, 3)
    assert (y.stride(), shares_storage(x, y)) == (view_strides((3, 4), (4, 1), (4, 3)), True)
    assert y.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.claim("storage.index-formula")
def test_element_1_2_of_a_4x4_matrix_lies_at_6_and_a_column_needs_the_storage_offset(device):
    x = torch.arange(16, device=device).reshape(4, 4)
    formula = storage_offset((1, 2), x.stride())
    assert formula == x[1, 2].item() == 6, f"storage_offset={formula}, but should be {x[1, 2].item()}"
    column = x[:, 1]
    found = [storage_offset((2,), column.stride(), offset) for offset in (0, column.storage_offset())]
    assert found == [8, column[2].item()], f"column[2] is sought at {found} without and with the offset, not at 8 and 9"


@pytest.mark.claim("storage.index-formula")
@given(chain=view_chains())
@with_each_operation
def test_every_chain_of_views_follows_the_layout_formulas_at_every_step(device, chain):
    x, layout = chain.base(device), contiguous_layout(chain.shape)
    contents = list(range(x.numel()))  # of the storage, place by place
    for step in chain.steps:
        after, formula = step.of(x), step.of(layout)
        if not shares_storage(x, after):
            contents = [contents[place] for place in layout.offsets()]
        x, layout = after, formula
        said = f"[{step!r} in {chain!r}]"
        assert layout_of(x) == formula, f"formula={formula}, but should be {layout_of(x)} {said}"
        expected = [contents[place] for place in formula.offsets()]
        assert x.flatten().tolist() == expected, f"values={x.flatten().tolist()}, but should be {expected} {said}"
        if x.numel():  # torch's pointer of a tensor without elements is 0
            distance = (x.data_ptr() - x.untyped_storage().data_ptr()) // x.element_size()
            assert distance == formula.offset, f"offset={formula.offset}, but should be {distance} {said}"


@pytest.mark.claim("storage.metadata")
@given(chain=view_chains())
def test_an_allocation_with_shape_strides_and_offset_is_all_there_is_to_a_tensor(device, chain):
    x = chain.tensor(device)
    empty = torch.empty(0, dtype=x.dtype, device=device)
    rebuilt = empty.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
    assert rebuilt.tolist() == x.tolist(), f"rebuilt={rebuilt.tolist()}, but should be {x.tolist()} [{chain!r}]"
    assert rebuilt.data_ptr() == x.data_ptr(), f"{chain!r} does not lie where its metadata says"


@pytest.mark.claim("storage.contiguous-def")
@given(chain=view_chains())
@with_each_operation
def test_contiguous_means_that_iteration_walks_the_storage_place_by_place(device, chain):
    x = chain.tensor(device)
    walked = places(x).flatten().tolist()
    in_order = walked == list(range(walked[0], walked[0] + len(walked))) if walked else True
    formula = is_contiguous(x.shape, x.stride())
    assert formula == in_order, f"is_contiguous={formula}, but the walk is {walked} [{chain!r}]"
    assert x.is_contiguous() == in_order, f"torch says {x.is_contiguous()}, but the walk is {walked} [{chain!r}]"


@pytest.mark.claim("storage.transpose-noncontig")
@given(m=sizes(0), n=sizes(0))
def test_a_transposed_matrix_is_contiguous_only_where_a_dimension_has_fewer_than_2(device, m, n):
    x = torch.empty(m, n, device=device).t()
    expected = min(m, n) < 2
    formula = contiguous_layout((m, n)).transpose(0, 1).is_contiguous
    assert x.is_contiguous() == expected, f"is_contiguous={x.is_contiguous()}, but should be {expected} [{m=}, {n=}]"
    assert formula == expected, f"formula={formula}, but should be {expected} [{m=}, {n=}]"


@pytest.mark.claim("storage.contiguous-copies")
@given(chain=view_chains())
@with_each_operation
def test_contiguous_copies_exactly_those_that_are_not_contiguous(device, chain):
    x = chain.tensor(device)
    y = x.contiguous()
    copied = not shares_storage(x, y)
    should = not is_contiguous(x.shape, x.stride())
    assert copied == should, f"contiguous() {copied=}, but should be {should} [{chain!r}, strides={x.stride()}]"
    assert y.tolist() == x.tolist(), f"contiguous()={y.tolist()}, but should be {x.tolist()} [{chain!r}]"
    if copied:
        assert layout_of(y) == contiguous_layout(x.shape), f"layout={layout_of(y)} [{chain!r}]"


@pytest.mark.claim("storage.slices-are-views", "storage.metadata")
@given(chain=view_chains(operations=("select", "slice")))
def test_basic_indexing_shares_the_storage(device, chain):
    base = chain.base(device)
    x = base
    for step in chain.steps:
        x = step.of(x)
        assert shares_storage(base, x), f"{step!r} copied [{chain!r}]"


@pytest.mark.claim("storage.slices-are-views")
@given(shape=shapes((1, 3), (1, 4)), data=st.data())
def test_lists_index_tensors_and_masks_copy(device, shape, data):
    x = ViewChain(shape, ()).base(device)
    rows = data.draw(st.lists(sizes(0, shape[0] - 1), min_size=1, max_size=4))
    index, least = torch.tensor(rows, device=device), data.draw(sizes(0, x.numel() - 1))
    for name, copy in {f"x[{rows}]": x[rows], f"x[{index}]": x[index], f"x[x >= {least}]": x[x >= least]}.items():
        assert not shares_storage(x, copy), f"{name} shares the storage of x, so the condition is not needed [{shape=}]"
    assert shares_storage(x, x[index[0]]), f"an index tensor without dimensions copied, unlike an integer [{shape=}]"


@pytest.mark.claim("storage.view-2x3-3x2")
def test_a_2x3_matrix_is_viewed_as_3x2_without_a_copy(device):
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]], device=device)
    y = x.view(3, 2)
    assert shares_storage(x, y), "view(3, 2) copied"
    assert y.tolist() == [[1, 2], [3, 4], [5, 6]], f"values={y.tolist()}"


@pytest.mark.claim("storage.transpose-view")
@given(shape=shapes((2, 3), (0, 4)), data=st.data())
def test_transposing_exchanges_two_strides_and_copies_nothing(device, shape, data):
    first, second = data.draw(st.permutations(range(len(shape))))[:2]
    x = ViewChain(shape, ()).base(device)
    y = x.transpose(first, second)
    assert shares_storage(x, y), f"transpose({first}, {second}) copied [{shape=}]"
    assert layout_of(y) == contiguous_layout(shape).transpose(first, second), f"{layout_of(y)} [{shape=}]"
    assert (y.stride(first), y.stride(second)) == (x.stride(second), x.stride(first)), f"{y.stride()} [{shape=}]"
    should = np.swapaxes(x.cpu().numpy(), first, second).tolist()
    assert y.tolist() == should, f"y={y.tolist()}, but should be {should} [{shape=}, {first}, {second}]"


@pytest.mark.claim("storage.mutation-propagates")
@given(chain=view_chains(operations=ALWAYS_VIEWS))
def test_a_write_through_any_view_shows_in_the_base_at_its_offset_and_one_through_the_base_in_the_view(device, chain):
    base = chain.base(device)
    view = base
    for step in chain.steps:
        view = step.of(view)
    copy = view.clone() if view.is_contiguous() else view.contiguous()
    before = copy.tolist()
    if not view.numel():
        return
    last = tuple(size - 1 for size in view.shape)
    view[last] = -1
    changed = [place for place, value in enumerate(base.flatten().tolist()) if value != place]
    formula = [layout_of(view).offset_of(*last)]
    assert changed == formula, f"changed={changed}, but should be {formula} [{chain!r}]"
    assert copy.tolist() == before, f"the copy changed with its original [{chain!r}]"
    base.fill_(-2)
    assert (view == -2).all(), f"after a write through the base the view shows {view.tolist()} [{chain!r}]"


@pytest.mark.claim("storage.reshape-view-if-possible", "storage.reshape-noncontig-always-copies", "storage.view-raises")
@given(chain=view_chains(), data=st.data())
def test_reshape_copies_exactly_where_view_raises(device, chain, data):
    x = chain.tensor(device)
    shape = data.draw(factorisations(x.numel()))
    formula = view_strides(x.shape, x.stride(), shape)
    try:
        viewed = x.view(shape).stride()
    except RuntimeError:
        viewed = None
    assert formula == viewed, f"view_strides={formula}, but should be {viewed} [{chain!r}, {shape=}]"
    reshaped = x.reshape(shape)
    if x.numel():
        copied = not shares_storage(x, reshaped)
        assert copied == (viewed is None), f"reshape {copied=}, but view gives {viewed} [{chain!r}, {shape=}]"
    expected = layout_of(x).reshape(shape)
    assert layout_of(reshaped) == expected, f"reshape={layout_of(reshaped)}, but should be {expected} [{chain!r}]"


@pytest.mark.claim("storage.elementwise-new")
@given(chain=view_chains().filter(lambda chain: chain.tensor().numel()))
def test_elementwise_operations_allocate_unless_in_place_given_an_out_or_doing_nothing(device, chain):
    x = chain.tensor(device).float()
    new = {"x + 1": x + 1, "x * 1": x * 1, "x.sqrt()": x.sqrt(), "relu": torch.relu(x)}
    for name, y in new.items():
        assert not shares_storage(x, y), f"{name} shares the storage of x"
    for name in ("add", "sub", "mul", "div", "sqrt", "pow", "gelu", "tanh", "where"):
        arguments = operators.NEW[name].arguments(with_dtype(device))
        first, second = (operators.NEW[name].call(*arguments) for _ in range(2))
        others = [*arguments, second]
        shared = any(shares_storage(first, other) for other in others)
        assert not shared, f"a result of {name} is not in its own storage"
    same = {
        "x.add_(1)": x.add_(1),
        "x.relu_()": x.relu_(),
        "torch.add(x, 1, out=x)": torch.add(x, 1, out=x),
        "x.to(the dtype it has)": x.to(torch.float32),
        "dropout(x, p=0)": torch.nn.functional.dropout(x, p=0.0),
    }
    for name, y in same.items():
        assert shares_storage(x, y), f"{name} allocated, so the condition is not needed"


@pytest.mark.claim("storage.triu-causal")
@given(length=sizes(1, 8))
def test_triu_above_the_diagonal_is_true_where_a_key_lies_in_a_querys_future(device, length):
    mask = torch.ones(length, length, device=device).triu(diagonal=1).bool()
    future = [[key > query for key in range(length)] for query in range(length)]
    assert mask.tolist() == future, f"mask={mask.tolist()}, but should be {future} [{length=}]"
    operands = torch.randn(3, length, 4, device=device)
    by_mask, causal = (attention(*operands, **of) for of in ({"attn_mask": ~mask}, {"is_causal": True}))
    torch.testing.assert_close(by_mask, causal, msg=f"by the mask {by_mask}, but causal attention is {causal}")
    assert torch.ones(length, length).triu().diagonal().all(), "plain triu should hide each token from itself"


@pytest.mark.claim("storage.pow-sqrt-rsqrt")
def test_pow_sqrt_and_rsqrt_work_on_each_element(device):
    x = torch.tensor([1, 4, 9], device=device)
    for name, got, expected in (
        ("pow(2)", x.pow(2), [1, 16, 81]),
        ("sqrt()", x.sqrt(), [1, 2, 3]),
        ("rsqrt()", x.rsqrt(), [1, 1 / 2, 1 / 3]),
    ):
        # A device may compute rsqrt with an error of a few units in the last place of fp32.
        assert got.tolist() == pytest.approx(expected, rel=4 * 2**-23), f"{name}={got.tolist()}, not {expected}"


@pytest.mark.claim("storage.typed-storage")
def test_comparing_typed_storages_warns_and_untyped_storages_do_not(device, recwarn):
    x = torch.arange(12, device=device).reshape(3, 4)
    column = x[:, 1]
    # torch warns of typed storages once a process.
    vars(torch.storage._warn_typed_storage_removal).pop("has_warned", None)
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        same = x.storage().data_ptr() == column.storage().data_ptr()
    assert same, "the typed storages of x and x[:, 1] have two addresses"
    recwarn.clear()
    assert x.untyped_storage().data_ptr() == column.untyped_storage().data_ptr(), "the untyped storages differ"
    assert not recwarn.list, f"untyped_storage() warned: {recwarn.list[0].message}"
    assert x.data_ptr() != column.data_ptr(), "x.data_ptr() would do as well, though x[:, 1] begins elsewhere"


def chained_views(x: torch.Tensor) -> torch.Tensor:
    return x.view(2, -1).transpose(0, 1)[1:].unsqueeze(0).expand(3, -1, -1).permute(2, 0, 1)


@pytest.mark.claim("storage.views-free")
@given(chain=view_chains(operations=ALWAYS_VIEWS))
def test_making_views_allocates_nothing(device, chain):
    base = chain.base(metered(device))
    with memory(base.device) as held:
        view = base
        for step in chain.steps:
            view = step.of(view.detach())
        held.mark("views")
        copy = base.clone()
    got = held.phases["views"].allocated_bytes, held.allocated_bytes
    assert got == (0, copy.nbytes), f"views and then a copy of {copy.nbytes} bytes allocated {got} bytes [{chain!r}]"


@pytest.mark.claim("storage.views-free")
def test_making_views_takes_a_time_that_does_not_grow_with_their_size(device, sizing, speed, record_figure):
    # Six views take the host some 10 µs; reading and writing the clone takes an accelerator half a millisecond.
    wanted = 2**23 if device.type == "cpu" else 2 ** round(math.log2(sizing.bytes_moved_in(5e-4) / 8))
    elements = sizing.fitting(wanted, lambda elements: 4 * 2 * elements, least=2**23)
    small, large = torch.zeros(2**3, device=device), torch.zeros(elements, device=device)
    ratio = speed.ratio(lambda: chained_views(large), lambda: chained_views(small))
    record_figure(f"views of {elements // 8:,} times the elements: {ratio}")
    assert ratio.low < 2, f"views of {elements // 8:,} times the elements took {ratio}, but should take as long"
    if ratio.high > 2**10:  # then even a time that grows with the root of the size could hide in it
        pytest.skip(f"this machine's noise ({ratio.noise_percent:.0f} %) exceeds the effect: {ratio}")
    what = f"copying {large.nbytes / 2**20:.0f} MiB over making six views"
    speed.assert_slower(large.clone, lambda: chained_views(large), what, at_least=10, pairs=15)


@pytest.mark.claim("storage.views-free")
def test_a_view_keeps_the_whole_storage_of_its_base(device):
    with memory(metered(device)) as held:
        base = torch.zeros(1_000_000, device=metered(device))
        view = base[:10]
        del base
        held.mark("view")
        copy = view.clone()
        del view
        held.mark("copy")
    kept = held.phases["view"].live_bytes
    assert kept == 4_000_000, f"a view of 40 bytes keeps {kept} bytes, but should keep its base's 4,000,000"
    kept = held.phases["copy"].live_bytes
    assert kept == copy.nbytes == 40, f"a copy of the view keeps {kept} bytes, but should keep 40"


@pytest.mark.claim("storage.contiguous-for-speed")
@pytest.mark.parametrize("times", [1, 2])
def test_summing_a_column_is_slower_than_summing_its_contiguous_copy(device, sizing, speed, times):
    # On a CPU few enough for one thread, far enough apart for half a page or a whole one each.
    rows, stride = (2**14, times * 2**9) if device.type == "cpu" else (2**22, times * 2**5)
    rows = sizing.fitting(rows, lambda rows: 4 * rows * (stride + 1), least=2**14)
    column = torch.ones(rows, stride, device=device)[:, 0]
    speed.assert_slower(column.sum, column.contiguous().sum, f"summing a column of {stride=} over its contiguous copy")


@pytest.mark.claim("storage.contiguous-for-speed")
@pytest.mark.parametrize("n", [512, 1024])
def test_a_product_with_a_transposed_matrix_is_not_worth_a_contiguous_copy(device, speed, n):
    transposed, vector = torch.rand(n, n, device=device).t(), torch.rand(n, device=device)
    what = f"copying a transposed matrix of side {n} for one product over multiplying it as it is"
    speed.assert_slower(lambda: transposed.contiguous() @ vector, lambda: transposed @ vector, what)
