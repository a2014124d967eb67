"""A number that counts its own multiplications and additions, and products made of it.

Arrays of such numbers are numpy object arrays: numpy broadcasts them and calls the number's own
operators for each element, so the count does not depend on any formula.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Operations:
    """Counts of the operations of all numbers that share it."""

    multiplications: int = 0
    additions: int = 0
    # Maxima, exponentials and hyperbolic tangents.
    others: int = 0

    @property
    def flops(self):
        return self.multiplications + self.additions + self.others

    def array(self, values):
        """The values, read in one transfer, as numbers that count into this tally."""
        numbers = [Number(value, self) for value in values.flatten().tolist()]
        return np.array(numbers, dtype=object).reshape(tuple(values.shape))


class Number:
    """A float that counts its operations; a subtraction is an addition."""

    __slots__ = ("operations", "value")

    def __init__(self, value, operations):
        self.value = value
        self.operations = operations

    def __mul__(self, other):
        self.operations.multiplications += 1
        return Number(self.value * float(other), self.operations)

    def __add__(self, other):
        self.operations.additions += 1
        return Number(self.value + float(other), self.operations)

    def __sub__(self, other):
        self.operations.additions += 1
        return Number(self.value - float(other), self.operations)

    __rmul__ = __mul__
    __radd__ = __add__

    def __float__(self):
        return float(self.value)

    def through(self, function):
        """Any other elementary function of it."""
        self.operations.others += 1
        return Number(function(self.value), self.operations)


def integers(*shape, device="cpu", requires_grad=False):
    """Random small integers as float32: exact in any order and precision."""
    return torch.randint(-3, 4, shape, device=device).float().requires_grad_(requires_grad)


def tensor(numbers):
    """The values alone, as float32: exact for the small integers the tests draw."""
    # numpy unwraps arrays without dimensions
    values = np.asarray(numbers).astype(float)
    return torch.tensor(values, dtype=torch.float32)


def inner_product(a, b):
    """Σ a·b, whose first addition is a copy: one FLOP fewer than from zero."""
    return functools.reduce(operator.add, a * b)


def matmul(a, b):
    """a @ b by its definition: each term is a product; they are added up from zero."""
    return total(a[..., :, :, None] * b[..., None, :, :], -2)


def linear(x, weight, bias=None):
    """x · weightᵀ + bias, the weight laid out as in torch.nn.Linear."""
    product = matmul(x, weight.T)
    return product if bias is None else product + bias


def total(numbers, axis):
    """The sum over one dimension, each into an accumulator that starts at zero."""
    lines = np.moveaxis(numbers, axis, -1)
    result = np.empty(lines.shape[:-1], dtype=object)
    for index in np.ndindex(result.shape):
        result[index] = sum(lines[index][1:], lines[index][0] + 0.0)
    return result


def contract(a, b, result):
    """One step of an einsum.

    Indices of one operand alone that are not in the result are summed first.
    """
    operands = _without_lone(a, {*b[0], *result}), _without_lone(b, {*a[0], *result})
    every_index = dict.fromkeys(result + operands[0][0] + operands[1][0])
    left, right = (_spread(*operand, every_index) for operand in operands)
    products = np.array(left * right, dtype=object)
    if len(every_index) > len(result):
        products = total(products.reshape(*products.shape[: len(result)], -1), -1)
    return result, products


def _spread(indices, values, every_index):
    """The values with a dimension for each index, of size 1 for those they lack."""
    order = [indices.index(index) for index in every_index if index in indices]
    dims = [slice(None) if index in indices else None for index in every_index]
    return values.transpose(order)[tuple(dims)]


def _without_lone(operand, needed):
    indices, values = operand
    kept = [index for index in indices if index in needed]
    unshared = [index for index in indices if index not in needed]
    if not unshared:
        return operand
    order = [indices.index(index) for index in kept + unshared]
    moved = values.transpose(order)
    # One pass over all of them at once: one addition per element.
    lines = moved.reshape(*moved.shape[: len(kept)], -1)
    return "".join(kept), total(lines, -1)


def relu(x):
    """One comparison an element."""
    return _mapped(lambda number: number.through(lambda value: max(value, 0.0)), x)


def gelu(x, approximate):
    """½·x·(1 + erf(x/√2)), or ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), operation by operation."""

    def by_erf(number):
        return number * ((number * 0.5**0.5).through(math.erf) + 1.0) * 0.5

    def by_tanh(number):
        inner = (number + number * number * number * 0.044715) * math.sqrt(2 / math.pi)
        return number * 0.5 * (inner.through(math.tanh) + 1.0)

    return _mapped(by_tanh if approximate == "tanh" else by_erf, x)


def _mapped(function, x):
    mapped = [function(number) for number in x.flat]
    return np.array(mapped, dtype=object).reshape(x.shape)
