"""The operators of the lecture's programs and their definitions in numpy; einsums by loops."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from operator import itemgetter, methodcaller
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

    def numbers(self):
        """Arguments in numpy, always the same; none is so near 0 that a difference crosses it."""
        generator = np.random.default_rng(0)
        drawn = []
        for shape in self.shapes:
            magnitudes = generator.uniform(0.1, 2.0, shape)
            signs = generator.choice([-1, 1], shape)
            drawn.append(magnitudes * signs)
        return drawn

    def arguments(self, device, **options):
        return [torch.tensor(number, device=device, **options) for number in self.numbers()]


def exp_shares(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def normalised(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * weight + bias


def causal_attention(query, key, value):
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    keys = np.arange(key.shape[-2])
    queries = np.arange(query.shape[-2])
    past = keys <= queries[:, None]
    seen = np.where(past, scores, -np.inf)
    return exp_shares(seen) @ value


def windows(x):
    return sliding_window_view(x, (3, 2), axis=(2, 3))


M = (3, 4)
X = (4, 2)
Y = (3, 4)
SEQUENCE = (2, 3, 4)
INDEX = np.array([[0, 2, 2], [1, 0, 3]])
CLASSES = np.array([1, 0, 3])


def on(x, index):
    return torch.from_numpy(index).to(x.device)


def linear(x, weight, bias):
    return x @ weight.T + bias


def convolution(x, weight):
    return np.einsum("nchwij,ocij->nohw", windows(x), weight)


def layer_norm_of_four(x, weight, bias):
    return functional.layer_norm(x, (4,), weight, bias)


def root_of_squares(x):
    return np.sqrt((x**2).sum(1))


def log_shares(x):
    return np.log(exp_shares(x))


def positive_replaced(x):
    return x.masked_fill(x > 0, 2.0)


def numpys_positive_replaced(x):
    return np.where(x > 0, 2.0, x)


def embedded(table):
    return functional.embedding(on(table, INDEX), table)


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def loss_of_classes(x):
    return functional.cross_entropy(x, on(x, CLASSES))


def cross_entropy(x):
    return -log_shares(x)[range(len(x)), CLASSES].mean()


def mean_square(x, y):
    return ((x - y) ** 2).mean()


def gathered(x):
    return torch.gather(x, 1, on(x, INDEX))


def root_of_exp(x):
    return torch.sqrt(torch.exp(x))


def numpys_root_of_exp(x):
    return np.sqrt(np.exp(x))


def side_by_side(x, y):
    return torch.cat([x, y], 1)


def numpys_side_by_side(x, y):
    return np.concatenate([x, y], 1)


NEW = {
    "matmul": Operator(torch.matmul, np.matmul, (M, X)),
    "bmm": Operator(torch.bmm, np.matmul, (SEQUENCE, (2, 4, 2))),
    "mv": Operator(torch.mv, np.matmul, (M, (4,))),
    "einsum": Operator(partial(torch.einsum, "ij,jk->ik"), np.matmul, (M, X)),
    "linear": Operator(functional.linear, linear, (M, (2, 4), (2,))),
    "conv2d": Operator(functional.conv2d, convolution, ((2, 3, 5, 4), (2, 3, 3, 2))),
    "layer_norm": Operator(layer_norm_of_four, normalised, (M, (4,), (4,))),
    "softmax": Operator(partial(torch.softmax, dim=-1), exp_shares, (M,)),
    "log_softmax": Operator(partial(torch.log_softmax, dim=-1), log_shares, (M,)),
    "attention": Operator(
        partial(functional.scaled_dot_product_attention, is_causal=True),
        causal_attention,
        (SEQUENCE,) * 3,
    ),
    "triu": Operator(partial(torch.triu, diagonal=1), partial(np.triu, k=1), (M,)),
    "where": Operator(positive_replaced, numpys_positive_replaced, (M,)),
    "embedding": Operator(embedded, itemgetter(INDEX), ((4, 3),)),
    "gelu": Operator(functional.gelu, gelu, (M,)),
    "relu": Operator(torch.relu, partial(np.maximum, 0), (M,)),
    "tanh": Operator(torch.Tensor.tanh, np.tanh, (M,)),
    "cross_entropy": Operator(loss_of_classes, cross_entropy, (M,)),
    "mse_loss": Operator(functional.mse_loss, mean_square, (M, Y)),
    "cumsum": Operator(partial(torch.cumsum, dim=1), partial(np.cumsum, axis=1), (M,)),
    "sum": Operator(partial(torch.sum, dim=0), partial(np.sum, axis=0), (M,)),
    "mean": Operator(partial(torch.mean, dim=0), partial(np.mean, axis=0), (M,)),
    "amax": Operator(partial(torch.amax, dim=1), partial(np.max, axis=1), (M,)),
    "norm": Operator(partial(torch.linalg.vector_norm, dim=1), root_of_squares, (M,)),
    "gather": Operator(gathered, partial(np.take_along_axis, indices=INDEX, axis=1), ((2, 4),)),
    "add": Operator(operator.add, np.add, (M, Y)),
    "sub": Operator(operator.sub, np.subtract, (M, Y)),
    "mul": Operator(operator.mul, np.multiply, (M, Y)),
    "div": Operator(operator.truediv, np.divide, (M, Y)),
    "sqrt": Operator(root_of_exp, numpys_root_of_exp, (M,)),
    "pow": Operator(methodcaller("pow", 3), methodcaller("__pow__", 3), (M,)),
    "cat": Operator(side_by_side, numpys_side_by_side, (M, Y)),
    "clone": Operator(torch.clone, np.copy, (M,)),
    "cast": Operator(torch.Tensor.float, np.copy, (M,)),
}


def by_loops(equation, *operands):
    """The einsum by its definition: for each place of the output the sum, over every index it
    lacks, of the products.

    As torch reads the equation: `...` are dimensions aligned from the right, a size of 1 stretches,
    a repeated letter takes the diagonal; without `->` the output is the ellipsis and then the
    letters that occur once, in order.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    labels = [_labels(term, x.dim()) for term, x in zip(left.split(","), operands, strict=True)]
    sizes = {}
    for term, x in zip(labels, operands, strict=True):
        for label, size in zip(term, x.shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    dots = sorted(filter(str.isdigit, sizes), key=int, reverse=True)
    once = [label for label in sizes if label.isalpha() and left.count(label) == 1]
    output = dots + sorted(once)
    if arrow:
        dims = len(right.replace("...", ""))
        if "..." in right:
            dims += len(dots)
        output = _labels(right, dims)
    summed = [label for label in sizes if label not in output]
    values = [x.tolist() for x in operands]
    lengths = [sizes[label] for label in summed]
    result = np.empty([sizes[label] for label in output], dtype=object)
    for at in np.ndindex(result.shape):
        place = dict(zip(output, at, strict=True))
        total = 0.0
        for inner in np.ndindex(*lengths):
            place.update(zip(summed, inner, strict=True))
            product = 1.0
            for value, term, x in zip(values, labels, operands, strict=True):
                product *= _element(value, term, x.shape, place)
            total += product
        result[at] = total
    return torch.tensor(result.astype(float), dtype=torch.float32)


def _labels(term, dims):
    """The letter of each dimension; those of an ellipsis are numbered from its right."""
    before, dots, after = term.partition("...")
    if not dots:
        return [*before]
    width = dims - len(before) - len(after)
    numbered = [str(place) for place in range(width, 0, -1)]
    return [*before, *numbered, *after]


def _element(value, labels, shape, place):
    for label, size in zip(labels, shape, strict=True):
        value = value[place[label] if size > 1 else 0]
    return float(value)


LETTERS = "ijkl"


@st.composite
def einsums(draw, operands=(1, 3), plain=False):
    """An equation over four letters and an ellipsis, and shapes; unless `plain` with diagonals, or
    no output.
    """
    size = {letter: draw(st.integers(1, 3)) for letter in LETTERS}
    few = st.lists(st.integers(1, 3), max_size=2)
    many = st.lists(st.integers(1, 2), min_size=3, max_size=4)
    batch = draw(few | many)
    terms = []
    shapes = []
    for _ in range(draw(st.integers(*operands))):
        letters = draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=plain))
        own = [size[letter] for letter in letters]
        if not plain:
            own = draw(_stretching(letters, own))
        at = draw(st.integers(0, len(letters)))
        dots = ""
        tail = []
        if draw(st.booleans()):
            dots = "..."
            missing = draw(st.integers(0, len(batch)))
            tail = batch[missing:]
        if not plain:
            tail = [draw(st.sampled_from([n, 1])) for n in tail]
        term = [*letters[:at], dots, *letters[at:]]
        terms.append("".join(term))
        shapes.append((*own[:at], *tail, *own[at:]))
    left = ",".join(terms)
    if not plain and draw(st.integers(0, 2)) == 2:
        return left, shapes
    letters = sorted(set(left) - set(",."))
    output = draw(st.lists(st.sampled_from(letters), unique=True, max_size=3))
    # Now and then the output lacks the dimensions of the ellipsis, so that they are summed too.
    if "..." in left and draw(st.integers(0, 7)) < 7:
        output.insert(draw(st.integers(0, len(output))), "...")
    return f"{left}->{''.join(output)}", shapes


@st.composite
def _stretching(draw, letters, own):
    """The sizes of a term, of which one that occurs once is seldom 1, and stretches."""
    once = [letters.count(letter) == 1 and draw(st.integers(0, 7)) == 7 for letter in letters]
    for place, stretches in enumerate(once):
        if stretches:
            own[place] = 1
    return own
