"""D of 2ND and 6ND: tokens or examples, by what the first layer does with the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from prooflops.model.user_model import Instance, tensors_of
from prooflops.trace import Operation, tensors_in

CONVOLUTIONS = frozenset({"convolution", "_convolution", "convolution_backward"})
BAGS = frozenset({"embedding_bag", "_embedding_bag"})
LOOK_UPS = BAGS | {"embedding", "index", "index_select", "gather"}
TOKENS, EXAMPLES, ROWS = "tokens", "examples", "rows"
# Their weights meet each step of each sequence, with or without a batch.
OF_SEQUENCES = (nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class Batch:
    """D, None where it is not known, its unit, and how it is known."""

    number: int | None
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.size} ({self.source})"

    @property
    def size(self) -> str:
        if self.number is None:
            return "not known"
        return f"{self.number:,} {self.unit.removesuffix('s') if self.number == 1 else self.unit}"


class Leaf(NamedTuple):
    """A tensor of an input: the input's name, and the place in it."""

    name: str
    place: int


@dataclass(frozen=True)
class Meeting:
    """A layer's first use of an input: how often it uses its weights, and the unit if it says it.

    `call` is the same for all tensors that it meets at once.
    """

    number: int
    unit: str
    weight: str
    is_look_up: bool
    call: int


class FirstLayers:
    """Follows the inputs through a traced forward pass, to the first layer that each reaches.

    A layer is a look-up in a parameter, or a product with one. Norms and sums are none.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._names = list(instance.parameters)
        self._reached: WeakKeyDictionary[Any, frozenset[Leaf]] = WeakKeyDictionary()
        self._met: dict[Leaf, Meeting] = {}
        self._calls = 0
        self._tensors = {
            Leaf(name, place): tensor
            for name, given in instance.inputs.items()
            for place, tensor in enumerate(tensors_of(given))
        }
        for leaf, tensor in self._tensors.items():
            self._mark([tensor], frozenset({leaf}))

    @property
    def batch(self) -> Batch:
        """D as the factory states it, else by the first layer of the first input that has one.

        Integers that are not looked up, such as a mask or a list of edges, come last.
        """
        name, tensor = self._instance.main_input
        stated = self._instance.stated_tokens
        if stated is not None:
            return Batch(*stated, f"as stated; {_described(name, tensor)}")
        met = [leaf for leaf in self._tensors if leaf in self._met]
        if not met:
            how = "state it by examples= or tokens=, or as the factory's D"
            return Batch(None, "", f"no layer takes {_described(name, tensor)}; {how}")
        leaf = min(met, key=self._is_index)
        first, tensor = self._met[leaf], self._tensors[leaf]
        # The tensors of a list may come one by one.
        calls = {first.call: first.number}
        for other in met:
            meeting = self._met[other]
            if other.name == leaf.name and meeting.weight == first.weight:
                calls[meeting.call] = meeting.number
        number = sum(calls.values())
        unit = first.unit or _unit_of_rows(first.number, tensor)
        return Batch(number, unit, f"{_described(leaf.name, tensor)}, first met by {first.weight}")

    def _is_index(self, leaf: Leaf) -> bool:
        return not (self._tensors[leaf].is_floating_point() or self._met[leaf].is_look_up)

    def add(
        self, operation: Operation, name: str, weights: Mapping[int, Tensor], flops: int
    ) -> None:
        """Notes an operation of the forward pass. `weights` are its tensors that are parameters, or
        computed from them, by the number of the parameter.
        """
        given = tensors_in((operation.args, operation.kwargs))
        reached = frozenset[Leaf]().union(*map(self._leaves_of, given))
        if not reached:
            return
        self._mark(tensors_in(operation.out), reached)
        first_met = reached - self._met.keys()
        if weights and first_met and (flops or name in LOOK_UPS):
            self._calls += 1
            meeting = self._meeting(operation, name, given, weights, flops)
            self._met.update(dict.fromkeys(first_met, meeting))

    def _meeting(
        self,
        operation: Operation,
        name: str,
        given: Sequence[Tensor],
        weights: Mapping[int, Tensor],
        flops: int,
    ) -> Meeting:
        largest = max(weights, key=lambda index: weights[index].dim())
        weight, call = self._names[largest], self._calls
        if name in CONVOLUTIONS:
            return Meeting(len(given[0]), EXAMPLES, weight, False, call)
        if name in BAGS:
            bags = tensors_in(operation.out)[0]
            return Meeting(len(bags), EXAMPLES, weight, True, call)
        if name in LOOK_UPS:
            indices = next(each for each in given if self._leaves_of(each))
            unit = TOKENS if indices.dim() > 1 else EXAMPLES
            return Meeting(indices.numel(), unit, weight, True, call)
        matrices = [each for each in weights.values() if each.dim() > 1] or [*weights.values()]
        number = flops // (2 * sum(map(_distinct_elements, matrices)))
        owner = self._instance.module.get_submodule(weight.rpartition(".")[0])
        unit = TOKENS if isinstance(owner, OF_SEQUENCES) else ""
        if isinstance(owner, nn.RNNCellBase):
            unit = EXAMPLES
        return Meeting(number, unit, weight, False, call)

    def _leaves_of(self, tensor: Tensor) -> frozenset[Leaf]:
        return self._reached.get(tensor.untyped_storage(), frozenset())

    def _mark(self, tensors: Iterable[Tensor], leaves: frozenset[Leaf]) -> None:
        for each in tensors:
            plain = each.values() if each.layout == torch.jagged else each
            storage = plain.untyped_storage()
            self._reached[storage] = self._reached.get(storage, frozenset()) | leaves


def _unit_of_rows(number: int, tensor: Tensor) -> str:
    """The unit of the rows that a product maps: several of an example are its tokens."""
    examples = len(tensor) if tensor.dim() else 1
    if number in (1, examples):
        return EXAMPLES
    return ROWS if number % examples else TOKENS


def _distinct_elements(weight: Tensor) -> int:
    """Elements of a weight, each once where it is expanded."""
    pairs = zip(weight.shape, weight.stride(), strict=True)
    return prod(size for size, stride in pairs if stride)


def _described(name: str, tensor: Tensor) -> str:
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
