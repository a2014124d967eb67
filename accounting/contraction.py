"""Einsum equations: the indices of each operand, the steps of an order, the cheapest order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from accounting.checks import validated_choice, validated_instance, validated_ints

T = TypeVar("T")
Indices = frozenset[str]
Pair = tuple[int, int]
Order = str | Sequence[Pair]

BEST_ORDER_OPERANDS = 12  # the search visits about 3**operands / 2 splits: 265,720 at 12 operands, some seconds


@dataclass(frozen=True)
class Step:
    """One pairwise contraction: multiplies the operands at `positions` over `left | right`, sums down to `result`.

    >>> [step] = parsed("ij,jk->ik", [(2, 3), (3, 4)]).steps("best")
    >>> sorted(step.result), step.size, step.flops
    (['i', 'k'], 24, 48)
    """

    positions: Pair
    left: Indices
    right: Indices
    result: Indices
    additions: int  # first, of summing the indices that one side alone has and nothing later needs
    size: int  # of left | right: the combinations that are multiplied

    @property
    def flops(self) -> int:
        return self.additions + self.product_flops(self.result)

    def product_flops(self, result: Indices) -> int:
        """One multiplication per combination, and one addition unless each combination is an element of the result."""
        return self.size * (2 if (self.left | self.right) - result else 1)


@dataclass(frozen=True)
class Contraction:
    """A parsed einsum: an index set per operand, the output's, and the size of each index.

    An operand's repeated index (its diagonal) occurs once. An index along which an operand stretches from 1 is not its
    index: broadcasting repeats the multiplication, not the sum.

    >>> parsed("bij,bjk->bik", [(8, 2, 3), (1, 3, 4)]).best_pairs()
    [(0, 1)]
    """

    operands: tuple[Indices, ...]
    output: Indices
    sizes: dict[str, int]

    def size(self, indices: Indices) -> int:
        return prod(self.sizes[index] for index in indices)

    def step(self, a: Indices, b: Indices, later: Indices, positions: Pair = (0, 1)) -> Step:
        """`a` times `b`; `later` are the indices of the output and of the remaining operands."""
        left, right = a & (b | later), b & (a | later)
        additions = sum(self.size(side) for side, rest in ((a, left), (b, right)) if side != rest)
        return Step(positions, left, right, (left | right) & later, additions, self.size(left | right))

    def steps(self, order: Order) -> list[Step]:
        """The pairwise contractions in `order`: "best", "left", or pairs as in numpy.einsum_path."""
        steps: list[Step] = []
        operands = list(self.operands)
        for i, j in self.pairs(order):
            later = self.output.union(*(each for position, each in enumerate(operands) if position not in (i, j)))
            steps.append(self.step(operands[i], operands[j], later, (i, j)))
            operands = merged(operands, (i, j), steps[-1].result)
        return steps

    def pairs(self, order: Order) -> list[Pair]:
        """`order` as pairs of positions: each pair leaves the list of operands, its result is appended."""
        number = len(self.operands)
        if isinstance(order, str):
            if validated_choice("order", order, ["best", "left"]) == "best":
                return self.best_pairs()
            return [(0, 1) if present == number else (0, present - 1) for present in range(number, 1, -1)]
        pairs = [validated_ints("order", pair) for pair in order]
        if len(pairs) != number - 1:
            raise ValueError(f"order must have {number - 1} pairs for {number} operands, got {pairs}")
        for present, pair in zip(range(number, 1, -1), pairs, strict=True):
            if len(pair) != 2 or pair[0] == pair[1] or max(pair) >= present:
                raise ValueError(f"order must name two of the positions 0..{present - 1}, got {pair} in {pairs}")
        return [(pair[0], pair[1]) for pair in pairs]

    def best_pairs(self) -> list[Pair]:
        """The cheapest order: each subset's cheapest split in two, from small subsets to the whole."""
        number = len(self.operands)
        if number > BEST_ORDER_OPERANDS:
            limit = f"the best order is searched for at most {BEST_ORDER_OPERANDS} operands"
            raise ValueError(f"{limit}, got {number}; give an order, or 'left'")
        # The set bits of an integer are a subset of the operands. The indices that its contraction keeps do not depend
        # on the order inside it, so dynamic programming is exact.
        everything = (1 << number) - 1
        kept = [self._kept(subset) for subset in range(everything + 1)]
        cost = {1 << position: 0 for position in range(number)}
        split: dict[int, int] = {}
        for subset in range(1, everything + 1):  # all its subsets are smaller numbers, and come before it
            if subset in cost:
                continue
            part = (subset - 1) & subset
            while part:
                rest = subset ^ part
                if part < rest:  # visit each split once
                    flops = cost[part] + cost[rest] + self.step(kept[part], kept[rest], kept[subset]).flops
                    if flops < cost.get(subset, flops + 1):
                        cost[subset], split[subset] = flops, part
                part = (part - 1) & subset
        return _positions(everything, split, number)

    def _kept(self, subset: int) -> Indices:
        """The indices left after contracting the operands in `subset`; a single operand keeps its own."""
        inside = [operand for position, operand in enumerate(self.operands) if subset >> position & 1]
        outside = [operand for position, operand in enumerate(self.operands) if not subset >> position & 1]
        return inside[0] if len(inside) == 1 else frozenset().union(*inside) & self.output.union(*outside)


def merged(items: list[T], positions: Pair, result: T) -> list[T]:
    """`items` without those at `positions`, and `result` appended.

    >>> merged(["a", "b", "c"], (0, 2), "ac")
    ['b', 'ac']
    """
    return [item for position, item in enumerate(items) if position not in positions] + [result]


def _positions(everything: int, split: dict[int, int], number: int) -> list[Pair]:
    """The tree of splits as pairs of positions in the shrinking list of operands."""
    present = [1 << position for position in range(number)]
    pairs: list[Pair] = []

    def contract(subset: int) -> None:
        if subset in present:
            return
        part, rest = split[subset], subset ^ split[subset]
        contract(part)
        contract(rest)
        i, j = sorted((present.index(part), present.index(rest)))
        pairs.append((i, j))
        present[:] = merged(present, (i, j), subset)

    if number:
        contract(everything)
    return pairs


def parsed(equation: str, shapes: Sequence[Sequence[int]]) -> Contraction:
    """The contraction of torch.einsum's `equation` over operands of these shapes; raises as `einsum_flops` does.

    >>> parsed("...i,i->...", [(2, 3, 4), (4,)]).sizes
    {'.2': 2, '.1': 3, 'i': 4}
    """
    terms, output = _sides(equation)
    if len(terms) != len(shapes):
        raise ValueError(f"equation {equation!r} has {len(terms)} operands, got {len(shapes)} shapes: {list(shapes)}")
    labelled = [_labels(equation, term, i, shape) for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))]
    sizes: dict[str, int] = {}
    for operand in labelled:
        for label, size in operand:
            known = sizes.get(label, 1)
            if 1 not in (known, size) and known != size:
                name = f"{label[1:]} from the right of '...'" if label.startswith(".") else repr(label)
                raise ValueError(f"index {name} of {equation!r} has sizes {known} and {size} in {list(shapes)}")
            sizes[label] = size if known == 1 else known
    stretched = [frozenset(label for label, size in operand if size == sizes[label]) for operand in labelled]
    ellipsis = [label for label in sizes if label.startswith(".")]
    if output is None:  # as in torch and numpy: the ellipsis, then every letter that occurs once
        written = "".join(terms)
        kept = [label for label in sizes if not label.startswith(".") and written.count(label) == 1]
        return Contraction(tuple(stretched), frozenset(ellipsis + kept), sizes)
    letters = output.replace(".", "")
    if unknown := sorted(set(letters) - set(sizes)):
        valid = ", ".join(sorted(label for label in sizes if not label.startswith(".")))
        raise ValueError(f"index {unknown[0]!r} of the output of {equation!r} occurs in no operand; valid are {valid}")
    if len(set(letters)) != len(letters):
        raise ValueError(f"an index occurs twice in the output of {equation!r}")
    return Contraction(tuple(stretched), frozenset([*letters, *(ellipsis if "." in output else [])]), sizes)


def _sides(equation: str) -> tuple[list[str], str | None]:
    """The terms of the operands, and the output's (None without an arrow)."""
    left, arrow, right = validated_instance("equation", equation, str).replace(" ", "").partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term):
            valid = "letters, commas, at most one '...' a term and one '->'"
            raise ValueError(f"equation must be {valid}, got {term!r} in {equation!r}")
    return terms, right if arrow else None


def _labels(equation: str, term: str, position: int, shape: Sequence[int]) -> list[tuple[str, int]]:
    """(index, size) per dimension; those of an ellipsis are '.1', '.2', ... counted from its right."""
    sizes = validated_ints(f"shapes[{position}]", shape)
    before, ellipsis, after = term.partition("...")
    width = len(sizes) - len(before) - len(after)
    if width < 0 or (width and not ellipsis):
        raise ValueError(f"{term!r} of {equation!r} does not fit the {len(sizes)} dimensions of {tuple(shape)}")
    labels = [*before, *(f".{width - i}" for i in range(width)), *after]
    pairs = list(zip(labels, sizes, strict=True))
    for label, size in pairs:
        if dict(pairs)[label] != size:
            raise ValueError(f"index {label!r} is repeated in {term!r} with different sizes in {tuple(shape)}")
    return pairs
