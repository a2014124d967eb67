"""Operators that are no products, with their definitions in numpy; einsums."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, Any]


class Operator(NamedTuple):
    """A call, its definition, and the shapes of its arguments."""

    call: Callable[..., Tensor]
    definition: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]

    def numbers(self):
        """Arguments in numpy, always the same."""
        generator = np.random.default_rng(0)
        return [generator.standard_normal(shape) for shape in self.shapes]

    def arguments(self, device, **options):
        return [torch.tensor(number, device=device, **options) for number in self.numbers()]


def exp_shares(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def normalised(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * weight + bias


M = (3, 4)
CLASSES = np.array([1, 0, 3])


def on(x, index):
    return torch.from_numpy(index).to(x.device)


def layer_norm_of_four(x, weight, bias):
    return functional.layer_norm(x, (4,), weight, bias)


def root_of_squares(x):
    return np.sqrt((x**2).sum(1))


def log_shares(x):
    return np.log(exp_shares(x))


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def loss_of_classes(x):
    return functional.cross_entropy(x, on(x, CLASSES))


def cross_entropy(x):
    return -log_shares(x)[range(len(x)), CLASSES].mean()


def mean_square(x, y):
    return ((x - y) ** 2).mean()


def root_of_exp(x):
    return torch.sqrt(torch.exp(x))


def numpys_root_of_exp(x):
    return np.sqrt(np.exp(x))


NEW = {
    "layer_norm": Operator(layer_norm_of_four, normalised, (M, (4,), (4,))),
    "softmax": Operator(partial(torch.softmax, dim=-1), exp_shares, (M,)),
    "log_softmax": Operator(partial(torch.log_softmax, dim=-1), log_shares, (M,)),
    "gelu": Operator(functional.gelu, gelu, (M,)),
    "relu": Operator(torch.relu, partial(np.maximum, 0), (M,)),
    "tanh": Operator(torch.Tensor.tanh, np.tanh, (M,)),
    "cross_entropy": Operator(loss_of_classes, cross_entropy, (M,)),
    "mse_loss": Operator(functional.mse_loss, mean_square, (M, M)),
    "sum": Operator(partial(torch.sum, dim=0), partial(np.sum, axis=0), (M,)),
    "mean": Operator(partial(torch.mean, dim=0), partial(np.mean, axis=0), (M,)),
    "norm": Operator(partial(torch.linalg.vector_norm, dim=1), root_of_squares, (M,)),
    "add": Operator(operator.add, np.add, (M, M)),
    "mul": Operator(operator.mul, np.multiply, (M, M)),
    "sqrt": Operator(root_of_exp, numpys_root_of_exp, (M,)),
    "pow": Operator(methodcaller("pow", 3), methodcaller("__pow__", 3), (M,)),
}


def numpys_einsum(equation, *operands):
    """The einsum by numpy, which sums over the dimensions of an ellipsis only on request."""
    left, arrow, right = equation.partition("->")
    summed = arrow and "..." in left and "..." not in right
    if summed:
        equation = f"{left}->...{right}"
    result = np.einsum(equation, *(x.cpu().double().numpy() for x in operands))
    if summed:
        result = result.sum(axis=tuple(range(result.ndim - len(right))))
    return torch.tensor(result, dtype=torch.float32)
