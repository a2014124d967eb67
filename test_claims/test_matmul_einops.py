"""Claims about einops: reduce and rearrange, and shapes in annotations."""

import itertools
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import einops
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.layout import contiguous_layout, view_strides
from test_claims.oracles.messages import equal
from test_claims.oracles.scalars import integers
from test_claims.oracles.tensors import shares_storage
from test_claims.strategies import PLACED, ViewChain, covering, shapes, sizes


@pytest.mark.claim("matmul.reduce")
@given(shape=shapes((1, 4), (1, 4)), data=st.data())
def test_reduce_does_to_the_dimensions_it_leaves_out_what_its_word_says(device, shape, data):
    x = integers(*shape, device=device)
    values = x.cpu().numpy()
    names = "batch token head hidden".split()[: len(shape)]
    kept = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names) - 1))
    gone = tuple(at for at, name in enumerate(names) if name not in kept)
    left = [name for name in names if name in kept]
    order = [left.index(name) for name in kept]
    pattern = f"{' '.join(names)} -> {' '.join(kept)}"
    for word in ("sum", "mean", "max", "min", "prod"):
        got = einops.reduce(x, pattern, word).cpu()
        should = getattr(np, word)(values, axis=gone).transpose(order)
        torch.testing.assert_close(got, torch.as_tensor(should), rtol=1e-6, atol=1e-6)


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

    equal(split, x.view(b, s, heads, hidden), "split")
    equal(other, x.view(b, s, hidden, heads).mT, "split as (hidden heads)")

    numpys = split.cpu().numpy() @ w.cpu().numpy()
    for got, should in (
        (merged, numpys.reshape(b, s, -1)),
        (moved, numpys.transpose(1, 3, 0, 2).reshape(s, hidden * b, heads)),
    ):
        torch.testing.assert_close(got.cpu(), torch.from_numpy(should), rtol=1e-5, atol=1e-8)


@st.composite
def patterns(draw, most_axes=4):
    """Sizes of some axes, a grouping of them as they lie, and one of another permutation."""
    axes = "abcd"[: draw(st.integers(1, most_axes))]
    size = {axis: draw(st.integers(1, 3)) for axis in axes}
    return (
        size,
        draw(_grouped(axes)),
        draw((st.just(axes) | st.permutations(axes)).flatmap(_grouped)),
    )


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
    return tuple(math.prod(size[axis] for axis in group) for group in groups)


def axes_and_order(groups, others):
    """All axes of the groups, and their places in the order that the other groups have."""
    axes = list(itertools.chain.from_iterable(groups))
    order = [axes.index(axis) for axis in itertools.chain.from_iterable(others)]
    return axes, order


def numbered(groups, size, device, dtype="int64"):
    """A tensor of these groups' sizes, each element its place, as far as the dtype holds it."""
    return ViewChain(sizes_of(groups, size), (), dtype).base(device)


@pytest.mark.claim("matmul.rearrange-heads", "matmul.rearrange-inverse")
def test_heads_of_any_dtype_layout_and_size_are_split_and_merged(device):
    for case in covering("matmul.rearrange-heads"):
        x = case.tensor(device)
        split = einops.rearrange(x, "b (heads hidden) -> b heads hidden", heads=2)
        moved = einops.rearrange(x, "b (heads hidden) -> heads b hidden", heads=2)
        halves = x.tensor_split(2, dim=1)
        equal(moved, torch.stack(halves), "heads in front", case=case)
        equal(split, torch.stack(halves, dim=1), "heads", case=case)
        merged = einops.rearrange(split, "b heads hidden -> b (heads hidden)")
        equal(merged, x, "merged", case=case)


LONG = {"a": 3, "b": 50, "c": 40, "d": 20}


@pytest.mark.claim("matmul.rearrange-inverse")
@given(pattern=patterns(), dtype=st.sampled_from(PLACED))
@example(
    dtype="bf16",
    pattern=(LONG, [["a"], ["b", "c"], ["d"]], [["c"], ["d", "a"], ["b"]]),
)
def test_rearranging_back_gives_every_element_its_place_again(device, pattern, dtype):
    size, left, right = pattern
    x = numbered(left, size, device, dtype)
    there = einops.rearrange(x, f"{written(left)} -> {written(right)}", **size)
    back = einops.rearrange(there, f"{written(right)} -> {written(left)}", **size)

    equal(back, x, "there and back")

    axes, order = axes_and_order(left, right)
    apart = x.cpu().reshape([size[axis] for axis in axes])
    should = apart.permute(order).reshape(sizes_of(right, size))
    equal(there, should, "rearranged")


@pytest.mark.claim("matmul.rearrange-ambiguous")
@given(factors=st.lists(sizes(most=3), min_size=2, max_size=4))
def test_a_split_needs_the_size_of_all_factors_but_one(device, factors):
    size = dict(zip(("heads", "hidden", "c", "d"), factors, strict=False))
    width = math.prod(factors)
    x = torch.arange(2 * width, device=device).view(2, width)
    axes = " ".join(size)
    pattern = f"x ({axes}) -> x {axes}"

    for known in itertools.combinations(size.items(), len(size) - 1):
        split = einops.rearrange(x, pattern, **dict(known))
        equal(split, x.view(2, *factors), "the split", known=known)

    ambiguous = pytest.raises(einops.EinopsError, match="Could not infer sizes")
    for known in itertools.combinations(size.items(), len(size) - 2):
        with ambiguous:
            einops.rearrange(x, pattern, **dict(known))
    refused = pytest.raises(einops.EinopsError, match="can't divide")
    for heads in range(1, width + 2):
        divides = width % heads == 0
        with nullcontext() if divides else refused:
            einops.rearrange(x, "x (heads hidden) -> x heads hidden", heads=heads)


def laid_out(pattern):
    """The pattern, and the dimensions of its left side as they lie in memory."""
    return st.tuples(st.just(pattern), st.permutations(pattern[1]))


@pytest.mark.claim("matmul.rearrange-is-view")
@given(drawn=patterns().flatmap(laid_out))
# Enough elements for other kernels; a split and a transposition.
@example(
    drawn=(
        (LONG, [["a"], ["b", "c"], ["d"]], [["c"], ["d"], ["a"], ["b"]]),
        [["d"], ["a"], ["b", "c"]],
    ),
)
def test_rearrange_copies_exactly_where_strides_cannot_express_the_result(device, drawn):
    (size, left, right), laid = drawn
    axes, order = axes_and_order(laid, right)
    apart = contiguous_layout(tuple(size[axis] for axis in axes))
    moved = apart.permute(order)
    view = view_strides(moved.shape, moved.strides, sizes_of(right, size)) is not None

    for dtype in PLACED:
        numbers = numbered(laid, size, device, dtype)
        x = numbers.permute([laid.index(group) for group in left])
        y = einops.rearrange(x, f"{written(left)} -> {written(right)}", **size)
        equal(shares_storage(x, y), view, "whether the storage is shared", dtype=dtype)

        if view:
            # The last element of each axis, and so of x.
            last = (-1,) * y.dim()
            y[last] = not y[last]

            end = (-1,) * x.dim()
            equal(x[end], y[last], "the input after a write to the result", dtype=dtype)


def halved(x: Annotated[torch.Tensor, "batch 4"]) -> torch.Tensor:
    return x / 2


class Refusing(type):
    def __instancecheck__(cls, _value):
        return False


class OtherShape(metaclass=Refusing):
    """A class like jaxtyping's for another shape: no given tensor is an instance."""


class Halving(torch.nn.Module):
    def forward(self, x: OtherShape) -> OtherShape:
        return x / 2


@dataclass
class Half:
    x: OtherShape


@pytest.mark.claim("matmul.jaxtyping-unenforced")
@given(shape=shapes((0, 3)))
def test_an_annotated_shape_is_documentation_that_python_does_not_enforce(device, shape):
    hints = get_type_hints(halved, include_extras=True)
    equal(hints["x"].__metadata__, ("batch 4",), "the annotation")
    x = torch.ones(shape, device=device)
    half = torch.no_grad()(Halving.forward)
    for result in (halved(x), Halving()(x), half(None, x), Half(x).x):
        equal(result.shape, shape, "the shape")


@pytest.mark.claim("matmul.jaxtyping-unenforced")
@pytest.mark.needs("jaxtyping", "beartype")
def test_jaxtypings_annotations_are_enforced_by_its_decorator_alone(device):
    from beartype import beartype
    from jaxtyping import Float, TypeCheckError, jaxtyped

    def unchecked(x):
        return x / 2

    unchecked.__annotations__ = {"x": Float[torch.Tensor, "batch 4"]}
    wrong = torch.ones(3, 5, device=device)

    equal(unchecked(wrong).shape, (3, 5), "the shape of a function annotated alone")

    enforced = jaxtyped(typechecker=beartype)(unchecked)
    equal(enforced(torch.ones(3, 4, device=device)).shape, (3, 4), "the shape")

    with pytest.raises(TypeCheckError):
        enforced(wrong)
