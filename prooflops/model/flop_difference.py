"""The reasons why a model's counted FLOPs differ from 2ND, 4ND and 6ND, each with its FLOPs.

Every product that the step dispatches belongs to the parameter it multiplies with, or to none
(attention, a similarity matrix). The rules give each parameter 2·D FLOPs forward and 4·D backward;
its products decide its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from accounting.models import RULES, rule_flops
from prooflops import counted, precision
from prooflops.model.first_layer import CONVOLUTIONS, LOOK_UPS, Batch, FirstLayers
from prooflops.model.user_model import Instance, format_name
from prooflops.trace import FORWARD, RECOMPUTED, Operation, StorageNotes, newest_node, running_node

LOOKED_UP = "embeddings, looked up and not multiplied"
ELEMENTWISE = "norms, biases and other elementwise parameters"
UNUSED = "parameters not used in this step"
CONVOLVED = "convolution weights, used at every position"
SHARED = "shared parameters, used several times"
PARTLY_USED = "weights that only some of the tokens use (experts, pooled heads, decoders)"
REUSED = "weights that each token uses more than once"
INPUT_GRADIENT = "input gradients that nothing needs (first trained layers)"
FROZEN = "frozen weights, whose gradients nothing needs"
FURTHER_GRADIENTS = "gradients beyond one per factor"
ACTIVATIONS = "attention and other products of two activations"
FUSED_RECOMPUTED = "recomputed inside fused attention kernels"
CHECKPOINTED = "recomputed by activation checkpointing"
COMPLEX = "complex weights, whose products are four real ones"
# The place of a bias among the tensors of a product, which adds it and multiplies nothing by it.
PLACE_OF_BIAS = {
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm", "_addmm_activation"), 0),
    **dict.fromkeys(("linear", "convolution", "_convolution"), 2),
}


@dataclass(frozen=True)
class Difference:
    """One reason for the difference, rule minus counted.

    It is negative for products that the rule leaves out.
    """

    name: str
    forward: int
    backward: int

    @property
    def step(self) -> int:
        return self.forward + self.backward


@dataclass(frozen=True)
class ExplainedFlops:
    """The counted FLOPs of one training step, and their difference from 2ND, 4ND and 6ND in parts.

    Where D, `batch`, is not known, neither are the rules, and there are no parts. No rule covers
    `update`, products in the optimizer's step. `recomputed` is the part of `backward` that the
    mathematics does not need. `by_dtype` are the executed products of forward and backward.
    `moved_bytes`, `elementwise` (part of no other figure) and `operators` (without views) are those
    of the whole step; `unknown` are calls of operators without a formula.
    """

    parameters: int
    batch: Batch
    forward: int
    backward: int
    update: int
    recomputed: int
    parts: tuple[Difference, ...]
    by_dtype: dict[str, int]
    moved_bytes: int
    elementwise: int
    operators: int
    unknown: dict[str, int]

    @property
    def executed(self) -> int:
        """FLOPs of forward and backward as they ran, for HFU."""
        return self.forward + self.backward

    @property
    def model(self) -> int:
        """FLOPs of forward and backward that the mathematics needs, for MFU."""
        return self.executed - self.recomputed

    def rule(self, phase: str) -> int | None:
        """2ND, 4ND or 6ND, None without D; phase: forward, backward, step."""
        tokens = self.batch.number
        return None if tokens is None else rule_flops(phase, self.parameters, tokens)

    def counted(self, phase: str) -> int:
        """FLOPs of the products that ran; phase: forward, backward, step."""
        return {"forward": self.forward, "backward": self.backward, "step": self.executed}[phase]

    def unexplained(self, phase: str) -> int:
        """Rule minus counted, less the parts of that: 0, or the explanation is wrong."""
        rule = self.rule(phase)
        if rule is None:
            return 0
        explained: int = sum(getattr(part, phase) for part in self.parts)
        return rule - self.counted(phase) - explained


_FactorsAndFlops = tuple[tuple[int, ...], int]
# The parameters that a tensor comes from: none of a buffer, None of an activation.
_Origin = frozenset[int] | None


@dataclass
class _ParameterUse:
    """The uses of one parameter in a step."""

    forward: int = 0
    backward: int = 0
    products: int = 0
    convolved: bool = False
    looked_up: bool = False
    elementwise: bool = False


class ProductsOfParameters:
    """Assigns every product of a traced step to the parameter that is one of its factors.

    A tensor is recognised by its storage as a parameter. A tensor computed from parameters and
    buffers alone (a cast, a transposed copy, a masked weight) is recognised, too. A gradient
    belongs to the product whose autograd node is running.
    """

    def __init__(self, instance: Instance) -> None:
        self.parameters = list(instance.parameters.values())
        self._first_layers = FirstLayers(instance)
        self.by_dtype: defaultdict[str, int] = defaultdict(int)
        self.checkpointed = self.fused_recomputed = 0
        self._uses = [_ParameterUse() for _ in self.parameters]
        self._without_parameter = {"forward": 0, "backward": 0}
        self._of_node: defaultdict[int | None, list[_FactorsAndFlops]] = defaultdict(list)
        # The parts of each storage, with the parameters that they come from.
        self._spans = StorageNotes[list[tuple[int, int, frozenset[int]]]]()
        for index, parameter in enumerate(self.parameters):
            self._add_origin(parameter, frozenset({index}))
        for buffer in instance.module.buffers():
            if buffer.layout is torch.strided:
                self._add_origin(buffer, frozenset())

    def explained(
        self,
        passes: counted.CountedWork,
        update: counted.CountedWork,
        operators: int,
    ) -> ExplainedFlops:
        """The FLOPs of the step, with the reasons of each difference."""
        batch = self._first_layers.batch
        unknown = Counter(passes.unknown) + Counter(update.unknown)
        return ExplainedFlops(
            parameters=sum(each.numel() for each in self.parameters),
            batch=batch,
            forward=passes.forward,
            backward=passes.backward,
            update=update.total,
            recomputed=passes.recomputed,
            parts=() if batch.number is None else self._parts(batch.number),
            by_dtype=dict(self.by_dtype),
            moved_bytes=passes.moved_bytes + update.moved_bytes,
            elementwise=passes.elementwise + update.elementwise,
            operators=operators,
            unknown=dict(sorted(unknown.items())),
        )

    def add(self, operation: Operation, flops: int) -> list[nn.Parameter]:
        """Notes an operation of either pass, with the FLOPs of its products.

        Returns the parameters that are its factors, or that it reads, in a forward pass.
        """
        operator = operation.operator
        name = getattr(operator, "_overloadpacket", operator).__name__.removesuffix("_")
        given, made = operation.given, operation.made
        if flops:
            self.by_dtype[_dtype_of(name, given)] += flops
        if operation.phase not in (FORWARD, RECOMPUTED):
            if flops:
                self._add_backward(given, made, flops)
            return []
        origins = [self._origin_of(each) for each in given]
        both = [*zip(given, origins, strict=True)]
        if (bias := PLACE_OF_BIAS.get(name)) is not None:
            del both[bias : bias + 1]
        factors = self._factors(both)
        if operation.phase == RECOMPUTED:
            self._add_recomputed(origins, factors, made, flops)
        else:
            weights = {min(origin): each for each, origin in both if origin}
            self._first_layers.add(operation, name, weights, flops)
            self._add_forward(name, origins, factors, made, flops)
        return [self.parameters[index] for index in factors]

    def _add_recomputed(
        self, origins: list[_Origin], factors: tuple[int, ...], made: list[Tensor], flops: int
    ) -> None:
        if not flops:
            self._track_derived(origins, made)
            return
        self.checkpointed += flops
        self._of_node[newest_node()].append((factors, flops))

    def _add_forward(
        self,
        name: str,
        origins: list[_Origin],
        factors: tuple[int, ...],
        made: list[Tensor],
        flops: int,
    ) -> None:
        # The parameters that any operand comes from.
        used = set[int]().union(*filter(None, origins))
        if flops:
            self._of_node[newest_node()].append((factors, flops))
            for index, share in self._shares(factors, flops):
                use = self._uses[index]
                use.forward += share
                use.products += 1
                use.convolved |= name in CONVOLUTIONS
            self._without_parameter["forward"] += 0 if factors else flops
            # A bias, or the scale of a weight, is applied elementwise.
            for index in used - {*factors}:
                self._uses[index].elementwise = True
            return
        # Idle experts make nothing.
        if self._track_derived(origins, made) or not any(out.numel() for out in made):
            return
        for index in used:
            self._uses[index].looked_up |= name in LOOK_UPS
            self._uses[index].elementwise |= name not in LOOK_UPS

    def _add_backward(self, tensors: list[Tensor], outputs: list[Tensor], flops: int) -> None:
        of_node = self._of_node.get(running_node(), [])
        both = [*zip(tensors, map(self._origin_of, tensors), strict=True)]
        factors = self._factors(both) or self._factors_of_gradient(of_node, outputs)
        for index, share in self._shares(factors, flops):
            self._uses[index].backward += share
        if not factors:
            # Two gradients for two factors; a fused kernel does more because it has not kept the
            # scores.
            needed = min(flops, 2 * sum(forward for _, forward in of_node)) if of_node else flops
            self._without_parameter["backward"] += needed
            self.fused_recomputed += flops - needed

    def _factors_of_gradient(
        self, of_node: list[_FactorsAndFlops], outputs: list[Tensor]
    ) -> tuple[int, ...]:
        """The factors of the product whose parameter has the shape of this gradient; else those of
        the first.
        """
        with_parameter = [factors for factors, _ in of_node if factors]
        for factors in with_parameter:
            if any(
                sorted(out.shape) == sorted(self.parameters[index].shape)
                for index in factors
                for out in outputs
            ):
                return factors
        return with_parameter[0] if with_parameter else ()

    def _factors(self, operands: list[tuple[Tensor, _Origin]]) -> tuple[int, ...]:
        """The parameters that are factors of a product: per operand the one of its size, else all;
        a vector only if there is no matrix.
        """
        found: list[int] = []
        for tensor, indices in operands:
            if not indices:
                continue
            origin = sorted(indices)
            sizes = [self.parameters[index].numel() for index in origin]
            is_one_of_its_size = sizes.count(tensor.numel()) == 1
            found += [origin[sizes.index(tensor.numel())]] if is_one_of_its_size else origin
        matrices = [index for index in found if self.parameters[index].dim() >= 2]
        return tuple(dict.fromkeys(matrices or found))

    def _shares(self, factors: tuple[int, ...], flops: int) -> Iterator[tuple[int, int]]:
        """The FLOPs of a product by its parameters, in proportion to their elements; nothing is
        lost to rounding.
        """
        elements = [self.parameters[index].numel() for index in factors]
        for place, index in enumerate(factors):
            share = flops * elements[place] // sum(elements[place:])
            yield index, share
            flops -= share

    def _add_origin(self, tensor: Tensor, indices: frozenset[int]) -> None:
        start = int(tensor.storage_offset()) * tensor.element_size()
        last = sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        end = start + (int(last) + 1) * tensor.element_size()
        spans = self._spans.of(tensor) or []
        self._spans.put(tensor, [*spans, (start, end, indices)])

    def _origin_of(self, tensor: Tensor) -> _Origin:
        """The parameters that a tensor is computed from; None for an activation.

        A buffer or an empty tensor has none.
        """
        if not tensor.numel():
            return frozenset()
        spans = self._spans.of(tensor)
        if spans is None:
            return None
        start = int(tensor.storage_offset()) * tensor.element_size()
        return next((indices for low, high, indices in spans if low <= start < high), None)

    def _track_derived(self, origins: list[_Origin], outputs: list[Tensor]) -> bool:
        """True if all inputs of an operator come from parameters and buffers; its results then have
        the same origin.
        """
        known = [each for each in origins if each is not None]
        if not any(known) or len(known) < len(origins):
            return False
        for out in outputs:
            if not self._origin_of(out):
                self._add_origin(out, frozenset().union(*known))
        return True

    def _parts(self, tokens: int) -> tuple[Difference, ...]:
        """Rule minus counted, by reason, the largest first; without zeros."""
        forward: defaultdict[str, int] = defaultdict(int)
        backward: defaultdict[str, int] = defaultdict(int)
        for parameter, use in zip(self.parameters, self._uses, strict=True):
            once = RULES["forward"] * tokens * parameter.numel()
            is_complex = parameter.is_complex() and use.forward
            reason = COMPLEX if is_complex else _reason(use, once)
            forward[reason] += once - use.forward
            backward[reason] += 2 * (once - use.forward)
            missing = 2 * use.forward - use.backward
            needless = INPUT_GRADIENT if parameter.requires_grad else FROZEN
            backward[needless if missing >= 0 else FURTHER_GRADIENTS] += missing
        forward[ACTIVATIONS] -= self._without_parameter["forward"]
        backward[ACTIVATIONS] -= self._without_parameter["backward"]
        backward[FUSED_RECOMPUTED] -= self.fused_recomputed
        backward[CHECKPOINTED] -= self.checkpointed
        parts = [Difference(name, forward[name], backward[name]) for name in forward | backward]
        unequal = [part for part in parts if part.forward or part.backward]
        return tuple(sorted(unequal, key=lambda part: (-abs(part.step), part.name)))


def _reason(use: _ParameterUse, once: int) -> str:
    """Why a parameter has not exactly one product with every token."""
    if not use.forward:
        return LOOKED_UP if use.looked_up else ELEMENTWISE if use.elementwise else UNUSED
    if use.convolved:
        return CONVOLVED
    if use.products > 1 and use.forward == use.products * once:
        return SHARED
    return PARTLY_USED if use.forward < once else REUSED


def _dtype_of(name: str, tensors: list[Tensor]) -> str:
    """The format in which a product's factors are multiplied."""
    first = tensors[0]
    if first.device.type == "cuda" and first.dtype == torch.float32:
        operation = "cudnn.conv" if name in CONVOLUTIONS else "cuda.matmul"
        return precision.format_of(operation)
    return format_name(first.dtype)
