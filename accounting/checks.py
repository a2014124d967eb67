"""Argument checks shared by the formulas: each error names the argument, its value and what is valid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def count(name: str, value: object, minimum: int = 0) -> int:
    """`value` if it is an integer of at least `minimum`; a bool or a float is no count.

    >>> count("m", 3)
    3
    >>> count("m", -1)
    Traceback (most recent call last):
    ValueError: m must be at least 0, got -1
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    number: int = value.__index__()
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def counts(name: str, values: Iterable[object], minimum: int = 0) -> tuple[int, ...]:
    """`values` (a shape, strides) if each of them is a count.

    >>> counts("shape", (2, 3))
    (2, 3)
    >>> counts("shape", (2, -1))
    Traceback (most recent call last):
    ValueError: shape[1] must be at least 0, got -1
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r} of type {type(values).__name__}")
    return tuple(count(f"{name}[{position}]", value, minimum) for position, value in enumerate(values))


def positive(name: str, value: object) -> float:
    """`value` as a float if it is a finite number above zero (a rate, a time, a price).

    >>> positive("peak", 0)
    Traceback (most recent call last):
    ValueError: peak must be a finite number above 0, got 0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def choice(name: str, value: T, valid: Iterable[T]) -> T:
    """`value` if it is one of `valid`; otherwise an error that lists them and the nearest one.

    >>> choice("norm", "layer_norm", ["layernorm", "rmsnorm"])
    Traceback (most recent call last):
    ValueError: norm must be one of layernorm, rmsnorm, got 'layer_norm'; did you mean 'layernorm'?
    """
    options = list(valid)
    # A list or a dict is unhashable and would make a plain `in` of a set or a dict raise something unclear.
    if value in options:
        return value
    near = get_close_matches(str(value), [str(option) for option in options], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}{hint}")
