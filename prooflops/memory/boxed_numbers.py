"""The Python numbers that autograd keeps on the CPU, each as a tensor of its own."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from prooflops.memory.ledger import Ledger
from prooflops.trace import Operation, running_node

_aten = torch.ops.aten
# These save their second factor for the gradient of the first.
SAVE_THEIR_NUMBER = frozenset(
    {
        _aten.mul.Tensor,
        _aten.mul_.Tensor,
        _aten.div.Tensor,
        _aten.div_.Tensor,
        _aten.div.Tensor_mode,
    }
)
BOXED_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


class BoxedNumbers:
    """Enters the number that a product saves, which no dispatch mode sees.

    Autograd creates the node that keeps it after the operation has been dispatched, so it is
    entered when the next operation or the end of a phase is reached.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._product: weakref.ref[Tensor] | None = None
        self._size = 0

    def note(self, operation: Operation) -> None:
        """Notes the number of a product that has run."""
        if operation.operator not in SAVE_THEIR_NUMBER or not torch.is_grad_enabled():
            return
        size = BOXED_BYTES.get(type(operation.args[1]))
        if size is not None:
            self._product = weakref.ref(operation.out)
            self._size = size

    def enter(self) -> None:
        """Enters the noted number until its node has run, or is freed."""
        product = None if self._product is None else self._product()
        self._product = None
        if product is None or product.grad_fn is None:
            return
        if product.grad_fn._sequence_nr() == running_node():
            # It runs already, and frees its number when it has.
            return

        def hook(_: Any) -> None:
            end()

        end = weakref.finalize(hook, self._ledger.free, self._ledger.allocate(self._size))
        product.grad_fn.register_prehook(hook)
