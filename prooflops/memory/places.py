"""The place of an operation: the operator, the module that ran it and the line of code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from prooflops.trace import TORCH, newest_node, running_node

_OWN = str(Path(__file__).parent)
_TRACE = str(Path(__file__).parent.with_name("trace.py"))
_STEP = str(Path(__file__).with_name("training.py"))
_LAYERS = str(Path(TORCH) / "nn" / "modules")
_OPTIMIZERS = str(Path(TORCH) / "optim")
_ENGINE = "_engine_run_backward"


class Line(NamedTuple):
    """A line of code, cheap to note and to compare."""

    code: CodeType
    number: int

    def __str__(self) -> str:
        path = Path(self.code.co_filename)
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.number} in {self.code.co_name}"


class Place(NamedTuple):
    """A module by its `id`, and a line; None where there is none."""

    module: int | None = None
    line: Line | None = None


NOWHERE = Place()


class Places:
    """Notes where the forward pass ran, so that the backward pass of an operation has its place."""

    def __init__(self) -> None:
        self._of_node: dict[int, Place] = {}

    def current(self) -> Place:
        """The place of the operation that is being dispatched."""
        place = _place_of(sys._getframe(1))
        node = running_node()
        if place.line is None and node is not None:
            return self._of_node.get(node, NOWHERE)
        self._of_node[newest_node()] = place
        return place


def _place_of(frame: FrameType | None) -> Place:
    """The innermost module and the user's line, else torch's; nowhere if autograd calls."""
    module: int | None = None
    in_torch: Line | None = None
    while frame is not None:
        code = frame.f_code
        path = code.co_filename
        if code.co_name == _ENGINE:
            return NOWHERE
        if path == _STEP:
            break
        if module is None and code.co_name == "_call_impl" and "self" in code.co_varnames:
            module = id(frame.f_locals["self"])
        if in_torch is None and path.startswith((_LAYERS, _OPTIMIZERS)):
            in_torch = Line(code, frame.f_lineno)
        if not path.startswith((TORCH, _OWN, _TRACE)):
            return Place(module, Line(code, frame.f_lineno))
        frame = frame.f_back
    return Place(module, in_torch)
