"""The parts of a step of a user's model by phase, by module and by operator, and its FLOPs."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prooflops import counted, timing
from prooflops.counted.counter import uncompiled
from prooflops.counted.result import ELEMENTWISE
from prooflops.counted.rules import rule_of
from prooflops.model.flop_difference import ExplainedFlops, ProductsOfParameters
from prooflops.model.tracer import OUTSIDE, PHASES, Key, Tracer
from prooflops.model.user_model import Instance

# Spent on whole steps, timed by phase.
SECONDS = 1.0
MOST_ROUNDS = 15
TIMED_STEPS = 2


@dataclass(frozen=True)
class ModuleRow:
    """A module, its submodules included.

    `name` is as in named_modules, empty for the whole; a shared module has a row for each name.
    `kept_bytes` are those of the tensors made in it that are kept for the backward pass, each
    storage once. `own_s` is without the submodules.
    """

    name: str
    kind: str
    depth: int
    calls: int
    output: str
    parameters: int
    forward_flops: int
    backward_flops: int
    kept_bytes: int
    forward_s: float
    backward_s: float
    own_s: float

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


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
    """A step in parts. Phases are timed in whole steps; modules and operators in a step that times
    each call.

    Modules are in the order of the tree, behind the row of all outside it; operators the slowest
    first. Of a compiled model both are those of the uncompiled code.
    """

    phases_s: dict[str, float]
    modules: tuple[ModuleRow, ...]
    operators: tuple[OperatorRow, ...]
    is_compiled: bool


@dataclass(frozen=True)
class CountedStep:
    """The FLOPs of a step, and the trace that assigned them to modules."""

    flops: ExplainedFlops
    trace: Tracer


def counted_step(instance: Instance) -> CountedStep:
    """Takes a training step and counts the next: an optimizer may set itself up in its first."""
    instance.step()
    products = ProductsOfParameters(instance)
    work = [counted.flops(), counted.flops()]
    with work[0] as passes:
        meter = _Meter(passes)
        trace = Tracer(instance.module, meter, products)
        trace.passes(instance)
    with work[1] as update:
        meter.count = update
        trace.update(instance)
    return CountedStep(products.explained(instance, passes, update), trace)


class _Meter:
    """The FLOPs counted so far. Reading them takes time, so only operators with products ask."""

    def __init__(self, count: counted.CountedWork) -> None:
        self.count = count

    def __call__(self, func: Any) -> int:
        return 0 if rule_of(func).kind == ELEMENTWISE else self.count.total


def breakdown_of(
    instance: Instance, step: CountedStep, device: torch.device, is_compiled: bool
) -> Breakdown:
    """Times a few steps by phase, and each operator of further ones; the least disturbed time
    counts.
    """
    phases_s = phase_seconds(instance, device)
    timer = timing.clock(device)
    rounds = []
    with uncompiled():
        for _ in range(1 + TIMED_STEPS):
            trace = Tracer(instance.module, lambda _: timer())
            trace.passes(instance)
            trace.update(instance)
            rounds.append(trace)
    calls, timed = rounds[0].calls, rounds[1:]
    seconds: Counter[Key] = Counter()
    for key in calls:
        seconds[key] = min((each.sums[key] for each in timed if key in each.sums), default=0)
    modules = tuple(_module_rows(instance.module, step.trace, seconds))
    operators = _operator_rows(calls, step.trace.sums, seconds)
    return Breakdown(phases_s, modules, operators, is_compiled)


def phase_seconds(instance: Instance, device: torch.device) -> dict[str, float]:
    """The median time of each phase, over rounds of whole steps."""
    timer = timing.clock(device)
    rounds: list[list[float]] = []
    spent = 0.0
    while len(rounds) < 3 or (len(rounds) < MOST_ROUNDS and spent < SECONDS):
        instance.optimizer.zero_grad(set_to_none=True)
        moments = [timer()]
        loss = instance.forward()
        moments.append(timer())
        loss.backward()  # type: ignore[no-untyped-call]
        moments.append(timer())
        instance.optimizer.step()
        moments.append(timer())
        rounds.append([later - earlier for earlier, later in itertools.pairwise(moments)])
        spent += moments[-1] - moments[0]
    medians = map(statistics.median, zip(*rounds, strict=True))
    return dict(zip(PHASES, medians, strict=True))


def _module_rows(module: nn.Module, traced: Tracer, seconds: Counter[Key]) -> Iterator[ModuleRow]:
    own: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for figure, sums in (("flops", traced.sums), ("s", seconds)):
        for (name, phase, _), value in sums.items():
            own[name][f"{phase} {figure}"] += value
    for name, value in traced.kept.items():
        own[name]["kept"] += value
    inclusive: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, figures in own.items():
        for above in _with_ancestors(name):
            inclusive[above].update(figures)
    for name, each in ((OUTSIDE, None), *module.named_modules(remove_duplicate=False)):
        outputs, figures = traced.outputs[name], inclusive[name]
        parameters = each.parameters() if each is not None else ()
        yield ModuleRow(
            name=name,
            kind=type(each).__name__ if each is not None else "",
            depth=len(list(_with_ancestors(name))) - 1,
            calls=len(outputs),
            output=outputs[0] if outputs else "",
            parameters=sum(parameter.numel() for parameter in parameters),
            forward_flops=figures["forward flops"],
            backward_flops=figures["backward flops"],
            kept_bytes=figures["kept"],
            forward_s=figures["forward s"],
            backward_s=figures["backward s"],
            own_s=own[name]["forward s"] + own[name]["backward s"],
        )


def _with_ancestors(name: str) -> Iterator[str]:
    yield name
    while name and name != OUTSIDE:
        name = name.rpartition(".")[0]
        yield name


def _operator_rows(
    calls: Counter[Key], flops: Counter[Key], seconds: Counter[Key]
) -> tuple[OperatorRow, ...]:
    sums: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, number in calls.items():
        _, phase, operator = key
        figures = {"calls": number, "seconds": seconds[key], "flops": flops[key]}
        sums[operator, phase].update(figures)
    rows = []
    for (operator, phase), each in sums.items():
        rows.append(OperatorRow(operator, phase, each["calls"], each["seconds"], each["flops"]))
    return tuple(sorted(rows, key=lambda row: -row.seconds))
