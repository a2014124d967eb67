"""Imports the factory that `--model module:factory` or `--model path/to/file.py:factory` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import accounting
import prooflops
from accounting.checks import validated_choice

FORMS = "module:factory, such as my_package.my_module:factory, or path/to/file.py:factory"
RETURNS = (
    "(module, inputs) or (module, inputs, optimizer, loss, D), "
    "of which the last three may be left out or None"
)
DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
NOT_THE_USERS = tuple(
    str(Path(str(package.__file__)).parent) + os.sep for package in (torch, accounting, prooflops)
)


class ModelError(ValueError):
    """A factory that cannot be imported or called, or returns no model.

    The message lists the valid forms.
    """


@contextmanager
def naming(spec: str, option: str = "--model") -> Iterator[None]:
    """Turns a ValueError into a ModelError whose message begins with the option or the call."""
    try:
        yield
    except ValueError as error:
        raise ModelError(f"{option} {spec}: {error}") from error


@contextmanager
def user_code(action: str) -> Iterator[None]:
    """Turns any error of the user's code into a ModelError that names the action and the line.

    An exit is such an error, too.
    """
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{action} raised {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    """An exception in one line, with the last line of the user's code that it passed."""
    lines = str(error).strip().splitlines() or [""]
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    every = traceback.extract_tb(first.__traceback__)
    frames = [frame for frame in every if not frame.filename.startswith(NOT_THE_USERS)]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0][:300]}{place}"


def import_factory(spec: str, folder: Path) -> Callable[[], Any]:
    """The function that `spec` names; modules are searched in `folder` first, as by `python -m`."""
    with naming(spec):
        if not re.fullmatch(rf"(.+\.py|{DOTTED}):{DOTTED}", spec):
            raise ModelError(f"must be {FORMS}")
        place, _, path = spec.rpartition(":")
        with user_code(f"importing {place}"):
            found: Any = _imported(place, folder)
        for name in path.split("."):
            if not hasattr(found, name):
                validated_choice("the factory", name, _own_functions(found))
            found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _own_functions(holder: Any) -> list[str]:
    """The public functions and classes that a module or class defines, not those it imports."""
    home = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
    return [
        name
        for name, value in vars(holder).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == home
    ]


def _imported(place: str, folder: Path) -> ModuleType:
    """A module, or that in a file, whose own folder is then searched first."""
    if not place.endswith(".py"):
        _search_first(folder)
        return importlib.import_module(place)
    file = folder / place
    _search_first(file.parent)
    found = importlib.util.spec_from_file_location(f"_model_file_{file.stem}", file)
    assert found
    assert found.loader
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
