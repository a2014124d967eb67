"""Claims of the registry that say something about any model, answered for the user's own.

What holds for one model is no verdict on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.inventory import Inventory
from prooflops.model.step_memory import PEAK, StepMemory, bytes_of, storage_bytes_of
from prooflops.model.step_time import MeasuredStep
from prooflops.model.user_model import Instance

HOLDS, CORRECTED, FAILS, DOES_NOT_APPLY = "holds", "corrected", "FAILS", "does not apply"
RULES = {
    "forward": ("2ND", "flops.forward-2BN"),
    "backward": ("4ND", "grad.backward-4BN"),
    "step": ("6ND", "grad.six-rule"),
}
BUFFERS: dict[type, tuple[str, int]] = {
    SGD: ("optim.sgd-none", 0),
    Adagrad: ("optim.adagrad-1", 1),
    RMSprop: ("optim.rmsprop-1", 1),
    Adam: ("optim.adam-2", 2),
    AdamW: ("optim.adam-2", 2),
}
MOMENTUM = ("optim.momentum-1", 1)
FP32 = torch.float32
FP32_CLAIMS = {"optim.adam-2": "mem.16-bytes", "optim.adagrad-1": "mem.adagrad-12"}
# A rule of thumb applies to a model that it meets within this share.
NAPKIN = 0.1
HIGHEST_MFU = 0.9


@dataclass(frozen=True)
class Answer:
    """The answer of a claim for this model; a claim whose condition is not met has none."""

    claim: str
    verdict: str
    figure: str


def answers_of(
    instance: Instance | None,
    inventory: Inventory,
    memory: StepMemory | None,
    flops: ExplainedFlops,
    step: MeasuredStep | None,
) -> list[Answer]:
    """The answers of claims that apply.

    Those about tensors need an instance that has been stepped, those about time a step whose time
    is known.
    """
    answers = [*_of_rules(flops), *_of_backward(flops)]
    if instance:
        answers = [*_of_tensors(instance, inventory), *answers]
    if instance and memory:
        answers += _of_memory(instance, memory)
    if step:
        answers += _of_time(step)
    return answers


def _answer(claim: str, figure: str, *, holds: bool) -> Answer:
    return Answer(claim, HOLDS if holds else FAILS, figure)


def _of_tensors(instance: Instance, inventory: Inventory) -> Iterator[Answer]:
    is_whole = inventory.bytes == inventory.storage_bytes
    figure = f"{inventory.bytes:,} B in storages of {inventory.storage_bytes:,} B"
    yield Answer("tensor.nbytes-formula", HOLDS if is_whole else DOES_NOT_APPLY, figure)
    trained = [each for each in instance.parameters.values() if each.grad is not None]
    alike = all(_traits(each.grad) == _traits(each) for each in trained)
    yield _answer("grad.same-shape", f"{len(trained):,} gradients", holds=alike)
    state = instance.optimizer.state
    if not any(state.values()):
        return
    figure = f"{len(state):,} parameters"
    own = {id(each) for each in instance.parameters.values()}
    yield _answer("optim.state-keyed", figure, holds=own.issuperset(map(id, state)))
    if type(instance.optimizer) in (Adam, AdamW):
        alike = all(
            _traits(tensor) == _traits(parameter)
            for parameter, row in state.items()
            for name, tensor in row.items()
            if name != "step"
        )
        yield _answer("optim.state-same-dtype", figure, holds=alike)


def _traits(tensor: Any) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _of_rules(flops: ExplainedFlops) -> Iterator[Answer]:
    for phase, (name, claim) in RULES.items():
        rule, needed = flops.rule(phase), flops.needed(phase)
        if rule is None:
            yield Answer(claim, DOES_NOT_APPLY, f"{name} is not known, as D is not")
            continue
        verdict = HOLDS if abs(rule - needed) <= NAPKIN * needed else DOES_NOT_APPLY
        if flops.unexplained(phase):
            verdict = FAILS
        ratio = f"{rule / needed:.4g}" if needed else "infinitely many"
        yield Answer(claim, verdict, f"{name} is {ratio} times the model FLOPs")


def _of_backward(flops: ExplainedFlops) -> Iterator[Answer]:
    if not flops.forward:
        return
    times = (flops.model - flops.forward) / flops.forward
    verdict = CORRECTED if times >= 2 * (1 - NAPKIN) else DOES_NOT_APPLY
    if times > 2 * (1 + NAPKIN):
        verdict = FAILS
    yield Answer("grad.quadruples", verdict, f"backward costs {times:.3g} times forward")


def _of_memory(instance: Instance, memory: StepMemory) -> Iterator[Answer]:
    parameters = [*instance.parameters.values()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    held, dropped = memory.measured("gradients"), memory.dropped_gradient_bytes
    storages = storage_bytes_of(gradients)
    yield _answer("optim.zero-grad-none", f"{dropped:,} B", holds=dropped == storages)
    # A gradient may be a part of a larger tensor, which it keeps.
    is_plain = len(gradients) == len(parameters) and storages == bytes_of(gradients)
    if is_plain:
        yield _answer("mem.grads-equal-params", f"{held:,} B", holds=held == bytes_of(parameters))
    claim, buffers = _buffers_of(instance.optimizer)
    if not claim:
        return
    device = parameters[0].device.type
    steps = [row["step"] for row in instance.optimizer.state.values() if "step" in row]
    counts = bytes_of(each for each in steps if each.device.type == device)
    state = memory.measured("optimizer state") - counts
    updated = bytes_of(instance.optimizer.state)
    yield _answer(claim, f"{state:,} B", holds=state == buffers * updated)
    if claim in FP32_CLAIMS and is_plain and {each.dtype for each in parameters} == {FP32}:
        elements = sum(each.numel() for each in parameters)
        training = (bytes_of(parameters) + held + state) / elements
        peak = memory.measured(PEAK) / elements
        figure, at_peak = f"{training:g} B per parameter", f"{peak:.1f} B per parameter at the peak"
        yield _answer(FP32_CLAIMS[claim], figure, holds=training == 4 * (2 + buffers))
        yield _answer("mem.omits-activations", at_peak, holds=peak > training)


def _buffers_of(optimizer: torch.optim.Optimizer) -> tuple[str, int]:
    """The claim about an optimizer of this kind, if any, and its buffers per parameter."""
    settings = [
        {name for name in ("momentum", "centered", "amsgrad") if group.get(name)}
        for group in optimizer.param_groups
    ]
    if not any(settings):
        return BUFFERS.get(type(optimizer), ("", 0))
    return MOMENTUM if type(optimizer) is SGD and all(settings) else ("", 0)


def _of_time(step: MeasuredStep) -> Iterator[Answer]:
    if step.flops.recomputed and step.mfu_of_ceiling and step.hfu_of_ceiling:
        figure = f"MFU {step.mfu_of_ceiling:.1%}, HFU {step.hfu_of_ceiling:.1%} of own ceiling"
        yield _answer("mfu.hfu", figure, holds=step.hfu_of_ceiling > step.mfu_of_ceiling)
    if step.mfu is not None:
        yield _answer("mfu.never-near-one", f"MFU {step.mfu:.1%}", holds=step.mfu < HIGHEST_MFU)
