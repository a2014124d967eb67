"""Argument checks of the formulas: an error names the argument, its value and the valid ones.

Each check returns the value in plain Python, to compute with: an int32 of numpy overflows silently.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from operator import index
from typing import Any, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")
Check = Callable[[str, Any], object]


def validated_int(name: str, value: object, minimum: int | None = 0) -> int:
    """`value` as an int of at least `minimum`.

    A whole number of any type (70e9) is accepted, a bool is refused.

    >>> validated_int("parameters", 70e9)
    70000000000
    """
    # A model's parts have thousands of plain ints.
    number = value if type(value) is int else None
    if number is None and not _is_bool(value):
        with suppress(TypeError, ValueError, OverflowError):  # an array, NaN, infinity
            if hasattr(value, "__index__"):
                number = index(value)
            elif isinstance(value, Real) and value == float(value) and float(value).is_integer():
                number = int(float(value))
    if number is None:
        raise TypeError(f"{name} must be an integer, {_got(value)}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def at_least_one(name: str, value: object) -> int:
    """`value` as an int if it is a whole number of at least 1.

    >>> at_least_one("devices", 8.0)
    8
    """
    return validated_int(name, value, minimum=1)


def validated_ints(name: str, values: Iterable[object], minimum: int = 0) -> tuple[int, ...]:
    """`values` (a shape, strides) as ints if each of them is a `validated_int`.

    >>> validated_ints("shape", (2, -1))
    Traceback (most recent call last):
    ValueError: shape[1] must be at least 0, got -1
    """
    if (
        isinstance(values, (str, bytes))
        or not isinstance(values, Iterable)
        or getattr(values, "shape", None) == ()
    ):
        raise TypeError(f"{name} must be a sequence of integers, {_got(values)}")
    return tuple(
        validated_int(f"{name}[{position}]", value, minimum)
        for position, value in enumerate(values)
    )


def validate_fields(
    instance: object, *names: str, minimum: int = 0, flags: Iterable[str] = ()
) -> None:
    """Checks fields of a frozen dataclass as integers, and `flags` as bools.

    Call it in `__post_init__`.

    >>> from types import SimpleNamespace
    >>> shape = SimpleNamespace(rows=3.0, tied=True)
    >>> validate_fields(shape, "rows", flags=["tied"])
    >>> shape.rows
    3
    """
    for name in names:
        object.__setattr__(instance, name, validated_int(name, getattr(instance, name), minimum))
    for name in flags:
        object.__setattr__(instance, name, validated_bool(name, getattr(instance, name)))


def validated_bool(name: str, value: object) -> bool:
    """`value` as a bool if it is one, Python's or numpy's: the string "no" would count as true.

    >>> validated_bool("gated", "no")
    Traceback (most recent call last):
    TypeError: gated must be True or False, got 'no' of type str
    """
    if not _is_bool(value):
        raise TypeError(f"{name} must be True or False, {_got(value)}")
    return bool(value)


def validated_instance(name: str, value: object, kind: type[T]) -> T:
    """`value` if it is a `kind`.

    >>> validated_instance("equation", 5, str)
    Traceback (most recent call last):
    TypeError: equation must be a str, got 5 of type int
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOaeio" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, {_got(value)}")
    return value


def instance_of(kind: type) -> Check:
    """`validated_instance` of `kind`, in the form that `checked` takes.

    >>> instance_of(str)("equation", "ij->ji")
    'ij->ji'
    """
    return lambda name, value: validated_instance(name, value, kind)


def validated_positive(name: str, value: object) -> float:
    """`value` as a float if it is a finite number above zero: a rate, a time, a price.

    >>> validated_positive("peak", 0)
    Traceback (most recent call last):
    ValueError: peak must be a finite number above 0, got 0
    """
    number = validated_real(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def validated_real(name: str, value: object) -> float:
    """`value` as a float if it is a real number of any type.

    >>> validated_real("value", "1")
    Traceback (most recent call last):
    TypeError: value must be a number, got '1' of type str
    """
    if _is_bool(value) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, {_got(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be at most 1.8e308, got {value!r}") from None


def validated_choice(name: str, value: T, valid: Iterable[T]) -> T:
    """The element of `valid` that equals `value`.

    Otherwise an error lists the valid ones and suggests the nearest.

    >>> validated_choice("norm", "layer_norm", ["layernorm", "rmsnorm"])
    Traceback (most recent call last):
    ValueError: norm must be one of layernorm, rmsnorm, got 'layer_norm'; did you mean 'layernorm'?
    """
    options = list(valid)
    for option in options:
        # True is refused where 1 is valid. Comparing an array gives neither true nor false.
        with suppress(TypeError, ValueError, RuntimeError):
            if value == option and _is_bool(value) == _is_bool(option):
                return option
    near = {str(option).lower(): option for option in reversed(options)}
    hint = "".join(
        f"; did you mean {near[each]!r}?"
        for each in get_close_matches(str(value).lower(), near, n=1)
    )
    raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}{hint}")


def validated_model(name: str, value: T) -> T:
    """`value` if it has the three lists of an `accounting.models.Model`.

    >>> validated_model("model", 5)
    Traceback (most recent call last):
    TypeError: model must have linear_maps, attentions and other_parameters, got 5 of type int
    """
    lists = ("linear_maps", "attentions", "other_parameters")
    if not all(
        hasattr(type(value), each) or hasattr(value, each) for each in lists
    ):  # computes no property
        raise TypeError(f"{name} must have {', '.join(lists[:2])} and {lists[2]}, {_got(value)}")
    return value


def checked(
    *integers: str, flags: Iterable[str] = (), **checks: Check
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that replaces arguments by their checked values.

    None passes where it is the default. `integers` and `flags` name arguments for `validated_int`
    and `validated_bool`; others have their check by name.

    >>> @checked("height", width=at_least_one)
    ... def area(width, height):
    ...     return width * height
    >>> area(3.0, height="5")
    Traceback (most recent call last):
    TypeError: height must be an integer, got '5' of type str
    """

    by_name: dict[str, Check] = dict.fromkeys(integers, validated_int)
    by_name |= dict.fromkeys(flags, validated_bool) | checks

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters
        positional = [
            name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        optional = {name for name, each in parameters.items() if each.default is None}

        def value_of(name: str, value: object) -> Any:
            is_default = value is None and name in optional
            return value if is_default or name not in by_name else by_name[name](name, value)

        @wraps(function)
        def call(*args: Any, **options: Any) -> T:
            first = (*map(value_of, positional, args), *args[len(positional) :])
            return function(
                *first, **{name: value_of(name, value) for name, value in options.items()}
            )

        return cast("Callable[P, T]", call)

    return decorated


def _got(value: object) -> str:
    """The value's text, cut after 300 characters, and its type."""
    text = repr(value)
    return f"got {text if len(text) <= 300 else f'{text[:300]} ...'} of type {type(value).__name__}"


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
