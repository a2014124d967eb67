"""The factory that `--model module:factory` or `--model path/to/file.py:factory` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

import accounting
import prooflops
from accounting.checks import validated_choice

FORMS = "module:factory, such as my_package.my_module:factory, or path/to/file.py:factory"
RETURNS = "(module, inputs) or (module, inputs, optimizer, loss, D), of which the last three may be left out or None"
DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
NOT_THE_USERS = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (torch, accounting, prooflops))


class ModelError(ValueError):
    """A factory that cannot be imported or called, or returns no model; the message says what is valid."""


def import_factory(spec: str, folder: Path) -> Callable[[], Any]:
    """What `module:factory` or `path/to/file.py:factory` names; `folder` is searched first, as by `python -m`."""
    place, _, path = spec.rpartition(":")
    is_file = place.endswith(".py")
    if not re.fullmatch(DOTTED, path) or not (is_file or re.fullmatch(DOTTED, place)):
        raise ModelError(f"--model {spec}: must be {FORMS}")
    found: Any = _imported_file(spec, folder / place) if is_file else _imported_module(spec, place, folder)
    module_name = found.__name__
    for name in path.split("."):
        if not hasattr(found, name):
            own = {each: getattr(found, each) for each in vars(found) if not each.startswith("_")}
            valid = [each for each, value in own.items() if callable(value) and _is_defined_in(value, module_name)]
            try:
                validated_choice(f"--model {spec}: the factory", name, valid)
            except ValueError as error:
                raise ModelError(str(error)) from error
        found = getattr(found, name)
    if not callable(found):
        raise ModelError(f"--model {spec}: the factory must be callable, got {found!r} of type {type(found).__name__}")
    if isinstance(found, nn.Module):
        kind = type(found).__name__
        raise ModelError(f"--model {spec}: got a {kind} itself; name a function that returns {RETURNS}")
    return found  # type: ignore[no-any-return]


def _imported_module(spec: str, module_name: str, folder: Path) -> ModuleType:
    _search_first(folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ModelError(f"--model {spec}: importing {module_name} raised {error_text(error)}") from error
        parent, _, _ = error.name.rpartition(".")
        places = list(sys.modules[parent].__path__) if parent in sys.modules else [str(folder)]
        there = ", ".join(sorted(each.name for each in pkgutil.iter_modules(places))) or "no module"
        raise ModelError(f"--model {spec}: no module named {error.name}; {', '.join(places)} has {there}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"--model {spec}: importing {module_name} raised {error_text(error)}") from error


def _imported_file(spec: str, file: Path) -> ModuleType:
    """The module in a file, whose own folder is searched first, as when Python runs it."""
    if not file.is_file():
        there = ", ".join(sorted(each.name for each in file.parent.glob("*.py"))) or "no Python file"
        why = f"{file.parent} has {there}" if file.parent.is_dir() else f"there is no folder {file.parent}"
        raise ModelError(f"--model {spec}: no such file {file}; {why}; must be {FORMS}")
    _search_first(file.parent)
    found = importlib.util.spec_from_file_location(f"_model_file_{file.stem}", file)
    assert found
    assert found.loader
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelError(f"--model {spec}: importing {file} raised {error_text(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_defined_in(value: object, module_name: str) -> bool:
    """Whether something is defined in the module, not imported into it."""
    return getattr(value, "__module__", module_name) == module_name


def error_text(error: BaseException) -> str:
    """An exception in one line: its type, its message, and the last line of the user's code that it passed."""
    lines = str(error).strip().splitlines() or [""]
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    every = traceback.extract_tb(first.__traceback__)
    frames = [frame for frame in every if not frame.filename.startswith(NOT_THE_USERS)] or every
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0][:300]}{place}"
