"""What the public names of a package say they hold, and whether their annotations agree."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Longest first: a name ends in the first of these that fits. An amount is exact, a rate or a time is not.
TYPE_OF_UNIT = {
    "flop_per_s": "float",
    "bytes_per_s": "float",
    "tokens_per_s": "float",
    "per_s": "float",
    "flops": "int",
    "bytes": "int",
    "s": "float",
}
MISNOMERS = re.compile(
    r"(?<![A-Z_])[GMTP]?FLOPS(?![A-Z_])|FLOPs/s|(?i:flops_(?:per_s|rate)|flops?ps)\b|(?<![a-z])[gmtp]flops\b"
)


@dataclass(frozen=True)
class Quantity:
    """A public function, argument or field whose name ends in a unit."""

    where: str
    name: str
    annotation: str
    text: str = ""  # its docstring
    from_rate: bool = False  # computed from a rate, and no more exact than that

    @property
    def unit(self) -> str | None:
        return next((unit for unit in TYPE_OF_UNIT if self.name == unit or self.name.endswith(f"_{unit}")), None)


def violations(quantity: Quantity) -> list[str]:
    """Sentences about a quantity that mixes amount and rate, in its name, type or docstring."""
    said = [word.group() for text in (quantity.name, quantity.text) for word in MISNOMERS.finditer(text)]
    problems = [f"{quantity.where} says {word!r}" for word in said]
    if quantity.unit is not None and quantity.annotation:
        expected = TYPE_OF_UNIT[quantity.unit]
        held = set(re.findall(r"\b(?:int|float)\b", quantity.annotation))
        if held - {expected} and not (quantity.from_rate and held == {"float"}):
            problems.append(f"{quantity.where} is {quantity.annotation}, but a name in _{quantity.unit} is {expected}")
    return problems


def public_quantities(package: str) -> list[Quantity]:
    """Of every function and class of the package's modules: its own name, its arguments, its fields and properties."""
    root = importlib.import_module(package)
    found: list[Quantity] = []
    for info in pkgutil.iter_modules(root.__path__, f"{package}."):
        module = importlib.import_module(info.name)
        for name, member in vars(module).items():
            if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__:
                found += of_member(f"{info.name}.{name}", member)
    return found


def of_member(where: str, member: object) -> Iterator[Quantity]:
    if inspect.isclass(member):
        fields = dataclasses.fields(member) if dataclasses.is_dataclass(member) else []
        for field in fields:
            yield Quantity(f"{where}.{field.name}", field.name, str(field.type))
        for name, value in vars(member).items():
            function = value.fget if isinstance(value, property) else value
            if not name.startswith("_") and inspect.isfunction(function):
                yield from _of_function(f"{where}.{name}", function)
    elif inspect.isfunction(member):
        yield from _of_function(where, member)


def _of_function(where: str, function: Callable[..., object]) -> Iterator[Quantity]:
    signature = inspect.signature(function)
    returned = "" if signature.return_annotation is inspect.Signature.empty else str(signature.return_annotation)
    from_rate = any(name.endswith("_per_s") for name in signature.parameters)
    yield Quantity(where, function.__name__, returned, inspect.getdoc(function) or "", from_rate)
    for name, parameter in signature.parameters.items():
        annotation = "" if parameter.annotation is inspect.Parameter.empty else str(parameter.annotation)
        yield Quantity(f"{where}({name})", name, annotation)
