"""Hypothesis strategies of the claims: sizes, shapes, dtypes, and chains of view operations."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st

from accounting.devices import has_dtype
from accounting.formats import FORMATS
from accounting.layout import is_contiguous
from test_claims.tables import read_tables

# The dtype names of `accounting.formats` that this torch can allocate, with torch's own.
# Not fp4: an element of torch's float4_e2m1fn_x2 holds two values.
TORCH_DTYPES = {
    name: getattr(torch, row.torch_name)
    for name, row in FORMATS.items()
    if row.torch_name and hasattr(torch, row.torch_name) and row.storage_bits % 8 == 0
}

_under_test = {"kind": "cpu"}


def draw_dtypes_of(device):
    """From now on only dtypes that `device` has are drawn."""
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

    At least five. Sizes, dtypes and layouts decide such a property; further draws repeat them.
    """
    return settings(max_examples=max(5, settings.default.max_examples // 5))(test)


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


def view_steps_of(text):
    """The steps that are written after a tensor, as a chain prints them."""
    calls = re.findall(r"\.(\w+)\(((?:[^()]|\([^()]*\))*)\)", text)
    return tuple(ViewStep(name, tuple(literal_eval(f"[{arguments}]"))) for name, arguments in calls)


# Each operation on a tensor of several dimensions, with arguments that change the layout; the
# second slice leaves no elements, and an offset.
VIEW_STEPS = view_steps_of(
    ".select(1, -1).slice(-2, 1, 4, 2).slice(0, 9, None, 1).transpose(0, -1).permute((2, 0, 1))"
    ".expand((2, -1, -1, -1)).unsqueeze(-2).squeeze().flatten(0, 1).flatten(1, -1)"
    ".unflatten(0, (2, 1, -1)).view((6, 2, 2, 1, 2)).reshape((8, -1)).diagonal(-1, 0, -1)"
    ".as_strided((2, 3), (1, 5), 4).squeeze(0).slice(1, 0, 1, 1)"
)
MAY_COPY = ("view", "reshape", "flatten")


def _applies(step, x):
    try:
        step.of(x)
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


@cache
def view_chains(views_only=False):
    """Each operation, and each two in turn, where torch takes them; the dtypes in turn."""
    steps = [step for step in VIEW_STEPS if not (views_only and step.name in MAY_COPY)]
    chains = []
    dtypes_in_turn = cycle(PLACED)
    for both in product([None, *steps], steps):
        first, second = both
        start = ViewChain((4, 2, 6), (first,) if first else (), next(dtypes_in_turn))
        if (not first or _applies(first, start.base())) and _applies(second, start.tensor()):
            chains.append(replace(start, steps=(*start.steps, second)))
    return chains


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
        # Python's numbers become fp32 unless a dtype is given.
        wide = torch.float64 if base.dtype == torch.float64 else None
        few = torch.tensor([*values], dtype=wide, device=base.device)
        turns = math.ceil(base.numel() / len(few))
        return chain.viewed(few.repeat(turns)[: base.numel()].reshape(base.shape).to(base))


@cache
def cover_tables():
    """The topics of covers.toml, and its groups of values."""
    tables = read_tables(Path(__file__).with_name("covers.toml"))
    return tables, tables.pop("groups")


def axes_of(row):
    """The values on each axis of a written row: those of a group for its name."""
    _, groups = cover_tables()
    return tuple(
        tuple(value for name in axis.split(", ") for value in groups.get(name, [name]))
        for axis in row.split(" | ")
    )


@cache
def covers():
    """The cover of each claim's statement: rows of calls, dtypes, layouts and sizes."""
    topics, _ = cover_tables()
    rows = {}
    for topic, claims in topics.items():
        for slug, stated in claims.items():
            written = [stated] if isinstance(stated, str) else stated
            rows[f"{topic}.{slug}"] = [axes_of(row) for row in written]
    return rows


def makes_sense(names):
    """True if a tensor can have all of these: few elements have one layout."""
    return names.isdisjoint(ALONE) or names.isdisjoint(NOT_CONTIGUOUS)


def covering(claim, row=0):
    """Tensors that have each pair of dtype, layout and size of one row of a claim's cover."""
    _, *axes = covers()[claim][row]
    return cases_of(axes)


def cases_of(axes):
    """Tensors that have each pair of values of these axes."""
    cases = [case for case in product(*axes) if makes_sense({*case})]
    pairs = {case: {*case, *combinations(case, 2)} for case in cases}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        chosen.append(Case(*best))
    return chosen


def chains_of(claim, views_only=False):
    """Each pair of view operations, then each case of a claim's cover."""
    return [*view_chains(views_only), *(case.chain() for case in covering(claim))]
