"""Strided layout: where each element of a tensor lies, and when a view can exist.

A tensor is a shape, a stride per dimension and an offset, over a one-dimensional storage. The
element at `index` is `storage[offset + Σ index·stride]`. Everything here follows exactly from that
line; strides and offsets count elements, not bytes. A negative entry and a wrong number of strides
raise ValueError, an entry that is not an integer TypeError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from accounting.checks import validate_fields, validated_int, validated_ints


def _strides_of(shape: tuple[int, ...], strides: Iterable[object]) -> tuple[int, ...]:
    checked = validated_ints("strides", strides)
    if len(checked) != len(shape):
        raise ValueError(
            f"strides must have one entry per dimension of shape {shape}, got {checked}"
        )
    return checked


def _wrapped(name: str, value: int, length: int) -> int:
    """`value`, counted from the end if it is negative, as torch counts dimensions and indices."""
    number = validated_int(name, value, minimum=None)
    if not -length <= number < length:
        valid = (
            f"from {-length} to {length - 1}"
            if length
            else "nothing: there is no dimension or element to choose"
        )
        raise ValueError(f"{name} must be {valid}, got {number}")
    return number % length


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor: strides[d] = Π max(shape[i], 1) over the dimensions i > d.

    One step along a dimension skips all elements of the inner dimensions. A size of 0 counts as 1,
    as in torch.
    Source: torch.Tensor.stride,
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.stride.html

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    inner = [max(size, 1) for size in validated_ints("shape", shape)[1:]]
    outward = itertools.accumulate(reversed(inner), int.__mul__, initial=1)
    return tuple(reversed(list(outward))) if len(shape) else ()


def storage_offset(index: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    """Position in the storage of the element at `index`: offset + Σ index[d]·strides[d].

    `offset` is the position of the tensor's first element: 0 for a fresh tensor, but not for a view
    such as `x[:, 1]`. In elements; times the bytes per element it is the distance from the
    storage's pointer.

    >>> storage_offset((1, 2), (4, 1))
    6
    """
    steps, widths = validated_ints("index", index), validated_ints("strides", strides)
    if len(steps) != len(widths):
        raise ValueError(f"index must have one entry per stride of {widths}, got {steps}")
    return validated_int("offset", offset) + sum(
        step * width for step, width in zip(steps, widths, strict=True)
    )


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if row-major iteration walks the storage without a gap: torch's is_contiguous.

    Strides must be the contiguous ones for dimensions of more than one element: the stride of a
    dimension of size 1 is never used. A tensor without elements is contiguous by definition.

    >>> is_contiguous((2, 3), (3, 1)), is_contiguous((3, 2), (1, 3))
    (True, False)
    """
    sizes = validated_ints("shape", shape)
    used = zip(sizes, _strides_of(sizes, strides), contiguous_strides(sizes), strict=True)
    return 0 in sizes or all(stride == dense for size, stride, dense in used if size != 1)


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Shape of an elementwise operation on these shapes.

    Shapes are aligned at the last dimension; sizes that differ must be 1 on one side. A size of 1
    or a missing leading dimension is repeated by a stride of 0, without memory.
    Raises ValueError that names the shapes if two sizes other than 1 meet.
    Source: broadcasting semantics, https://docs.pytorch.org/docs/stable/notes/broadcasting.html

    >>> broadcast_shape((8, 1, 6), (7, 1))
    (8, 7, 6)
    """
    checked = [validated_ints("shapes", shape) for shape in shapes]
    result: list[int] = []
    for sizes in itertools.zip_longest(*(shape[::-1] for shape in checked), fillvalue=1):
        repeated = set(sizes) - {1}
        if len(repeated) > 1:
            raise ValueError(
                "shapes must agree or be 1 in each dimension from the last, "
                f"got {', '.join(map(str, checked))}: "
                f"sizes {' and '.join(map(str, sorted(repeated)))} meet in dimension "
                f"{-len(result) - 1}"
            )
        result.append(repeated.pop() if repeated else 1)
    return tuple(reversed(result))


def inferred_shape(shape: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...]:
    """`new_shape` with its one −1, if any, replaced by the size that torch infers.

    Raises ValueError for a second −1, for element counts that differ, and for a −1 beside a 0 (any
    size would do).

    >>> inferred_shape((2, 3, 4), (6, -1))
    (6, 4)
    """
    sizes, given = (
        validated_ints("shape", shape),
        validated_ints("new_shape", new_shape, minimum=-1),
    )
    unknown = [position for position, size in enumerate(given) if size == -1]
    wanted = [
        abs(size) for size in given
    ]  # 1 stands for an unknown size, which leaves the product as it is
    numel, rest = math.prod(sizes), math.prod(wanted)
    if len(unknown) > 1:
        raise ValueError(f"new_shape must have at most one -1, got {given}")
    if unknown and not rest:
        raise ValueError(
            f"new_shape must fix every size beside a 0, got {given}: any size could stand for -1"
        )
    if numel % rest if unknown else numel != rest:
        raise ValueError(f"new_shape must hold the {numel} elements of shape {sizes}, got {given}")
    return tuple(
        numel // rest if position in unknown else size for position, size in enumerate(wanted)
    )


def _runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(elements, stride) of the stretches that a single stride walks through, innermost first."""
    elements, stride = 1, strides[-1]
    for size, width in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and width != elements * stride:
            yield elements, stride
            elements, stride = 1, width
        elements *= size
    yield elements, stride


def view_strides(
    shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides with which `new_shape` views the same elements; None if only a copy can.

    The tensor consists of stretches of dimensions that a single stride walks through. A new
    dimension may divide a stretch or be one of several that make it up; spanning two would space
    its elements unevenly. So contiguity is sufficient for a view, not necessary. Strides of unused
    dimensions (size 1, or no elements) are torch's. A −1 is inferred.
    Raises ValueError if the numbers of elements differ, or a −1 cannot be inferred.
    Source: computeStride in pytorch's aten/src/ATen/TensorUtils.cpp.

    >>> view_strides((2, 6), (6, 1), (3, 4))
    (4, 1)

    A transposed (2, 3) has no such view, as its two stretches would be mixed. Another shape has
    one, though that is not contiguous either.

    >>> view_strides((3, 2), (1, 3), (2, 3)) is None
    True
    >>> view_strides((3, 2), (1, 3), (3, 1, 2))
    (1, 6, 3)
    """
    sizes = validated_ints("shape", shape)
    widths = _strides_of(sizes, strides)
    remaining = list(inferred_shape(sizes, new_shape))
    if 0 in sizes:
        return widths if tuple(remaining) == sizes else contiguous_strides(remaining)
    if not sizes:
        return (1,) * len(remaining)
    innermost_first: list[int] = []
    for elements, stride in _runs(sizes, widths):
        covered = 1
        while remaining and (covered < elements or remaining[-1] == 1):
            innermost_first.append(covered * stride)
            covered *= remaining.pop()
        if covered != elements:
            return None
    return tuple(reversed(innermost_first))


@dataclass(frozen=True)
class Layout:
    """Shape, strides and offset of a tensor.

    Each method gives the layout of torch's operation of the same name. Views only rewrite these
    three, so they cost no memory and the same time at any size. Negative dimensions and indices
    count from the end. Operations that torch refuses raise errors that name the argument.
    Source: tensor views, https://docs.pytorch.org/docs/stable/tensor_view.html

    >>> x = contiguous_layout((3, 4))
    >>> x.transpose(0, 1)
    Layout(shape=(4, 3), strides=(1, 4), offset=0)
    >>> x.select(1, 1)
    Layout(shape=(3,), strides=(4,), offset=1)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", validated_ints("shape", self.shape))
        object.__setattr__(self, "strides", _strides_of(self.shape, self.strides))
        validate_fields(self, "offset")

    @property
    def numel(self) -> int:
        """Number of elements shown: Π shape.

        The storage may have fewer: an expanded tensor shows one element many times.
        """
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    @property
    def storage_numel(self) -> int:
        """Elements of the least storage: offset + 1 + Σ (shape[d] − 1)·strides[d].

        A tensor without elements needs 0. An expanded tensor (stride 0) spans fewer elements than
        it shows, a slice with steps more (gaps are included).
        """
        steps = ((size - 1) * width for size, width in zip(self.shape, self.strides, strict=True))
        return self.offset + 1 + sum(steps) if self.numel else 0

    def offset_of(self, *index: int) -> int:
        """Position in the storage of one element: offset + Σ index·stride."""
        if len(index) != len(self.shape):
            raise ValueError(
                f"index must have one entry per dimension of shape {self.shape}, got {index}"
            )
        wrapped = [
            _wrapped("index", step, size) for step, size in zip(index, self.shape, strict=True)
        ]
        return storage_offset(wrapped, self.strides, self.offset)

    def offsets(self) -> list[int]:
        """Position in the storage of every element, in row-major order."""
        indices = itertools.product(*map(range, self.shape))
        return [self.offset + sum(map(int.__mul__, index, self.strides)) for index in indices]

    def select(self, dim: int, index: int) -> Layout:
        """One entry of a dimension, which disappears: the offset grows by index·stride."""
        dim = _wrapped("dim", dim, len(self.shape))
        step = _wrapped("index", index, self.shape[dim])
        return self._without(dim, offset=self.offset + step * self.strides[dim])

    def slice(
        self, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Layout:
        """Every step-th entry from start up to end.

        The offset grows by start·stride, and the stride is multiplied by step.
        """
        dim = _wrapped("dim", dim, len(self.shape))
        # Python's own clamping of a slice is torch's, up to the sign of the step.
        first, past, step = slice(start, end, validated_int("step", step, minimum=1)).indices(
            self.shape[dim]
        )
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = len(range(first, past, step)), self.strides[dim] * step
        return Layout(tuple(shape), tuple(strides), self.offset + first * self.strides[dim])

    def transpose(self, dim0: int, dim1: int) -> Layout:
        """Two dimensions exchanged, each with its stride."""
        rank = max(len(self.shape), 1)
        dim0, dim1 = _wrapped("dim0", dim0, rank), _wrapped("dim1", dim1, rank)
        order = list(range(len(self.shape)))
        if order:
            order[dim0], order[dim1] = dim1, dim0
        return self.permute(order)

    def permute(self, dims: Sequence[int]) -> Layout:
        """The dimensions in another order, each with its stride."""
        order = [_wrapped("dims", dim, len(self.shape)) for dim in dims]
        if sorted(order) != list(range(len(self.shape))):
            raise ValueError(
                f"dims must name each of the {len(self.shape)} dimensions once, got {dims}"
            )
        return Layout(
            tuple(self.shape[d] for d in order), tuple(self.strides[d] for d in order), self.offset
        )

    def expand(self, shape: Sequence[int]) -> Layout:
        """Repeats dimensions of size 1 and adds new ones in front, with stride 0.

        −1 keeps a size.
        """
        if len(shape) < len(self.shape):
            raise ValueError(
                f"shape must have at least the {len(self.shape)} dimensions of {self.shape}, "
                f"got {shape}"
            )
        own = list(zip(self.shape, self.strides, strict=True))
        expanded: list[tuple[int, int]] = []
        for wanted in reversed(shape):
            exists = bool(own)
            # A new dimension of size 1 repeats nothing, and torch gives it the stride of the block
            # inside it.
            have, stride = own.pop() if exists else (1, math.prod(expanded[-1]) if expanded else 0)
            is_kept = exists and hasattr(wanted, "__index__") and wanted == -1
            size = have if is_kept else validated_int("shape", wanted)
            if have not in (1, size):
                raise ValueError(
                    f"shape must keep the sizes other than 1 of {self.shape}, got {shape}"
                )
            expanded.append((size, stride if size == have else 0))
        sizes, strides = zip(*reversed(expanded), strict=True) if expanded else ((), ())
        return Layout(sizes, strides, self.offset)

    def unsqueeze(self, dim: int) -> Layout:
        """A new dimension of size 1 at `dim`; its unused stride spans the block inside it."""
        dim = _wrapped("dim", dim, len(self.shape) + 1)
        stride = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return Layout(shape, (*self.strides[:dim], stride, *self.strides[dim:]), self.offset)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Layout:
        """Removes the named dimensions, by default all, whose size is 1."""
        rank = max(len(self.shape), 1)
        chosen = range(rank) if dim is None else dim if isinstance(dim, Sequence) else (dim,)
        named = {_wrapped("dim", value, rank) for value in chosen}
        kept = [d for d, size in enumerate(self.shape) if size != 1 or d not in named]
        return Layout(
            tuple(self.shape[d] for d in kept), tuple(self.strides[d] for d in kept), self.offset
        )

    def view(self, shape: Sequence[int]) -> Layout:
        """The same elements in the same order under another shape.

        Raises ValueError where `view_strides` gives None.
        """
        new_shape = inferred_shape(self.shape, shape)
        strides = view_strides(self.shape, self.strides, new_shape)
        if strides is None:
            raise ValueError(
                f"shape {shape} of {self} needs a copy: one of its dimensions spans two strides"
            )
        return Layout(new_shape, strides, self.offset)

    def reshape(self, shape: Sequence[int]) -> Layout:
        """A view where one exists, otherwise the contiguous layout of a copy."""
        new_shape = inferred_shape(self.shape, shape)
        strides = view_strides(self.shape, self.strides, new_shape)
        return (
            contiguous_layout(new_shape)
            if strides is None
            else Layout(new_shape, strides, self.offset)
        )

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Layout:
        """A reshape that merges the dimensions from start_dim to end_dim into one."""
        rank = max(len(self.shape), 1)
        first, last = _wrapped("start_dim", start_dim, rank), _wrapped("end_dim", end_dim, rank)
        if first > last:
            raise ValueError(
                f"start_dim must not come after end_dim, got {start_dim} and {end_dim}"
            )
        if self.shape and first == last:
            return self
        merged = math.prod(self.shape[first : last + 1])
        return self.reshape((*self.shape[:first], merged, *self.shape[last + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Layout:
        """One dimension split into several: always a view."""
        dim = _wrapped("dim", dim, len(self.shape))
        inner = inferred_shape((self.shape[dim],), sizes)
        return self.view((*self.shape[:dim], *inner, *self.shape[dim + 1 :]))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Layout:
        """The entries whose indices in dim2 and dim1 differ by `offset`.

        They are a last dimension, whose stride is the sum of both.
        """
        rank = len(self.shape)
        row, column = _wrapped("dim1", dim1, rank), _wrapped("dim2", dim2, rank)
        if row == column:
            raise ValueError(
                f"dim1 and dim2 must be two dimensions, got {dim1} and {dim2} of {self.shape}"
            )
        down, right = max(-offset, 0), max(offset, 0)
        size = max(min(self.shape[row] - down, self.shape[column] - right), 0)
        start = down * self.strides[row] + right * self.strides[column] if size else 0
        rest = self._without(row)._without(column - (column > row), offset=self.offset + start)
        return Layout(
            (*rest.shape, size),
            (*rest.strides, self.strides[row] + self.strides[column]),
            rest.offset,
        )

    def as_strided(
        self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
    ) -> Layout:
        """Any layout over the same storage; compare `storage_numel` with the storage's size."""
        return Layout(tuple(shape), tuple(strides), self.offset if offset is None else offset)

    def _without(self, dim: int, offset: int | None = None) -> Layout:
        shape, strides = ((*each[:dim], *each[dim + 1 :]) for each in (self.shape, self.strides))
        return self.as_strided(shape, strides, offset)


def contiguous_layout(shape: Sequence[int]) -> Layout:
    """Layout of a fresh tensor: contiguous strides, offset 0.

    >>> contiguous_layout((3, 4))
    Layout(shape=(3, 4), strides=(4, 1), offset=0)
    """
    sizes = validated_ints("shape", shape)
    return Layout(sizes, contiguous_strides(sizes))
