"""Einsum equations: the indices of each operand, and the FLOPs of contracting them pair by pair."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod

from accounting.checks import validated_choice, validated_instance, validated_ints

Indices = frozenset[str]
ORDERS = ("best", "left")

# The search visits about 3**operands / 2 splits: 265,720 at 12 operands, some seconds.
BEST_ORDER_OPERANDS = 12


@dataclass(frozen=True)
class Contraction:
    """A parsed einsum: an index set per operand, the output's, and the size of each index.

    An operand's repeated index (its diagonal) occurs once. An index along which an operand
    stretches from 1 is not its index: broadcasting repeats the multiplication, not the sum.

    >>> parsed("bij,bjk->bik", [(8, 2, 3), (1, 3, 4)]).flops("best")
    384
    """

    operands: tuple[Indices, ...]
    output: Indices
    sizes: dict[str, int]

    def flops(self, order: str) -> int:
        """FLOPs in `order`: "best" or "left"."""
        if validated_choice("order", order, ORDERS) == "best":
            return self._least_flops()
        flops = 0
        product, *rest = self.operands
        while rest:
            following, *rest = rest
            step, product = self._step(product, following, self.output.union(*rest))
            flops += step
        return flops

    def size(self, indices: Indices) -> int:
        return prod(self.sizes[index] for index in indices)

    def _step(self, a: Indices, b: Indices, later: Indices) -> tuple[int, Indices]:
        """FLOPs of `a` times `b`, and the result's indices; `later` are those of the output and of
        other operands.

        First the sums over indices that one side alone has and nothing later needs. Then one
        multiplication per combination of indices, and one addition unless each combination is an
        element of the result.
        """
        left, right = a & (b | later), b & (a | later)
        additions = sum(self.size(side) for side, rest in ((a, left), (b, right)) if side != rest)
        result = (left | right) & later
        return additions + self.size(left | right) * (2 if (left | right) - result else 1), result

    def _least_flops(self) -> int:
        """FLOPs of the cheapest order. What a subset keeps does not depend on the order inside it:
        exact.
        """
        number = len(self.operands)
        if number > BEST_ORDER_OPERANDS:
            limit = f"the best order is searched for at most {BEST_ORDER_OPERANDS} operands"
            raise ValueError(f"{limit}, got {number}; give an order, or 'left'")

        @cache
        def kept(subset: frozenset[int]) -> Indices:
            inside = [self.operands[position] for position in subset]
            if len(inside) == 1:
                return inside[0]
            outside = (self.operands[position] for position in set(range(number)) - subset)
            return frozenset().union(*inside) & self.output.union(*outside)

        @cache
        def least(subset: frozenset[int]) -> int:
            first, *others = subset
            parts = (
                frozenset((first, *some))
                for size in range(len(others))
                for some in combinations(others, size)
            )
            costs = (
                least(part)
                + least(subset - part)
                + self._step(kept(part), kept(subset - part), kept(subset))[0]
                for part in parts
            )
            return min(costs, default=0)

        return least(frozenset(range(number)))


def parsed(equation: str, shapes: Sequence[Sequence[int]]) -> Contraction:
    """The contraction of torch.einsum's `equation` over operands of these shapes.

    Raises as `einsum_flops` does.

    >>> parsed("...i,i->...", [(2, 3, 4), (4,)]).sizes
    {'.2': 2, '.1': 3, 'i': 4}
    """
    terms, output = _sides(equation)
    if len(terms) != len(shapes):
        raise ValueError(
            f"equation {equation!r} has {len(terms)} operands, got {len(shapes)} shapes: "
            f"{list(shapes)}"
        )
    labelled = [
        _labels(equation, term, i, shape)
        for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))
    ]
    sizes: dict[str, int] = {}
    for operand in labelled:
        for label, size in operand:
            known = sizes.get(label, 1)
            if 1 not in (known, size) and known != size:
                raise ValueError(
                    f"index {label!r} of {equation!r} has sizes {known} and {size} "
                    f"in {list(shapes)}"
                )
            sizes[label] = size if known == 1 else known
    stretched = [
        frozenset(label for label, size in operand if size == sizes[label]) for operand in labelled
    ]
    ellipsis = [label for label in sizes if label.startswith(".")]
    if output is None:
        # Torch and numpy keep the ellipsis, then every letter that occurs once.
        written = "".join(terms)
        kept = [label for label in sizes if not label.startswith(".") and written.count(label) == 1]
        return Contraction(tuple(stretched), frozenset(ellipsis + kept), sizes)
    letters = output.replace(".", "")
    if unknown := sorted(set(letters) - set(sizes)):
        valid = ", ".join(sorted(label for label in sizes if not label.startswith(".")))
        raise ValueError(
            f"index {unknown[0]!r} of the output of {equation!r} occurs in no operand; "
            f"valid are {valid}"
        )
    if len(set(letters)) != len(letters):
        raise ValueError(f"an index occurs twice in the output of {equation!r}")
    return Contraction(
        tuple(stretched), frozenset([*letters, *(ellipsis if "." in output else [])]), sizes
    )


def _sides(equation: str) -> tuple[list[str], str | None]:
    """The terms of the operands, and the output's (None without an arrow)."""
    left, arrow, right = (
        validated_instance("equation", equation, str).replace(" ", "").partition("->")
    )
    terms = left.split(",")
    for term in [*terms, right]:
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term):
            valid = "letters, commas, at most one '...' a term and one '->'"
            raise ValueError(f"equation must be {valid}, got {term!r} in {equation!r}")
    return terms, right if arrow else None


def _labels(equation: str, term: str, position: int, shape: Sequence[int]) -> list[tuple[str, int]]:
    """(index, size) per dimension; those of an ellipsis are '.1', '.2', ... counted from its
    right.
    """
    sizes = validated_ints(f"shapes[{position}]", shape)
    before, ellipsis, after = term.partition("...")
    width = len(sizes) - len(before) - len(after)
    if width < 0 or (width and not ellipsis):
        raise ValueError(
            f"{term!r} of {equation!r} does not fit the {len(sizes)} dimensions of {tuple(shape)}"
        )
    labels = [*before, *(f".{width - i}" for i in range(width)), *after]
    pairs = list(zip(labels, sizes, strict=True))
    for label, size in pairs:
        if dict(pairs)[label] != size:
            raise ValueError(
                f"index {label!r} is repeated in {term!r} with different sizes in {tuple(shape)}"
            )
    return pairs
