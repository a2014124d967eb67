"""The largest error of a kernel, by bounds of its rounding errors.

A definition runs in fp64. Running error analysis (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, section 3.3): each operation passes on the errors of its operands and adds
its own. `RunningError` works below autograd, so that a definition that is written forward bounds
its gradients too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from test_claims.strategies import in_fp64

# Libraries promise elementary functions to within 1 or 2 ulp, which are 2 or 4 unit roundoffs;
# torch's vector code on a CPU trades some of that for speed: its erf errs by 4e-7 where it is 1.
FUNCTION_UNITS = 16
# The statistical bound fails with a probability of 2·n·exp(-DEVIATIONS²/2), here 2·n·1.3e-14.
DEVIATIONS = 8

aten = torch.ops.aten
RULES = {}
# These put values elsewhere and change none, so they do the same to the bounds.
MOVES = {
    *(aten.alias, aten.cat, aten.clone, aten.detach, aten.expand, aten.gather, aten.index),
    *(aten.permute, aten.select, aten.slice, aten.slice_backward, aten.split, aten.squeeze),
    *(aten.stack, aten.t, aten.transpose, aten.unsqueeze, aten.view, aten._unsafe_view),
}


def sum_units(terms):
    """Error of a sum of `terms` terms, in unit roundoffs of the sum of their magnitudes.

    n is Higham's γ_n to first order, right for any order of adding; 8·√n is the statistical bound
    (Higham and Mary 2019, theorem 2.4), which is the lower one from 64 terms on.
    """
    return min(float(terms), DEVIATIONS * math.sqrt(terms))


@dataclass(frozen=True)
class Precision:
    """The error of rounding to a format: `unit` of a value, and `least` where it is subnormal."""

    unit: float
    least: float = 0.0

    @staticmethod
    def of(dtype):
        format_ = torch.finfo(dtype)
        return Precision(format_.eps / 2, format_.smallest_normal * format_.eps / 2)

    def rounding(self, z):
        return (self.unit * z.abs()).add_(self.least)


FP32 = Precision(2.0**-24)
TF32 = Precision(2.0**-11)


class RunningError(TorchDispatchMode):
    """Bounds the error of each fp64 result within, were it computed in these precisions.

    `results` is that of every intermediate result, `accumulator` that of partial sums. `products`
    is what a product errs by besides, as a share of the sum of magnitudes. `after` hands on what an
    earlier one knows.
    """

    def __init__(
        self,
        results=FP32,
        accumulator=FP32,
        products=0.0,
        after=None,
    ):
        super().__init__()
        self.rounding, self.accumulator_unit = results.rounding, accumulator.unit
        self.product_error = products
        self._errors = after._errors if after else {}

    def of(self, x):
        """The bound of a value's error; 0 for what was given."""
        if not _is_real(x):
            return 0.0
        bound = self._errors.get(_place(x))
        return x.new_zeros(()).expand_as(x) if bound is None else bound

    def passed_on(self, x, y):
        """The bound of a value's error times the magnitude of another value."""
        return self.of(x) * magnitude(y) if self.errs(x) else 0.0

    def errs(self, x):
        """True if a value is not exactly one that was given."""
        return _is_real(x) and _place(x) in self._errors

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        packet = operation.overloadpacket
        if packet in MOVES:
            bounds = operation(*tree_map(self._moved, args), **kwargs)
        elif packet in RULES:
            bounds = RULES[packet](self, operation, result, *args, **kwargs)
        elif any(_is_real(x) for x in tree_leaves(result)):
            raise NotImplementedError(f"no rule bounds the error of {operation}")
        else:
            return result
        for x, bound in zip(tree_leaves(result), tree_leaves(bounds), strict=True):
            self._errors[_place(x)] = bound
        return result

    def _moved(self, x):
        return self.of(x) if _is_real(x) else x


def _is_real(x):
    return isinstance(x, Tensor) and x.is_floating_point()


def _place(x):
    """The address identifies a value: autograd returns a saved one as another object."""
    return x.data_ptr(), tuple(x.shape), x.stride()


def magnitude(x):
    return x if isinstance(x, Tensor) and not _is_real(x) else abs(x)


def rule_of(*operations):
    """Registers how an operation passes errors on, and what it adds."""

    def register(rule):
        RULES.update(dict.fromkeys(operations, rule))
        return rule

    return register


@rule_of(aten.zeros_like, aten.ones_like, aten.new_zeros, aten.amax)
def _exact(errors, _operation, z, *_, **__):
    return torch.zeros_like(z)


@rule_of(aten.neg)
def _negation(errors, _operation, z, x):
    return errors.of(x).expand_as(z)


@rule_of(aten.add, aten.sub)
def _addition(errors, _operation, z, x, y):
    return errors.rounding(z).add_(errors.of(x)).add_(errors.of(y))


@rule_of(aten.rsub)
def _subtraction_from(errors, _operation, z, x, _y):
    return errors.of(x) + errors.rounding(z)


@rule_of(aten.mul)
def _multiplication(errors, _operation, z, x, y):
    return errors.rounding(z).add_(errors.passed_on(x, y)).add_(errors.passed_on(y, x))


@rule_of(aten.div)
def _division(errors, _operation, z, x, y):
    passed_on = (errors.of(x) + z.abs() * errors.of(y)) / magnitude(y)
    return passed_on + errors.rounding(z)


@rule_of(aten.reciprocal)
def _reciprocal(errors, _operation, z, x):
    return z * z * errors.of(x) + errors.rounding(z)


@rule_of(aten.pow)
def _power(errors, _operation, z, x, exponent):
    passed_on = (exponent * x.pow(exponent - 1)).abs() * errors.of(x)
    # A square root is as exact as a division: IEEE 754 asks for it.
    units = 1 if exponent == 0.5 else FUNCTION_UNITS
    return passed_on + units * errors.rounding(z)


@rule_of(aten.cos, aten.sin)
def _wave(errors, _operation, z, x):
    return errors.of(x) + FUNCTION_UNITS * errors.rounding(torch.ones_like(z))


@rule_of(aten.exp)
def _exponential(errors, _operation, z, x):
    return z * errors.of(x) + FUNCTION_UNITS * errors.rounding(z)


@rule_of(aten.log)
def _logarithm(errors, _operation, z, x):
    return errors.of(x) / x.abs() + FUNCTION_UNITS * errors.rounding(z)


@rule_of(aten.erf)
def _error_function(errors, _operation, z, x):
    slope = 2 / math.sqrt(math.pi) * (-x * x).exp()
    return slope * errors.of(x) + FUNCTION_UNITS * errors.rounding(torch.ones_like(z))


@rule_of(aten.tanh)
def _tangent(errors, _operation, z, x):
    return (1 - z * z) * errors.of(x) + FUNCTION_UNITS * errors.rounding(z)


@rule_of(aten.tanh_backward)
def _tangent_backward(errors, _operation, z, above, y):
    """above · (1 - y²), whose difference cancels where y is near 1."""
    passed_on = (1 - y * y) * errors.of(above) + 2 * (above * y).abs() * errors.of(y)
    return passed_on + errors.rounding(above) * (1 + y * y) + errors.rounding(z)


@rule_of(aten.mm, aten.bmm)
def _product(errors, product, z, a, b):
    units = sum_units(a.shape[-1]) * errors.accumulator_unit + errors.product_error
    bound = product(a.abs(), b.abs()).mul_(units).add_(errors.rounding(z))
    if errors.errs(a):
        bound += product(errors.of(a), b.abs())
    if errors.errs(b):
        bound += product(a.abs(), errors.of(b))
    return bound


@rule_of(aten.sum, aten.mean)
def _reduction(errors, reduction, z, x, *args, **kwargs):
    units = sum_units(x.numel() // z.numel()) * errors.accumulator_unit
    return reduction(errors.of(x) + units * x.abs(), *args, **kwargs) + errors.rounding(z)


@rule_of(aten.index_put, aten.scatter_add)
def _scattering(errors, scattering, z, zeros, *where):
    """Adds values at places, several of them at one; the values are the last tensor."""
    at = max(place for place, x in enumerate(where) if _is_real(x))
    values = where[at]

    def scattered(x):
        return scattering(zeros, *where[:at], x, *where[at + 1 :])

    units = sum_units(int(scattered(torch.ones_like(values)).max())) * errors.accumulator_unit
    return scattered(errors.of(values) + units * values.abs()) + errors.rounding(z)


@dataclass(frozen=True)
class Comparison:
    """The largest error of one result, in units of its bound."""

    what: str
    units: float
    got: float
    should: float

    def __str__(self):
        return (
            f"{self.what} has {self.got!r}, but should have {self.should!r}: "
            f"{self.units:.3g} times what rounding may err by"
        )


def compared(what, got, should, error=0.0):
    """`got`, which its dtype rounds once more, against what it should be within `error`."""
    precision = Precision.of(got.dtype)
    got = in_fp64(got.detach()).cpu()
    bound = error + precision.rounding(should.abs() + error)
    units = (got - should).abs_().div_(bound).nan_to_num_(math.inf, math.inf).flatten()
    worst = int(units.argmax())
    values = (x.flatten()[worst].item() for x in (got, should))
    return Comparison(what, units[worst].item(), *values)
