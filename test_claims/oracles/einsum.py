"""Einsums by loops over every index, and the equations to try them on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st


class Einsum(NamedTuple):
    """An equation and the shapes of its operands."""

    equation: str
    shapes: list[tuple[int, ...]]

    def __repr__(self) -> str:
        return f"{self.equation!r} of {', '.join(map(str, self.shapes))}"


def by_loops(equation: str, *operands: torch.Tensor) -> torch.Tensor:
    """The einsum by its definition: for each place of the output the sum, over every index it lacks, of the products.

    As torch reads the equation: `...` are dimensions aligned from the right, a size of 1 stretches, a repeated letter
    takes the diagonal; without `->` the output is the ellipsis and then the letters that occur once, in order.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    labels = [_labels(term, x.dim()) for term, x in zip(left.split(","), operands, strict=True)]
    sizes: dict[str, int] = {}
    for term, x in zip(labels, operands, strict=True):
        for label, size in zip(term, x.shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    dots = sorted((label for label in sizes if label.isdigit()), key=int, reverse=True)
    if arrow:
        output = _labels(right, len(right.replace("...", "")) + ("..." in right) * len(dots))
    else:
        output = dots + sorted(label for label in sizes if label.isalpha() and left.count(label) == 1)
    summed = [label for label in sizes if label not in output]
    values = [x.tolist() for x in operands]
    result = np.empty([sizes[label] for label in output], dtype=object)
    for at in np.ndindex(result.shape):
        place, total = dict(zip(output, at, strict=True)), 0.0
        for inner in itertools.product(*(range(sizes[label]) for label in summed)):
            place.update(zip(summed, inner, strict=True))
            factors = zip(values, labels, operands, strict=True)
            total += math.prod(_element(value, term, x.shape, place) for value, term, x in factors)
        result[at] = total
    return torch.tensor(result.astype(float), dtype=torch.float32)


def _labels(term: str, dims: int) -> list[str]:
    """The letter of each dimension; those of an ellipsis are numbered from its right."""
    before, dots, after = term.partition("...")
    width = dims - len(before) - len(after)
    return [*before, *(str(width - i) for i in range(width if dots else 0)), *after]


def _element(value: Any, labels: Sequence[str], shape: Sequence[int], place: dict[str, int]) -> float:
    for label, size in zip(labels, shape, strict=True):
        value = value[place[label] if size > 1 else 0]
    return float(value)


LETTERS = "ijkl"


@st.composite
def einsums(draw: st.DrawFn, operands: tuple[int, int] = (1, 3), plain: bool = False) -> Einsum:
    """Equations over four letters and an ellipsis; unless `plain` with diagonals, stretched sizes, or no output."""
    size = dict(zip(LETTERS, draw(st.tuples(*[st.integers(1, 3)] * len(LETTERS))), strict=True))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    terms, shapes = [], []
    for _ in range(draw(st.integers(*operands))):
        letters = draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=plain))
        dots = draw(st.integers(0, len(batch))) if draw(st.booleans()) else None
        at = draw(st.integers(0, len(letters)))
        once = [letters.count(letter) == 1 and not plain and draw(st.integers(0, 7)) == 7 for letter in letters]
        own = [1 if one else size[letter] for letter, one in zip(letters, once, strict=True)]
        tail = [] if dots is None else [n if plain or draw(st.booleans()) else 1 for n in batch[len(batch) - dots :]]
        terms.append("".join(letters[:at]) + ("" if dots is None else "...") + "".join(letters[at:]))
        shapes.append((*own[:at], *tail, *own[at:]))
    left = ",".join(terms)
    if not plain and draw(st.integers(0, 4)) == 4:
        return Einsum(left, shapes)
    letters = sorted(set(left) - set(",."))
    output = draw(st.lists(st.sampled_from(letters), unique=True, max_size=3))
    if "..." in left and draw(st.integers(0, 7)) < 7:  # else its dimensions are summed too
        output.insert(draw(st.integers(0, len(output))), "...")
    return Einsum(f"{left}->{''.join(output)}", shapes)
