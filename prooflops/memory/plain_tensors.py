"""In-place writes that torch makes for plain tensors, but not for their fake subclass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from prooflops.memory.ledger import Ledger
from prooflops.trace import running_node

_aten = torch.ops.aten
# Autograd adds and scatters in place to a gradient that nothing else refers to.
IN_PLACE_IN_BACKWARD = frozenset({"add", "index_add", "index_put", "put", "scatter", "scatter_add"})
# The backward formula of this loss writes in place, throughout its own storages.
IN_PLACE_IN_NODE = {"BinaryCrossEntropyWithLogitsBackward0": frozenset({"sub", "mul"})}
# Files whose frames lie between an operation and the code that called it.
_BETWEEN = (
    __file__,
    "memory/tracker.py",
    "prooflops/trace.py",
    "_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/_ops.py",
)


class PlainTensors:
    """Finds the operations that would write in place if their tensors were plain."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs_linear = False
        self._node: int | None = None
        self._storages_before_node = 0

    @contextmanager
    def linear_layers_noted(self) -> Iterator[None]:
        """Notes when a linear layer runs, which adds its bias in place to its product."""
        linear = _aten.linear.default

        def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
            self._runs_linear = True
            try:
                return linear.decompose(x, weight, bias)
            finally:
                self._runs_linear = False

        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("linear", noted, f"Autograd{self._ledger.device.upper()}")
            yield

    def operand_written(self, func: Any, args: Any, in_backward: bool) -> int | None:
        """The storage that this operation writes to, if nothing refers to it any more."""
        # A view keeps its base, so its storage has another reference.
        if func._opname not in IN_PLACE_IN_BACKWARD or args[0]._is_view():
            return None
        if self._runs_linear or (in_backward and _called_by_autograd()):
            return self._ledger.number_of(args[0])
        return None

    def writes_its_operand(self, func: Any, args: Any) -> bool:
        """True if a backward formula writes to an operand that it allocated itself."""
        node = torch._C._current_autograd_node()
        if node is None:
            return False
        if running_node() != self._node:
            self._node = running_node()
            self._storages_before_node = len(self._ledger.storages)
        if func._opname not in IN_PLACE_IN_NODE.get(node.name(), ()):
            return False
        return (self._ledger.number_of(args[0]) or 0) >= self._storages_before_node


def _called_by_autograd() -> bool:
    """True if autograd's engine or a derivative formula in C++ made this call, not Python code."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_engine_run_backward"
