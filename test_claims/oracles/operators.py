"""The operators of the lecture's programs and their definitions in numpy; einsums by loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, Any]


class Operator(NamedTuple):
    """A call, its definition, and the shapes of its arguments."""

    call: Callable[..., Tensor]
    definition: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]

    def numbers(self) -> list[Array]:
        """Arguments in numpy, always the same; none is so near 0 that a difference crosses it."""
        generator = np.random.default_rng(0)
        return [
            generator.uniform(0.1, 2.0, shape) * generator.choice([-1, 1], shape)
            for shape in self.shapes
        ]

    def arguments(self, device: torch.device, **options: Any) -> list[Tensor]:
        return [torch.tensor(number, device=device, **options) for number in self.numbers()]


def exp_shares(x: Array) -> Array:
    shares: Array = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def normalised(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    result: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    return result


def causal_attention(query: Array, key: Array, value: Array) -> Array:
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    past = np.arange(key.shape[-2]) <= np.arange(query.shape[-2])[:, None]
    result: Array = exp_shares(np.where(past, scores, -np.inf)) @ value
    return result


def windows(x: Array) -> Array:
    return sliding_window_view(x, (3, 2), axis=(2, 3))


M = (3, 4)
X = (4, 2)
Y = (3, 4)
SEQUENCE = (2, 3, 4)
INDEX = np.array([[0, 2, 2], [1, 0, 3]])
CLASSES = np.array([1, 0, 3])


def on(x: Tensor, index: Array) -> Tensor:
    return torch.from_numpy(index).to(x.device)


NEW = {
    "matmul": Operator(lambda a, b: torch.matmul(a, b), np.matmul, (M, X)),
    "bmm": Operator(lambda a, b: torch.bmm(a, b), np.matmul, (SEQUENCE, (2, 4, 2))),
    "mv": Operator(lambda a, b: torch.mv(a, b), np.matmul, (M, (4,))),
    "einsum": Operator(lambda a, b: torch.einsum("ij,jk->ik", a, b), np.matmul, (M, X)),
    "linear": Operator(
        lambda x, w, b: functional.linear(x, w, b), lambda x, w, b: x @ w.T + b, (M, (2, 4), (2,))
    ),
    "conv2d": Operator(
        lambda x, w: functional.conv2d(x, w),
        lambda x, w: np.einsum("nchwij,ocij->nohw", windows(x), w),
        ((2, 3, 5, 4), (2, 3, 3, 2)),
    ),
    "layer_norm": Operator(
        lambda x, w, b: functional.layer_norm(x, (4,), w, b), normalised, (M, (4,), (4,))
    ),
    "softmax": Operator(lambda x: torch.softmax(x, -1), exp_shares, (M,)),
    "log_softmax": Operator(
        lambda x: torch.log_softmax(x, -1), lambda x: np.log(exp_shares(x)), (M,)
    ),
    "attention": Operator(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        causal_attention,
        (SEQUENCE,) * 3,
    ),
    "triu": Operator(lambda x: torch.triu(x, diagonal=1), lambda x: np.triu(x, 1), (M,)),
    "where": Operator(lambda x: x.masked_fill(x > 0, 2.0), lambda x: np.where(x > 0, 2.0, x), (M,)),
    "embedding": Operator(
        lambda w: functional.embedding(on(w, INDEX), w), lambda w: w[INDEX], ((4, 3),)
    ),
    "gelu": Operator(
        lambda x: functional.gelu(x),
        lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        (M,),
    ),
    "relu": Operator(lambda x: torch.relu(x), lambda x: np.maximum(x, 0), (M,)),
    "tanh": Operator(lambda x: x.tanh(), np.tanh, (M,)),
    "cross_entropy": Operator(
        lambda x: functional.cross_entropy(x, on(x, CLASSES)),
        lambda x: -np.log(exp_shares(x))[range(len(x)), CLASSES].mean(),
        (M,),
    ),
    "mse_loss": Operator(
        lambda x, y: functional.mse_loss(x, y), lambda x, y: ((x - y) ** 2).mean(), (M, Y)
    ),
    "cumsum": Operator(lambda x: torch.cumsum(x, 1), lambda x: np.cumsum(x, 1), (M,)),
    "sum": Operator(lambda x: torch.sum(x, 0), lambda x: x.sum(0), (M,)),
    "mean": Operator(lambda x: torch.mean(x, 0), lambda x: x.mean(0), (M,)),
    "amax": Operator(lambda x: torch.amax(x, 1), lambda x: x.max(1), (M,)),
    "norm": Operator(
        lambda x: torch.linalg.vector_norm(x, dim=1), lambda x: np.sqrt((x**2).sum(1)), (M,)
    ),
    "gather": Operator(
        lambda x: torch.gather(x, 1, on(x, INDEX)),
        lambda x: np.take_along_axis(x, INDEX, 1),
        ((2, 4),),
    ),
    "add": Operator(lambda x, y: x + y, np.add, (M, Y)),
    "sub": Operator(lambda x, y: x - y, np.subtract, (M, Y)),
    "mul": Operator(lambda x, y: x * y, np.multiply, (M, Y)),
    "div": Operator(lambda x, y: x / y, np.divide, (M, Y)),
    "sqrt": Operator(lambda x: torch.sqrt(torch.exp(x)), lambda x: np.sqrt(np.exp(x)), (M,)),
    "pow": Operator(lambda x: x.pow(3), lambda x: x**3, (M,)),
    "cat": Operator(
        lambda x, y: torch.cat([x, y], 1), lambda x, y: np.concatenate([x, y], 1), (M, Y)
    ),
    "clone": Operator(lambda x: torch.clone(x), np.copy, (M,)),
    "cast": Operator(lambda x: x.float(), np.copy, (M,)),
}

VIEWS = {
    "index": Operator(lambda x: x[1:, ::2], lambda x: x[1:, ::2], (M,)),
    "view": Operator(lambda x: x.view(4, 3), lambda x: x.reshape(4, 3), (M,)),
    "transpose": Operator(lambda x: x.transpose(0, 1), np.transpose, (M,)),
    "expand": Operator(lambda x: x.expand(2, 3, 4), lambda x: np.broadcast_to(x, SEQUENCE), (M,)),
    "contiguous": Operator(lambda x: x.contiguous(), np.copy, (M,)),
}


def differences(operator: Operator, above: Array, step: float = 1e-6) -> Iterator[Array]:
    """The gradient of Σ above · definition by each argument, from central differences."""
    numbers = operator.numbers()
    for argument in numbers:
        gradient = np.zeros_like(argument)
        for place in np.ndindex(argument.shape):
            value = argument[place]
            sides = []
            for argument[place] in (value + step, value - step):
                sides.append((above * operator.definition(*numbers)).sum())
            argument[place] = value
            gradient[place] = (sides[0] - sides[1]) / (2 * step)
        yield gradient


def by_loops(equation: str, *operands: torch.Tensor) -> torch.Tensor:
    """The einsum by its definition: for each place of the output the sum, over every index it
    lacks, of the products.

    As torch reads the equation: `...` are dimensions aligned from the right, a size of 1 stretches,
    a repeated letter takes the diagonal; without `->` the output is the ellipsis and then the
    letters that occur once, in order.
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
        output = dots + sorted(
            label for label in sizes if label.isalpha() and left.count(label) == 1
        )
    summed = [label for label in sizes if label not in output]
    values = [x.tolist() for x in operands]
    result = np.empty([sizes[label] for label in output], dtype=object)
    for at in np.ndindex(result.shape):
        place = dict(zip(output, at, strict=True))
        total = 0.0
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


def _element(
    value: Any, labels: Sequence[str], shape: Sequence[int], place: dict[str, int]
) -> float:
    for label, size in zip(labels, shape, strict=True):
        value = value[place[label] if size > 1 else 0]
    return float(value)


LETTERS = "ijkl"


@st.composite
def einsums(
    draw: st.DrawFn, operands: tuple[int, int] = (1, 3), plain: bool = False
) -> tuple[str, list[Any]]:
    """An equation over four letters and an ellipsis, and shapes; unless `plain` with diagonals, or
    no output.
    """
    size = dict(zip(LETTERS, draw(st.tuples(*[st.integers(1, 3)] * len(LETTERS))), strict=True))
    batch = tuple(
        draw(
            st.lists(st.integers(1, 3), max_size=2)
            | st.lists(st.integers(1, 2), min_size=3, max_size=4)
        )
    )
    terms = []
    shapes = []
    for _ in range(draw(st.integers(*operands))):
        letters = draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=plain))
        dots = draw(st.integers(0, len(batch))) if draw(st.booleans()) else None
        at = draw(st.integers(0, len(letters)))
        once = [
            letters.count(letter) == 1 and not plain and draw(st.integers(0, 7)) == 7
            for letter in letters
        ]
        own = [1 if one else size[letter] for letter, one in zip(letters, once, strict=True)]
        tail = (
            []
            if dots is None
            else [n if plain or draw(st.booleans()) else 1 for n in batch[len(batch) - dots :]]
        )
        terms.append(
            "".join(letters[:at]) + ("" if dots is None else "...") + "".join(letters[at:])
        )
        shapes.append((*own[:at], *tail, *own[at:]))
    left = ",".join(terms)
    if not plain and draw(st.integers(0, 2)) == 2:
        return left, shapes
    letters = sorted(set(left) - set(",."))
    output = draw(st.lists(st.sampled_from(letters), unique=True, max_size=3))
    if "..." in left and draw(st.integers(0, 7)) < 7:  # else its dimensions are summed too
        output.insert(draw(st.integers(0, len(output))), "...")
    return f"{left}->{''.join(output)}", shapes
