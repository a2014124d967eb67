"""Claims about einops' reduce and rearrange, and about shapes in annotations."""

import itertools
import math
from contextlib import nullcontext
from typing import Annotated, get_type_hints

import einops
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.layout import contiguous_layout, view_strides
from test_claims.oracles.scalars import integers
from test_claims.oracles.tensors import difference, shares_storage
from test_claims.strategies import shapes, sizes


@pytest.mark.claim("matmul.reduce")
@given(shape=shapes((1, 4), (1, 4)), data=st.data())
def test_reduce_does_to_the_dimensions_it_leaves_out_what_its_word_says(device, shape, data):
    x = integers(*shape, device=device)
    names = "batch token head hidden".split()[: len(shape)]
    kept = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names) - 1))
    gone = [at for at, name in enumerate(names) if name not in kept]
    left = [name for name in names if name in kept]
    order = [left.index(name) for name in kept]
    pattern = f"{' '.join(names)} -> {' '.join(kept)}"
    for word in ("sum", "mean", "max", "min"):
        got = einops.reduce(x, pattern, word)
        method = {"max": "amax", "min": "amin"}.get(word, word)
        reduced = getattr(np, word)(x.cpu().numpy(), axis=tuple(gone))
        numpys = torch.tensor(np.transpose(reduced, order))
        reduced = getattr(x, method)(gone if len(gone) > 1 else gone[0])
        torchs = reduced.permute(order).cpu()
        for other, should in ((f"numpy.{word}", numpys), (f"x.{method}", torchs)):
            assert got.shape == should.shape, (
                f"shape={got.shape}, but {other} has {should.shape} [{pattern!r}]"
            )
            close = torch.allclose(got.cpu(), should, rtol=1e-6, atol=1e-6)
            assert close, (
                f"{word}={got.tolist()}, but {other} gives {should.tolist()} [{pattern!r} of "
                f"{shape}]"
            )


@pytest.mark.claim("matmul.reduce")
@pytest.mark.parametrize("word", ["sum", "mean", "max", "min"])
def test_reduce_takes_all_of_many_strided_elements(device, word):
    x = torch.randn(3, 70, 700, device=device).transpose(0, 2)
    got = einops.reduce(x, "batch token head -> token", word).cpu().numpy()
    should = getattr(np, word)(x.cpu().double().numpy(), axis=(0, 2))
    off = np.abs(got - should).max()
    assert off < 1e-3, f"{word} over 2,100 elements is off by {off:.2g} from numpy's"


@pytest.mark.claim("matmul.rearrange-heads")
@given(b=sizes(), s=sizes(), heads=sizes(most=4), hidden=sizes(most=4))
@example(b=2, s=3, heads=2, hidden=4)
@example(b=3, s=90, heads=8, hidden=32)
def test_heads_are_split_off_transformed_alone_and_merged_again(device, b, s, heads, hidden):
    x = torch.rand(b, s, heads * hidden, device=device)
    w = torch.rand(hidden, hidden, device=device)
    split = einops.rearrange(x, "... (heads hidden) -> ... heads hidden", heads=heads)
    other = einops.rearrange(x, "... (hidden heads) -> ... heads hidden", heads=heads)
    transformed = einops.einsum(split, w, "... hidden, hidden to -> ... to")
    merged = einops.rearrange(transformed, "... heads hidden -> ... (heads hidden)")
    moved = einops.rearrange(transformed, "b s heads to -> s (to b) heads")
    values = x.cpu().double().numpy()
    by_numpy = values.reshape(b, s, heads, hidden) @ w.cpu().double().numpy()
    should = {
        "merged": (merged, by_numpy.reshape(b, s, -1)),
        "moved": (moved, by_numpy.transpose(1, 3, 0, 2).reshape(s, hidden * b, heads)),
        "split": (split, values.reshape(b, s, heads, hidden)),
        "split as (hidden heads)": (other, values.reshape(b, s, hidden, heads).swapaxes(2, 3)),
    }
    for name, (got, numpys) in should.items():
        assert got.shape == numpys.shape, f"{name}: {got.shape}, but should be {numpys.shape}"
        close = np.allclose(got.cpu().numpy(), numpys, rtol=1e-5)
        assert close, f"{name}: {got}, but should be {numpys} [{b=}, {s=}, {heads=}, {hidden=}]"


@st.composite
def patterns(draw, most_axes=4):
    """Sizes of some axes, a grouping of them as they lie, another permutation of them, and its
    grouping.
    """
    axes = "abcd"[: draw(st.integers(1, most_axes))]
    size = {axis: draw(st.integers(1, 3)) for axis in axes}
    return size, draw(_grouped(axes)), draw(st.permutations(axes).flatmap(_grouped))


@st.composite
def _grouped(draw, axes):
    """The axes in this order, neighbours merged at random: [["a"], ["b", "c"]]."""
    groups = [[axes[0]]]
    for axis in axes[1:]:
        if draw(st.booleans()):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def written(groups):
    terms = []
    for group in groups:
        joined = " ".join(group)
        terms.append(f"({joined})" if len(group) > 1 else joined)
    return " ".join(terms)


def sizes_of(groups, size):
    found = ()
    for group in groups:
        found += (math.prod(size[axis] for axis in group),)
    return found


def numbered(groups, size, device):
    """A tensor of these groups' sizes, each element its place."""
    shape = sizes_of(groups, size)
    return torch.arange(math.prod(shape), device=device).reshape(shape)


@pytest.mark.claim("matmul.rearrange-inverse")
@given(pattern=patterns())
@example(
    pattern=(
        {"a": 3, "b": 50, "c": 40, "d": 2},
        [["a"], ["b", "c"], ["d"]],
        [["c"], ["d", "a"], ["b"]],
    )
)
def test_rearranging_back_gives_every_element_its_place_again(device, pattern):
    size, left, right = pattern
    x = numbered(left, size, device)
    there = einops.rearrange(x, f"{written(left)} -> {written(right)}", **size)
    back = einops.rearrange(there, f"{written(right)} -> {written(left)}", **size)
    said = f"[{written(left)} -> {written(right)}, {size}]"
    wrong = difference(back, x)
    assert not wrong, f"there and back: {wrong} {said}"
    axes = list(itertools.chain.from_iterable(left))
    order = [axes.index(axis) for axis in itertools.chain.from_iterable(right)]
    apart = x.cpu().numpy().reshape([size[axis] for axis in axes])
    should = apart.transpose(order).reshape(sizes_of(right, size))
    assert there.tolist() == should.tolist(), (
        f"rearranged={there.tolist()}, but should be {should.tolist()} {said}"
    )


@pytest.mark.claim("matmul.rearrange-ambiguous")
@given(factors=st.lists(sizes(most=3), min_size=2, max_size=4))
def test_a_split_needs_the_size_of_all_factors_but_one(device, factors):
    size = dict(zip("abcd", factors, strict=False))
    width = math.prod(factors)
    x = torch.arange(2 * width, device=device).view(2, width)
    pattern = f"x ({' '.join(size)}) -> x {' '.join(size)}"
    for known in itertools.combinations(size.items(), len(size) - 1):
        split = einops.rearrange(x, pattern, **dict(known))
        wrong = difference(split, x.view(2, *factors))
        assert not wrong, f"split where {known} are given: {wrong} [{size}]"
    for known in itertools.combinations(size.items(), len(size) - 2):
        with pytest.raises(einops.EinopsError, match="Could not infer sizes"):
            einops.rearrange(x, pattern, **dict(known))
    for heads in range(1, width + 2):
        divides = width % heads == 0
        refused = pytest.raises(einops.EinopsError, match="can't divide")
        with nullcontext() if divides else refused:
            einops.rearrange(x, "x (heads hidden) -> x heads hidden", heads=heads)


@pytest.mark.claim("matmul.rearrange-is-view")
@given(pattern=patterns(), data=st.data())
def test_rearrange_copies_exactly_where_strides_cannot_express_the_result(device, pattern, data):
    size, left, right = pattern
    laid = data.draw(st.permutations(left), "the dimensions of x as they lie in memory")
    numbers = numbered(laid, size, device)
    x = numbers.permute([laid.index(group) for group in left])
    y = einops.rearrange(x, f"{written(left)} -> {written(right)}", **size)
    axes = list(itertools.chain.from_iterable(laid))
    order = [axes.index(axis) for axis in itertools.chain.from_iterable(right)]
    apart = contiguous_layout(tuple(size[axis] for axis in axes))
    moved = apart.permute(order)
    view = view_strides(moved.shape, moved.strides, sizes_of(right, size)) is not None
    said = f"[{written(left)} -> {written(right)}, {size}, {x.stride()=}]"
    assert shares_storage(x, y) == view, (
        f"shares storage: {shares_storage(x, y)}, but should be {view} {said}"
    )
    if view:
        # The last element of each axis, and so of x.
        y[(-1,) * y.dim()] = -1
        assert x[(-1,) * x.dim()] == -1, (
            f"what is written to the result does not show in the input {said}"
        )


def halved(x: Annotated[torch.Tensor, "batch 4"]) -> torch.Tensor:
    return x / 2


@pytest.mark.claim("matmul.jaxtyping-unenforced")
@given(shape=shapes((0, 3)))
def test_an_annotated_shape_is_documentation_that_python_does_not_enforce(device, shape):
    stated = get_type_hints(halved, include_extras=True)["x"].__metadata__
    assert stated == ("batch 4",), f"the annotation states {stated}"
    assert halved(torch.ones(shape, device=device)).shape == shape, (
        f"Python did not run the function on {shape}"
    )


@pytest.mark.claim("matmul.jaxtyping-unenforced")
@pytest.mark.needs("jaxtyping", "beartype")
def test_jaxtypings_annotations_are_enforced_by_its_decorator_alone(device):
    from beartype import beartype
    from jaxtyping import Float, TypeCheckError, jaxtyped

    def unchecked(x):
        return x / 2

    unchecked.__annotations__ = {"x": Float[torch.Tensor, "batch 4"]}
    wrong = torch.ones(3, 5, device=device)
    assert unchecked(wrong).shape == (3, 5), "jaxtyping's annotation alone changed the function"
    enforced = jaxtyped(typechecker=beartype)(unchecked)
    assert enforced(torch.ones(3, 4, device=device)).shape == (3, 4)
    with pytest.raises(TypeCheckError):
        enforced(wrong)
