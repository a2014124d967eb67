"""Parameters that an optimizer updates alike: one of them stands for all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

# These step all parameters in one call, whatever their number.
AT_ONCE = ("foreach", "fused", "differentiable")


@dataclass(frozen=True)
class Kinds:
    """The parameters of an optimizer that it updates alike: of equal shapes and strides.

    Those of torch.optim update one fake parameter on a CPU after the other, each by itself. Any
    other optimizer updates all in each step, and then has no kinds.
    """

    optimizer: torch.optim.Optimizer

    def each(self) -> Iterator[list[Tensor]]:
        """Gives the optimizer the first parameter of each kind in turn; yields the whole kind."""
        for group, parameters in self._groups():
            for alike in _alike(parameters).values():
                group["params"] = alike[:1]
                yield alike
            group["params"] = []

    def neighbours(self) -> Iterator[None]:
        """Gives the optimizer the first parameters of each two consecutive kinds.

        The results of one update are still alive when the next one begins.
        """
        for group, parameters in self._groups():
            kinds = _alike(parameters)
            firsts = [kinds[_layout(each)][0] for each in parameters if each.grad is not None]
            pairs = dict.fromkeys(itertools.pairwise(firsts))
            chosen_ones: list[Sequence[Tensor]] = [*pairs] or [firsts]
            for chosen in chosen_ones:
                group["params"] = [*chosen]
                yield
            group["params"] = []

    def _groups(self) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
        """Each group and its parameters, while the optimizer has none; then it has all again."""
        every = [(group, group["params"]) for group in self.optimizer.param_groups]
        try:
            for group, _ in every:
                group["params"] = []
            yield from every
        finally:
            for group, parameters in every:
                group["params"] = parameters


def kinds_of_parameters(optimizer: torch.optim.Optimizer) -> Kinds | None:
    """The kinds of its parameters, if it updates them one by one."""
    return Kinds(optimizer) if _steps_each_by_itself(optimizer) else None


def _steps_each_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind is torch.optim.LBFGS:
        return False
    return all(
        isinstance(each, FakeTensor) and each.device.type == "cpu"
        for group in optimizer.param_groups
        for each in group["params"]
    ) and not any(group.get(name) for group in optimizer.param_groups for name in AT_ONCE)


def _alike(parameters: list[Tensor]) -> dict[Any, list[Tensor]]:
    found: defaultdict[Any, list[Tensor]] = defaultdict(list)
    for each in parameters:
        if each.grad is not None:
            found[_layout(each)].append(each)
    return found


def _layout(parameter: Tensor) -> tuple[Any, ...]:
    both = (parameter, parameter.grad)
    return tuple((each.dtype, each.shape, each.stride()) for each in both if each is not None)
