"""Argument checks shared by the formulas: each error names the argument, its value and what is valid.

Each returns the value in plain Python, which is what to compute with: an int32 of numpy overflows in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from typing import TypeVar

T = TypeVar("T")


def validated_int(name: str, value: object, minimum: int | None = 0) -> int:
    """`value` as an int if it is an integer of at least `minimum`, of any type; a bool or a float is not one.

    >>> validated_int("m", 3)
    3
    >>> validated_int("m", -1)
    Traceback (most recent call last):
    ValueError: m must be at least 0, got -1
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    number: int = value.__index__()
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def validated_product(**sizes: object) -> int:
    """The product of sizes, each of them a `validated_int` under its own name.

    >>> validated_product(m=2, k=3)
    6
    >>> validated_product(m=2, k=0.5)
    Traceback (most recent call last):
    TypeError: k must be an integer, got 0.5 of type float
    """
    return math.prod(validated_int(name, size) for name, size in sizes.items())


def validated_ints(name: str, values: Iterable[object], minimum: int = 0) -> tuple[int, ...]:
    """`values` (a shape, strides) as ints if each of them is a `validated_int`.

    >>> validated_ints("shape", (2, 3))
    (2, 3)
    >>> validated_ints("shape", (2, -1))
    Traceback (most recent call last):
    ValueError: shape[1] must be at least 0, got -1
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r} of type {type(values).__name__}")
    return tuple(validated_int(f"{name}[{position}]", value, minimum) for position, value in enumerate(values))


def validate_fields(instance: object, *names: str, minimum: int = 0) -> None:
    """Replaces these fields of a frozen dataclass, in its __post_init__, by what `validated_int` makes of them."""
    for name in names:
        object.__setattr__(instance, name, validated_int(name, getattr(instance, name), minimum))


def validated_real(name: str, value: object) -> float:
    """`value` as a float if it is a real number, of any type.

    >>> validated_real("value", "1")
    Traceback (most recent call last):
    TypeError: value must be a number, got '1' of type str
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    return float(value)


def validated_positive(name: str, value: object) -> float:
    """`value` as a float if it is a finite number above zero (a rate, a time, a price).

    >>> validated_positive("peak", 0)
    Traceback (most recent call last):
    ValueError: peak must be a finite number above 0, got 0
    """
    number = validated_real(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def validated_choice(name: str, value: T, valid: Iterable[T]) -> T:
    """The one of `valid` that equals `value`; otherwise an error that lists them and the nearest one.

    >>> validated_choice("norm", "layer_norm", ["layernorm", "rmsnorm"])
    Traceback (most recent call last):
    ValueError: norm must be one of layernorm, rmsnorm, got 'layer_norm'; did you mean 'layernorm'?
    """
    options = list(valid)
    # A list or a dict is unhashable and would make a plain `in` of a set or a dict raise something unclear.
    if value in options:
        return options[options.index(value)]
    near = get_close_matches(str(value), [str(option) for option in options], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}{hint}")
