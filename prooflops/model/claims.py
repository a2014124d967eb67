"""Claims of the registry that say something about any model, answered for the user's own.

What holds for one model is no verdict on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.inventory import Inventory
from prooflops.model.step_memory import PEAK, StepMemory, bytes_of, state_of, storage_bytes_of
from prooflops.model.step_time import MeasuredStep
from prooflops.model.user_model import Instance

HOLDS, CORRECTED, FAILS, DOES_NOT_APPLY = "holds", "corrected", "FAILS", "does not apply"
RULES = {
    "forward": ("2ND", "flops.forward-2BN"),
    "backward": ("4ND", "grad.backward-4BN"),
    "step": ("6ND", "grad.six-rule"),
}
# A rule of thumb applies to a model that it meets within this share.
NAPKIN = 0.1
HIGHEST_MFU = 0.9


@dataclass(frozen=True)
class Answer:
    """What a claim says of this model; one whose condition the model lacks has no answer."""

    claim: str
    verdict: str
    figure: str


def answers_of(
    instance: Instance,
    inventory: Inventory,
    memory: StepMemory | None,
    flops: ExplainedFlops,
    step: MeasuredStep | None,
) -> list[Answer]:
    """The answers; those about time need a step whose time is known."""
    answers = [*_of_tensors(instance, inventory), *_of_rules(flops), *_of_backward(flops)]
    if memory:
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
    alike = [each for each in trained if _is_like(each.grad, each)]
    figure = f"{len(alike):,} gradients"
    yield _answer("grad.same-shape", figure, holds=len(alike) == len(trained))
    state = instance.optimizer.state
    own = {id(each) for each in instance.parameters.values()}
    if any(state.values()):
        holds = all(id(each) in own for each in state)
        yield _answer("optim.state-keyed", f"{len(state):,} parameters", holds=holds)
    if type(instance.optimizer) in (Adam, AdamW):
        holds = all(
            _is_like(tensor, parameter)
            for parameter, row in state.items()
            for name, tensor in row.items()
            if name != "step"
        )
        yield _answer("optim.state-same-dtype", f"{len(state):,} parameters", holds=holds)


def _is_like(tensor: torch.Tensor | None, parameter: torch.Tensor) -> bool:
    return tensor is not None and (tensor.shape, tensor.dtype) == (parameter.shape, parameter.dtype)


def _of_rules(flops: ExplainedFlops) -> Iterator[Answer]:
    for phase, (name, claim) in RULES.items():
        rule, needed = flops.rule(phase), flops.needed(phase)
        figure = f"{name} is {rule / max(needed, 1):.4g} times the model FLOPs"
        verdict = HOLDS
        if abs(rule - needed) > NAPKIN * needed:
            parts = [part for part in flops.parts if not part.name.startswith("recomputed")]
            largest = max(parts, key=lambda part: abs(getattr(part, phase)))
            verdict, figure = DOES_NOT_APPLY, f"{figure}, most of all by {largest.name}"
        if flops.unexplained(phase):
            verdict = FAILS
            figure = f"{flops.unexplained(phase):,} FLOPs of the difference have no reason"
        yield Answer(claim, verdict, figure)


def _of_backward(flops: ExplainedFlops) -> Iterator[Answer]:
    if not flops.forward:
        return
    times = (flops.model - flops.forward) / flops.forward
    verdict = CORRECTED if times <= 2 * (1 + NAPKIN) else FAILS
    if times < 2 * (1 - NAPKIN):
        verdict = DOES_NOT_APPLY
    figure = f"the backward pass costs {times:.3g} times the forward"
    yield Answer("grad.quadruples", verdict, figure)


def _of_memory(instance: Instance, memory: StepMemory) -> Iterator[Answer]:
    parameters = [*instance.parameters.values()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    held = memory.row("gradients").measured_bytes
    dropped = memory.dropped_gradient_bytes
    holds = dropped == storage_bytes_of(gradients)
    yield _answer("optim.zero-grad-none", f"{dropped:,} B", holds=holds)
    are_parts = storage_bytes_of(gradients) > bytes_of(gradients)
    all_trained = len(gradients) == len(parameters) and not are_parts
    if all_trained:
        yield _answer("mem.grads-equal-params", f"{held:,} B", holds=held == bytes_of(parameters))
    kind = _kind_of(instance.optimizer)
    if kind is None:
        return
    claim, buffers = kind
    counts = [row["step"] for row in instance.optimizer.state.values() if "step" in row]
    on_device = [each for each in state_of(instance) if any(each is count for count in counts)]
    state = memory.row("optimizer state").measured_bytes - bytes_of(on_device)
    updated = [each for each in instance.optimizer.state if isinstance(each, torch.Tensor)]
    yield _answer(claim, f"{state:,} B", holds=state == buffers * bytes_of(updated))
    is_fp32 = all(each.dtype == torch.float32 for each in parameters)
    per_element = {"optim.adam-2": "mem.16-bytes", "optim.adagrad-1": "mem.adagrad-12"}
    if claim not in per_element or not all_trained or not is_fp32:
        return
    elements = sum(each.numel() for each in parameters)
    training = (bytes_of(parameters) + held + state) / elements
    figure = f"{training:g} B per parameter"
    yield _answer(per_element[claim], figure, holds=training == 4 * (2 + buffers))
    if claim == "optim.adam-2":
        peak = memory.row(PEAK).measured_bytes / elements
        figure = f"{peak:.1f} B per parameter at the peak"
        yield _answer("mem.omits-activations", figure, holds=peak > training)


def _kind_of(optimizer: torch.optim.Optimizer) -> tuple[str, int] | None:
    """The claim about an optimizer of this kind, and its buffers per parameter."""
    settings = ("momentum", "centered", "amsgrad")
    found = {name for group in optimizer.param_groups for name in settings if group.get(name)}
    are_alike = len({bool(group.get("momentum")) for group in optimizer.param_groups}) == 1
    if type(optimizer) is SGD and are_alike:
        return ("optim.momentum-1", 1) if found else ("optim.sgd-none", 0)
    plain: dict[type, tuple[str, int]] = {
        Adagrad: ("optim.adagrad-1", 1),
        RMSprop: ("optim.rmsprop-1", 1),
        Adam: ("optim.adam-2", 2),
        AdamW: ("optim.adam-2", 2),
    }
    return None if found else plain.get(type(optimizer))


def _of_time(step: MeasuredStep) -> Iterator[Answer]:
    if step.flops.recomputed and step.mfu_of_ceiling and step.hfu_of_ceiling:
        figure = f"MFU {step.mfu_of_ceiling:.1%}, HFU {step.hfu_of_ceiling:.1%} of own ceiling"
        yield _answer("mfu.hfu", figure, holds=step.hfu_of_ceiling > step.mfu_of_ceiling)
    if step.mfu is not None:
        figure = f"MFU {step.mfu:.1%}"
        yield _answer("mfu.never-near-one", figure, holds=step.mfu < HIGHEST_MFU)
