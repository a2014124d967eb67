"""Hypothesis strategies of the claims: sizes, shapes, dtypes, and chains of view operations."""

from __future__ import annotations

import math
import re
import sys
from ast import literal_eval
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import example, settings
from hypothesis import strategies as st

from accounting.devices import has_dtype
from accounting.formats import FORMATS
from accounting.layout import is_contiguous

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The dtype names of `accounting.formats` that this torch can allocate, with torch's own.
# Not fp4: an element of torch's float4_e2m1fn_x2 holds two values.
TORCH_DTYPES = {
    name: getattr(torch, row.torch_name)
    for name, row in FORMATS.items()
    if row.torch_name and hasattr(torch, row.torch_name) and row.storage_bits % 8 == 0
}

_under_test = {"kind": "cpu"}


def draw_dtypes_of(device):
    """From now on the dtypes that are drawn are those that `device` has."""
    _under_test["kind"] = device.type


def dtypes_among(names):
    """Names of dtypes that the device under test has."""
    return st.sampled_from(sorted(names)).filter(lambda name: has_dtype(_under_test["kind"], name))


dtypes = dtypes_among(TORCH_DTYPES)


def with_dtype(device, dtype=torch.float64):
    """`device` where tensors can be of `dtype`, otherwise (fp64 on mps) the CPU."""
    return device if has_dtype(torch.device(device).type, dtype) else torch.device("cpu")


def in_fp64(x):
    """The values in fp64, on the host where the device has none."""
    return x.to(with_dtype(x.device)).double()


def fewer(test):
    """A fifth of the pace's examples, for a property whose every example costs tensors or a net.

    Sizes, dtypes and layouts decide such a property; further draws repeat them.
    """
    return settings(max_examples=max(10, settings.default.max_examples // 5))(test)


seeds = st.integers(0, 2**31)
# Tensors without elements matter, but as a rare case: everything after one is empty too.
seldom = st.integers(0, 9).map(lambda drawn: drawn == 9)


def sizes(least=1, most=6):
    """Sizes of one dimension, small enough to count element by element."""
    return st.integers(least, most)


def shapes(dims=(0, 4), size=(0, 5)):
    """Shapes; by default from 0 to 4 dimensions, sizes of 0 and 1 among them."""
    return st.lists(sizes(*size), min_size=dims[0], max_size=dims[1]).map(tuple)


@st.composite
def stretched(draw, shape):
    """A shape that broadcasts with `shape`, and with others drawn here.

    It is any tail of it, with sizes replaced by 1.
    """
    tail = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from([size, 1])) for size in tail)


@st.composite
def factorisations(draw, elements, most_dims=4):
    """A shape of just this many elements, sizes of 1 among the others."""
    if elements == 0:
        shape = list(draw(shapes((0, most_dims - 1))))
        shape.insert(draw(st.integers(0, len(shape))), 0)
        return tuple(shape)
    result = [1] * draw(st.integers(1 if elements > 1 else 0, most_dims))
    remainder = elements
    divisor = 2
    while remainder > 1:
        while remainder % divisor:
            divisor += 1
        result[draw(st.integers(0, len(result) - 1))] *= divisor
        remainder //= divisor
    return tuple(result)


@dataclass(frozen=True)
class ViewStep:
    """One view operation with its arguments; printed as it is written after a tensor."""

    name: str
    arguments: tuple[Any, ...]

    def of(self, x):
        """The step applied to a tensor, or to a Layout, whose methods have the names of torch's."""
        if self.name == "slice" and isinstance(x, torch.Tensor):
            dim, *cut = self.arguments
            return x[(*[slice(None)] * (dim % x.dim()), slice(*cut))]
        return getattr(x, self.name)(*self.arguments)

    def __repr__(self):
        return f".{self.name}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class ViewChain:
    """A fresh tensor whose values are their places in the storage, and view operations on it.

    Where the dtype holds no number as large, several places have one value.
    """

    shape: tuple[int, ...]
    steps: tuple[ViewStep, ...]
    dtype: str = "int64"

    def base(self, device="cpu"):
        dtype = TORCH_DTYPES[self.dtype]
        numbers = torch.arange(math.prod(self.shape), device=with_dtype(device, dtype))
        return numbers.to(dtype).reshape(self.shape)

    def tensor(self, device="cpu"):
        """The base after all steps of the chain."""
        return self.viewed(self.base(device))

    def viewed(self, x):
        for step in self.steps:
            x = step.of(x)
        return x

    def __repr__(self):
        dtype = TORCH_DTYPES[self.dtype]
        base = f"torch.arange({math.prod(self.shape)}).to({dtype}).reshape({self.shape})"
        return base + "".join(map(repr, self.steps))


# The dtypes in which views are tried.
PLACED = ("int64", "fp32", "bf16", "bool", "fp16", "fp64")
# The limits that keep a chain small enough to be counted element by element.
FEW_ELEMENTS, MOST_DIMS = 64, 6

# Where each operation can be applied, and its arguments.
_STEPS = {}


def _step(applies):
    """Registers a function that draws the arguments of the operation that it is named after."""

    def register(arguments):
        _STEPS[arguments.__name__.removeprefix("_")] = applies, st.composite(arguments)

    return register


def _always(x):
    return True


def _has_dims(x):
    return x.dim() > 0


def _has_two_dims(x):
    return x.dim() > 1


def _has_an_index(x):
    return any(x.shape)


def _has_a_storage(x):
    return x.untyped_storage().nbytes() > 0


def _can_gain_a_dim(x):
    return x.dim() < MOST_DIMS


def _can_expand(x):
    return x.numel() <= FEW_ELEMENTS and x.dim() < MOST_DIMS - 1


def _dims(x):
    return st.integers(-x.dim(), x.dim() - 1)


@_step(_has_dims)
def _transpose(draw, x):
    return draw(_dims(x)), draw(_dims(x))


@_step(_has_dims)
def _permute(draw, x):
    return (tuple(draw(st.permutations(range(x.dim())))),)


@_step(_has_dims)
def _slice(draw, x):
    dim = draw(_dims(x))
    bound = st.none() | st.integers(-6, 6)
    start = draw(bound)
    end = draw(bound)
    step = draw(st.integers(1, 3))
    if not range(*slice(start, end, step).indices(x.shape[dim])) and not draw(seldom):
        start, end = end, start
    return dim, start, end, step


@_step(_can_expand)
def _expand(draw, x):
    new = draw(st.lists(st.integers(1, 3), min_size=0 if x.dim() else 1, max_size=2))
    least = 0 if draw(seldom) else 1
    own = []
    for size in x.shape:
        repeated = st.integers(least, 3)
        kept = st.sampled_from([size, -1])
        own.append(draw(repeated if size == 1 else kept))
    return ((*new, *own),)


@_step(_can_gain_a_dim)
def _unsqueeze(draw, x):
    return (draw(st.integers(-x.dim() - 1, x.dim())),)


@_step(_has_dims)
def _squeeze(draw, x):
    return draw(st.just(()) | st.tuples(_dims(x)))


@_step(_always)
def _flatten(draw, x):
    first = draw(st.integers(0, max(x.dim() - 1, 0)))
    return first, draw(st.sampled_from([-1, *range(first, x.dim())]))


@_step(_has_dims)
def _unflatten(draw, x):
    dim = draw(_dims(x))
    return dim, draw(factorisations(x.shape[dim], 3).filter(len))


@_step(_always)
def _view(draw, x):
    shape = list(draw(factorisations(x.numel())))
    if shape and x.numel() and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return (tuple(shape),)


_STEPS["reshape"] = _STEPS["view"]


@_step(_has_an_index)
def _select(draw, x):
    dim = draw(st.sampled_from([d for d in range(x.dim()) if x.shape[d]]))
    return dim, draw(st.integers(-x.shape[dim], x.shape[dim] - 1))


@_step(_has_two_dims)
def _diagonal(draw, x):
    first, second = draw(st.permutations(range(x.dim())))[:2]
    return draw(st.integers(-3, 3)), first, second - draw(st.sampled_from([0, x.dim()]))


@_step(_has_a_storage)
def _as_strided(draw, x):
    room = x.untyped_storage().nbytes() // x.element_size() - 1
    shape = list(draw(shapes((0, 3), (1, 4))))
    strides = []
    for size in shape:
        strides.append(draw(st.integers(0, room // (size - 1) if size > 1 else room)))
        room -= (size - 1) * strides[-1]
    return tuple(shape), tuple(strides), draw(st.integers(0, room))


VIEW_OPERATIONS = tuple(_STEPS)
MAY_COPY = ("view", "reshape", "flatten")
ALWAYS_VIEWS = tuple(name for name in _STEPS if name not in MAY_COPY)


def applicable(operations, x):
    return [name for name in operations if _STEPS[name][0](x)]


@st.composite
def view_steps(draw, x, operations=VIEW_OPERATIONS):
    """One of the operations that can be applied to `x`.

    A view that torch refuses is drawn as a reshape.
    """
    name = draw(st.sampled_from(applicable(operations, x)))
    step = ViewStep(name, draw(_STEPS[name][1](x)))
    if name != "view":
        return step
    try:
        step.of(x)
    except RuntimeError:
        return ViewStep("reshape", step.arguments)
    return step


@st.composite
def view_chains(draw, most_steps=5, operations=VIEW_OPERATIONS):
    """Chains of view operations.

    After each step torch itself, not a formula, decides which steps can follow.
    """
    dims = draw(st.sampled_from([2, 3, 4, 1, 0]))
    least = 0 if draw(seldom) else 1
    shape = draw(shapes((dims, dims), (least, 5)))
    chain = ViewChain(shape, (), draw(st.sampled_from(PLACED)))
    x = chain.base()
    for _ in range(draw(st.integers(0, most_steps))):
        if not applicable(operations, x):
            break
        step = draw(view_steps(x, operations))
        x = step.of(x)
        chain = replace(chain, steps=(*chain.steps, step))
    return chain


def view_steps_of(text):
    """The steps that are written after a tensor, as a chain prints them."""
    calls = re.findall(r"\.(\w+)\(((?:[^()]|\([^()]*\))*)\)", text)
    return tuple(ViewStep(name, tuple(literal_eval(f"[{arguments}]"))) for name, arguments in calls)


# Each operation on a tensor that is not contiguous, with arguments that change the layout.
EACH_OPERATION = (
    ".select(1, 2)",
    ".slice(-2, 1, 4, 2)",
    # (6, 1, 1), strides (1, 6, 24): contiguous.
    ".slice(1, 0, 1, 1).slice(2, 0, 1, 1)",
    ".transpose(1, 2)",
    ".permute((1, 2, 0))",
    ".select(0, 1).unsqueeze(1).expand((3, 1, -1, 5, 2))",
    ".unsqueeze(1)",
    ".unsqueeze(-1).unsqueeze(0).squeeze(0)",
    ".unsqueeze(-1).unsqueeze(0).squeeze()",
    ".flatten(1, 2)",
    ".unflatten(0, (3, 1, 2))",
    ".view((6, 2, 2, 1, 2))",
    ".reshape((8, -1))",
    ".diagonal(-1, 0, 2)",
    # No elements: the offset stays.
    ".diagonal(5, 0, 2)",
    # No elements: the offset grows all the same.
    ".slice(0, 9, None, 1)",
    ".as_strided((2, 3), (1, 5), 4)",
    # The offset is kept.
    ".select(1, 2).as_strided((2, 2), (1, 2))",
)


def with_each_operation(test):
    """Has a property of chains tried on every operation before the random chains."""
    for steps, dtype in zip(EACH_OPERATION, cycle(PLACED)):
        chain = ViewChain((2, 4, 6), view_steps_of(f".transpose(0, 2){steps}"), dtype)
        test = example(chain=chain)(test)
    return test


# The shapes of the sizes that a claim is tried at: kernels take a row of more than BLOCK elements
# in parts, and share out more than SHARED elements among threads.
BLOCK, SHARED = 512, 2**16
SHAPES = {"empty": (0, 3), "one": (1, 1), "few": (3, 4), "wide": (2, 600), "many": (3, 25_000)}
ALONE = ("empty", "one")
# Layouts that take several elements.
NOT_CONTIGUOUS = ("transposed", "every second", "expanded", "channels_last")


def sizes_of(shape):
    """The names of a shape's size."""
    elements = math.prod(shape)
    if elements < 2:
        return {ALONE[elements]}
    names = {"wide"} if max(shape) > BLOCK else set()
    return names | ({"many"} if elements > SHARED else set()) or {"few"}


def layouts_of(shape, strides, offset):
    """The names of a layout."""
    names = {"offset"} if offset else set()
    used = sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1)
    extents = [1, *(stride * size for stride, size in used)]
    dense = all(stride == extent for (stride, _), extent in zip(used, extents, strict=False))
    if is_contiguous(shape, strides):
        return names | {"contiguous"}
    if used[0][0] == 0:
        return names | {"expanded"}
    if dense and len(shape) == 4 and strides[1] == 1:
        return names | {"channels_last"}
    return names | {"transposed" if dense else "every second"}


def laid_out(x, layout):
    """The same values in another layout."""
    if layout == "rows apart" and x.dim() > 2:
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "transposed" and x.dim() > 1:
        return x.mT.contiguous().mT
    if layout == "every second":
        return torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]
    return x


class Case(NamedTuple):
    """A tensor to try a claim on."""

    dtype: str
    layout: str = "contiguous"
    size: str = "few"

    def chain(self):
        """The views of a fresh tensor that have this layout."""
        rows, columns = SHAPES[self.size]
        shape, steps = {
            "contiguous": ((rows, columns), ""),
            "transposed": ((columns, rows), ".transpose(0, 1)"),
            "every second": ((rows, 2 * columns), ".slice(1, 0, None, 2)"),
            "offset": ((rows + 1, columns), ".slice(0, 1, None, 1)"),
            "expanded": ((1, columns), f".expand(({rows}, {columns}))"),
            "channels_last": ((2, rows, columns, 3), ".permute((0, 3, 1, 2))"),
        }[self.layout]
        return ViewChain(shape, view_steps_of(steps), self.dtype)

    def tensor(self, device, values=range(7)):
        """These values in turn; by default small numbers, which every format holds exactly."""
        chain = self.chain()
        base = chain.base(device)
        few = torch.tensor([*values], device=base.device)
        turns = math.ceil(base.numel() / len(few))
        return chain.viewed(few.repeat(turns)[: base.numel()].reshape(base.shape).to(base))


@cache
def covers():
    """What the statement of each claim covers: rows of calls, dtypes, layouts and sizes."""
    path = Path(__file__).with_name("covers.toml")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    groups = tables.pop("groups")
    rows = {}
    for topic, claims in tables.items():
        for slug, stated in claims.items():
            rows[f"{topic}.{slug}"] = [
                tuple(
                    tuple(value for name in axis.split(", ") for value in groups.get(name, [name]))
                    for axis in row.split(" | ")
                )
                for row in ([stated] if isinstance(stated, str) else stated)
            ]
    return rows


def makes_sense(names):
    """Whether a tensor can have all of these: few elements have one layout."""
    return names.isdisjoint(ALONE) or names.isdisjoint(NOT_CONTIGUOUS)


def covering(claim, row=0):
    """Tensors that have each pair of dtype, layout and size of one row of a claim's cover."""
    _, *axes = covers()[claim][row]
    cases = [case for case in product(*axes) if makes_sense({*case})]
    pairs = {case: {*case, *combinations(case, 2)} for case in cases}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        chosen.append(Case(*best))
    return chosen


def with_chains_of(claim):
    """Has a property of chains tried on each case of a claim's cover."""

    def tried(test):
        for case in covering(claim):
            test = example(chain=case.chain())(test)
        return test

    return tried
