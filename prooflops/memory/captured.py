"""Real tensors that a model or its loss has from elsewhere than its inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from prooflops.memory.copies import Copies


class KnownCopies(TorchFunctionMode):
    """Gives torch's functions the copy of each tensor that was copied."""

    def __init__(self, copies: Copies) -> None:
        super().__init__()
        self._copies = copies

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Most calls have none, and a walk through all arguments is slow.
        if any(map(_may_be_real, (*args, *kwargs.values()))):
            args, kwargs = tree_map_only(Tensor, self._copy_of, (args, kwargs))
        return func(*args, **kwargs)

    def _copy_of(self, tensor: Tensor) -> Tensor:
        return self._copies.known(tensor)


class CapturedTensors(KnownCopies):
    """Gives torch's functions the fake copy of each real tensor, wherever the code has it from.

    A closure, a global, another network or an object of the batch may hold one. The copies are made
    before autograd sees a tensor, so its gradient is the copy's. `note` is told of each new copy.
    """

    def __init__(self, copies: Copies, note: Callable[[Tensor], object]) -> None:
        super().__init__(copies)
        self._note = note
        self._made: list[Tensor] = []

    def _copy_of(self, tensor: Tensor) -> Tensor:
        known = super()._copy_of(tensor)
        # The tensor within torch.func's wrapper was copied when it was wrapped.
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if isinstance(tensor, FakeTensor) or known is not tensor or is_wrapped:
            return known
        copied = self._copies.tensor(tensor, "a tensor that the model or the loss captures")
        self._made.append(copied)
        self._note(copied)
        return copied


def _may_be_real(argument: Any) -> bool:
    kind = type(argument)
    return kind is not FakeTensor and issubclass(kind, (Tensor, tuple, list, dict))
