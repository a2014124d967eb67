"""One training step by phase, module and operator: FLOPs, seconds and kept bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from prooflops import timing
from prooflops.counted.counter import Count, uncompiled
from prooflops.model.alike import kinds_of_parameters
from prooflops.model.flop_difference import ExplainedFlops, ProductsOfParameters
from prooflops.model.modules import OUTSIDE, RunningModules
from prooflops.model.user_model import Instance
from prooflops.trace import (
    BACKWARD,
    FORWARD,
    Operation,
    StorageNotes,
    Trace,
    newest_node,
    running_node,
)


@dataclass(frozen=True)
class ModuleRow:
    """A module, its submodules included.

    `name` is as in named_modules, empty for the whole; a shared module has a row for each name.
    `output` and `dtype` are those of its first call. `kept_bytes` are those of the tensors made in
    it that outlive the forward pass, as the backward pass needs them, each storage once. `used_in`
    are the modules in which its weights are used, where that is not known to be a product of its
    own.
    """

    name: str
    kind: str
    depth: int
    calls: int
    output: str
    dtype: str
    parameters: int
    trained: int
    forward_flops: int
    backward_flops: int
    used_in: tuple[str, ...]
    kept_bytes: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class OperatorRow:
    """All calls of an operator in one phase."""

    name: str
    phase: str
    calls: int
    seconds: float
    flops: int


@dataclass(frozen=True)
class Breakdown:
    """A step in parts, each call timed where it was run.

    Modules are in the order of the tree, behind the row of all outside it; operators the slowest
    first. For a compiled model, both are those of the uncompiled code.
    """

    modules: tuple[ModuleRow, ...]
    operators: tuple[OperatorRow, ...]

    @property
    def whole(self) -> ModuleRow:
        return next(row for row in self.modules if not row.name)

    @property
    def is_timed(self) -> bool:
        return any(each.seconds for each in self.operators)


@dataclass
class Sums:
    """Calls of operators in one phase."""

    calls: int = 0
    flops: int = 0
    seconds: float = 0.0

    def add(self, other: Sums) -> None:
        self.calls += other.calls
        self.flops += other.flops
        self.seconds += other.seconds


# Passes the operations within a block to a view.
Traced = Callable[[Callable[[Operation], object]], AbstractContextManager[object]]


class StepTrace:
    """A traced training step: the sums of its operations by module, phase and operator.

    `update` traces its last phase. A gradient belongs to the module whose operation it is the
    gradient of. `kept` are the bytes that each module made and that outlive the forward pass.
    Parameters, inputs and targets were there before, as were the `captured` tensors, of which the
    forward pass makes copies. `mark` is told the name of each phase that ends.
    """

    def __init__(
        self,
        instance: Instance,
        clock: Callable[[], Any] = lambda: 0.0,
        mark: Callable[[str], object] = lambda _: None,
        captured: Sequence[Tensor] = (),
        traced: Traced | None = None,
    ) -> None:
        self.sums: defaultdict[tuple[str, str, str], Sums] = defaultdict(Sums)
        self.kept: Counter[str] = Counter()
        self.modules = RunningModules(instance.module)
        self._instance = instance
        self._traced = traced or partial(Trace, clock=clock)
        self._products = ProductsOfParameters(instance)
        self._passes, self._update = Count(), Count()
        self._operators = 0
        self.used_in: defaultdict[str, set[str]] = defaultdict(set)
        self._module_of_node: dict[int, str] = {}
        self._module_of_product: dict[int, str] = {}
        self._makers = StorageNotes[str]()
        instance.optimizer.zero_grad(set_to_none=True)
        with ExitStack() as stack:
            stack.enter_context(uncompiled())
            stack.enter_context(self.modules.watched())
            stack.enter_context(self._traced(self._add_pass))
            loss = instance.forward()
            mark("forward")
            self._note_kept(captured)
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            mark("backward")

    def update(self) -> None:
        """Traces the update of the parameters, whose gradients are there."""
        optimizer = self._instance.optimizer
        kinds = kinds_of_parameters(optimizer)
        for times in map(len, kinds.each()) if kinds else (1,):
            with self._traced(partial(self._add_update, times=times)):
                optimizer.step()

    @property
    def flops(self) -> ExplainedFlops:
        """The FLOPs of the step, once all of it is traced."""
        return self._products.explained(self._passes.work, self._update.work, self._operators)

    def _note_kept(self, captured: Sequence[Tensor]) -> None:
        there_before = {each.untyped_storage()._cdata for each in captured}
        for storage, name in self._makers.alive():
            if storage._cdata not in there_before:
                self.kept[name] += storage.nbytes()

    def _add_pass(self, operation: Operation) -> None:
        flops = self._passes.add(operation)
        read = self._products.add(operation, flops)
        module = self._module_of(operation, flops, read)
        if not getattr(operation.operator, "is_view", False):
            for owner in self.modules.owners_other_than(module, read):
                self.used_in[owner].add(module)
        name = "forward" if operation.phase == FORWARD else "backward"
        self._add(operation, module, name, flops)
        if operation.phase == FORWARD:
            self._note_makers(operation)

    def _note_makers(self, operation: Operation) -> None:
        given = {each.untyped_storage()._cdata for each in operation.given}
        for each in operation.made:
            is_given = each.untyped_storage()._cdata in given
            if not is_given and self._makers.of(each) is None:
                self._makers.put(each, self.modules.name)

    def _add_update(self, operation: Operation, times: int) -> None:
        if operation.operator.namespace == "profiler":
            return
        for _ in range(times):
            self._add(operation, OUTSIDE, "update", self._update.add(operation))

    def _add(self, operation: Operation, module: str, name: str, flops: int) -> None:
        operator = operation.operator
        self.sums[module, name, _packet(operator)].add(Sums(1, flops, operation.seconds))
        self._operators += _runs_a_kernel(operator)

    def _module_of(self, operation: Operation, flops: int, read: list[nn.Parameter]) -> str:
        node = running_node()
        if node is not None and operation.phase == BACKWARD:
            found = self._module_of_product.get(node)
            return self._module_of_node.get(node, OUTSIDE) if found is None else found
        name, known = self.modules.name, self._module_of_node
        if flops:
            name, known = self.modules.owner_of(read), self._module_of_product
        # An operation without a node finds an earlier one's, whose module is known already.
        known.setdefault(newest_node(), name)
        return name


@cache
def _packet(operator: Any) -> str:
    return str(getattr(operator, "_overloadpacket", operator))


@cache
def _runs_a_kernel(operator: Any) -> bool:
    """Views and empty tensors run none."""
    is_empty = getattr(operator, "_opname", "").startswith(("empty", "new_empty"))
    return not (is_empty or getattr(operator, "is_view", False))


def breakdown_of(instance: Instance, device: torch.device) -> tuple[Breakdown, ExplainedFlops]:
    """Traces two steps: an operator's faster time counts."""
    clock = timing.clock(device)
    first, second = StepTrace(instance, clock), StepTrace(instance, clock)
    # The gradients are those of the second one.
    for each in (first, second):
        each.update()
    for key, sums in first.sums.items():
        if key in second.sums:
            sums.seconds = min(sums.seconds, second.sums[key].seconds)
    return breakdown_of_trace(instance, first), first.flops


def breakdown_of_trace(instance: Instance, traced: StepTrace) -> Breakdown:
    return Breakdown(tuple(_module_rows(instance, traced)), _operator_rows(traced))


def _module_rows(instance: Instance, traced: StepTrace) -> Iterator[ModuleRow]:
    kept_within: Counter[str] = Counter()
    inclusive: defaultdict[tuple[str, str], Sums] = defaultdict(Sums)
    for (name, of_phase, _), sums in traced.sums.items():
        for above in _with_ancestors(name):
            inclusive[above, of_phase].add(sums)
    for name, size in traced.kept.items():
        kept_within.update(dict.fromkeys(_with_ancestors(name), size))
    parameters: defaultdict[str, dict[int, nn.Parameter]] = defaultdict(dict)
    for name, each in instance.module.named_parameters(remove_duplicate=False):
        for above in _with_ancestors(name):
            parameters[above][id(each)] = each
    parts = [(OUTSIDE, None), *instance.module.named_modules(remove_duplicate=False)]
    for name, part in parts:
        outputs = traced.modules.outputs[name]
        forward, backward = inclusive[name, "forward"], inclusive[name, "backward"]
        own = parameters[name].values()
        yield ModuleRow(
            name=name,
            kind=type(part).__name__ if part is not None else "",
            depth=len(list(_with_ancestors(name))) - 1,
            calls=len(outputs),
            output=outputs[0].shape if outputs else "",
            dtype=outputs[0].dtype if outputs else "",
            parameters=sum(each.numel() for each in own),
            trained=sum(each.numel() for each in own if each.requires_grad),
            forward_flops=forward.flops,
            backward_flops=backward.flops,
            used_in=() if forward.flops else tuple(sorted(traced.used_in[name])),
            kept_bytes=kept_within[name],
            forward_s=forward.seconds,
            backward_s=backward.seconds,
        )


def _with_ancestors(name: str) -> Iterator[str]:
    yield name
    while name and name != OUTSIDE:
        name = name.rpartition(".")[0]
        yield name


def _operator_rows(traced: StepTrace) -> tuple[OperatorRow, ...]:
    found: defaultdict[tuple[str, str], Sums] = defaultdict(Sums)
    for (_, of_phase, operator), sums in traced.sums.items():
        found[operator, of_phase].add(sums)
    rows = [
        OperatorRow(operator, of_phase, each.calls, each.seconds, each.flops)
        for (operator, of_phase), each in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))
