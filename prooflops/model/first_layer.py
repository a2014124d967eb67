"""D of 2ND and 6ND: tokens or examples, by what the first layer does with the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from prooflops.counted.counter import COMPLEX_FACTOR
from prooflops.model.user_model import Instance, tensors_of
from prooflops.trace import Operation, StorageNotes

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


@dataclass(frozen=True)
class Meeting:
    """A layer's first use of an input: how often it uses its weights, and the unit it says."""

    number: int
    unit: str
    weight: str
    is_look_up: bool


class FirstLayers:
    """Follows the inputs through a traced forward pass, to the first layer that each reaches.

    A layer is a look-up in a parameter, or a product with one. Norms and sums are none.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._weights = list(instance.parameters)
        # The tensors of an input are met one by one, or at once.
        self._inputs = [
            (name, tensor)
            for name, given in instance.inputs.items()
            for tensor in tensors_of(given)
        ]
        self._met: dict[int, Meeting] = {}
        self._reached = StorageNotes[frozenset[int]]()
        for number, (_, tensor) in enumerate(self._inputs):
            self._mark([tensor], frozenset({number}))

    @property
    def batch(self) -> Batch:
        """D as the factory states it, else by the first layer of the first input that has one.

        Integers that are not looked up, such as a mask or a list of edges, come last.
        """
        stated = self._instance.stated_tokens
        if stated is not None:
            return Batch(*stated, f"as stated; {_described(*self._inputs[0])}")
        if not self._met:
            how = "state it by examples= or tokens=, or as the factory's D"
            return Batch(None, "", f"no layer takes {_described(*self._inputs[0])}; {how}")
        chosen = min(sorted(self._met), key=self._is_index)
        name, tensor = self._inputs[chosen]
        first = self._met[chosen]
        alike = {
            id(meeting): meeting.number
            for number, meeting in self._met.items()
            if self._inputs[number][0] == name and meeting.weight == first.weight
        }
        unit = first.unit or _unit_of_rows(first.number, tensor)
        source = f"{_described(name, tensor)}, first used by {first.weight}"
        return Batch(sum(alike.values()), unit, source)

    def _is_index(self, number: int) -> bool:
        tensor = self._inputs[number][1]
        return not (tensor.is_floating_point() or self._met[number].is_look_up)

    def add(
        self, operation: Operation, name: str, weights: Mapping[int, Tensor], flops: int
    ) -> None:
        """Notes an operation of the forward pass.

        `weights` are its tensors that are parameters, or computed from them, by the number of the
        parameter.
        """
        given, made = operation.given, operation.made
        reached = frozenset[int]().union(*map(self._inputs_of, given))
        self._mark(made, reached)
        first_met = reached - self._met.keys()
        if not (weights and first_met and (flops or name in LOOK_UPS)):
            return
        largest = max(weights, key=lambda index: weights[index].dim())
        weight, unit = self._weights[largest], EXAMPLES
        if name in CONVOLUTIONS:
            number = len(given[0])
        elif name in BAGS:
            number = len(made[0])
        elif name in LOOK_UPS:
            indices = next(each for each in given if self._inputs_of(each))
            number, unit = indices.numel(), TOKENS if indices.dim() > 1 else EXAMPLES
        else:
            matrices = [each for each in weights.values() if each.dim() > 1] or weights.values()
            real_products = COMPLEX_FACTOR if made[0].is_complex() else 1
            number = flops // (2 * real_products * sum(map(_distinct_elements, matrices)))
            unit = self._unit_of(weight)
        meeting = Meeting(number, unit, weight, name in LOOK_UPS)
        self._met.update(dict.fromkeys(first_met, meeting))

    def _unit_of(self, weight: str) -> str:
        """The unit that a layer with products says; empty if it maps rows of any kind."""
        owner = self._instance.module.get_submodule(weight.rpartition(".")[0])
        if isinstance(owner, OF_SEQUENCES):
            return TOKENS
        return EXAMPLES if isinstance(owner, nn.RNNCellBase) else ""

    def _inputs_of(self, tensor: Tensor) -> frozenset[int]:
        return self._reached.of(tensor) or frozenset()

    def _mark(self, tensors: Iterable[Tensor], inputs: frozenset[int]) -> None:
        if not inputs:
            return
        for each in tensors:
            plain = each.values() if each.layout == torch.jagged else each
            self._reached.put(plain, self._inputs_of(plain) | inputs)


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
