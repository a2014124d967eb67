"""An examination on fake tensors: a step is counted and predicted, and neither copied nor run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accounting.devices.peaks import Accelerator
from prooflops.memory import PREDICTED_DEVICES, PredictedMemory, predicted_memory
from prooflops.memory.captured import CapturedTensors
from prooflops.memory.copies import Copies
from prooflops.model.alike import kinds_of_parameters
from prooflops.model.breakdown import StepTrace, breakdown_of_trace
from prooflops.model.examination import Examination
from prooflops.model.factory import ModelError, error_text, naming
from prooflops.model.fits import fits_of
from prooflops.model.inventory import inventory_of
from prooflops.model.step_memory import (
    HELD,
    LOWER_BOUND,
    PEAK,
    MemoryRow,
    StepMemory,
    bytes_of,
    storage_bytes_of,
)
from prooflops.model.user_model import Instance, UserModel, tensors_of, validated_instance

STATE = "optimizer state"
CLASSES = {
    "built": "parameters",
    "forward": "activations",
    "backward": "gradients",
    "state": STATE,
    "second forward": "activations",
    "second backward": "gradients",
}
COMPILED = (
    "counted as it is written; compiled, and only the compiler knows what its graphs keep and fuse"
)


@dataclass(frozen=True)
class Traced:
    """A step on fake tensors, and the bytes of its phases."""

    instance: Instance
    trace: StepTrace
    held: PredictedMemory


def examined_without_running(
    user_model: UserModel,
    made: Callable[[Copies], tuple[Any, ...]],
    cards: Sequence[Accelerator] = (),
    notes: Sequence[str] = (),
) -> Examination:
    """The facts about what `made` returns, as a factory does, when it is given how to copy.

    Raises ModelError where a step cannot go on without values.
    """
    with naming(user_model.spec, user_model.option):
        try:
            traced = _traced(made, user_model.device)
        except ModelError:
            raise
        except Exception as error:
            # The user's code may read values, which a fake tensor lacks, or do anything else.
            raise ModelError(
                f"a step cannot be counted without running it: {error_text(error)}; measure=True "
                "runs a copy"
            ) from error
    instance, is_compiled = traced.instance, user_model.is_compiled
    is_known = user_model.device.type in PREDICTED_DEVICES and not is_compiled
    return Examination(
        user_model,
        instance,
        inventory_of(instance.module),
        _memory_of(traced.held) if is_known else None,
        traced.trace.flops,
        breakdown_of_trace(instance, traced.trace, {}, is_compiled=is_compiled),
        fits=fits_of(user_model, instance, (), cards) if cards else None,
        notes=(*instance.notes, *notes, *([COMPILED] if is_compiled else [])),
    )


def _traced(made: Callable[[Copies], tuple[Any, ...]], device: torch.device) -> Traced:
    # Its operations are those of the CPU where another device cannot be faked.
    device = device if device.type in PREDICTED_DEVICES else torch.device("cpu")
    copies = Copies(device)
    captured: list[Tensor] = []
    live: dict[str, int] = {}
    with predicted_memory(device, classes=CLASSES, copies=copies) as held:
        instance = validated_instance(made(copies), allow_meta=True)
        held.name("buffers", instance.module.buffers())
        held.name("inputs", tensors_of((instance.arguments, instance.keywords)))
        first_state = _state_of(instance.optimizer)
        held.name(STATE, first_state)

        def mark(name: str) -> None:
            live[name] = held.mark(name)

        def note(tensor: Tensor) -> None:
            captured.append(tensor)
            held.name("inputs", [tensor])

        mark("built")
        with CapturedTensors(copies, note):
            trace = StepTrace(instance, mark=mark, captured=captured)
            state = _updated(trace, instance.optimizer, held, mark) - storage_bytes_of(first_state)
            if live["cleared"] != live["built"] + state + storage_bytes_of(captured):
                # The first step left something more, which a later one begins with.
                loss = instance.forward()
                mark("second forward")
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
                mark("second backward")
    return Traced(instance, trace, held)


def _updated(
    trace: StepTrace,
    optimizer: torch.optim.Optimizer,
    held: PredictedMemory,
    mark: Callable[[str], None],
) -> int:
    """Takes the update of the first step, which makes the state, and of a later one.

    Returns the bytes of the state.
    """
    kinds = kinds_of_parameters(optimizer)
    not_updated_bytes = 0
    for alike in kinds.each() if kinds else ([],):
        optimizer.step()
        state = tensors_of(optimizer.state[alike[0]]) if alike else []
        without = [each for each in alike if each not in optimizer.state]
        held.hold(STATE, [each.nbytes for each in state] * len(without))
        not_updated_bytes += bytes_of(state) * len(without)
    mark("state")
    for _ in kinds.neighbours() if kinds else (None,):
        optimizer.step()
    mark("second step")
    trace.update()
    optimizer.zero_grad(set_to_none=True)
    mark("cleared")
    return storage_bytes_of(_state_of(optimizer)) + not_updated_bytes


def _state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return tensors_of([*optimizer.state.values()])


def _memory_of(held: PredictedMemory) -> StepMemory:
    """The memory of a step after the first one."""
    phases = held.phases
    before = phases["forward"].live_by_class
    given = sum(before.get(name, 0) for name in ("parameters", "buffers", "inputs"))
    gradients = phases["backward"].live_by_class.get("gradients", 0)
    state = phases["state"].live_by_class.get(STATE, 0)
    added = state - before.get(STATE, 0)
    peaks = [(phases["second step"].peak_bytes, phases["second step"].peak_by_class)]
    for name in ("forward", "backward"):
        later = phases.get(f"second {name}")
        first = phases[name]
        classes = {**first.peak_by_class, STATE: first.peak_by_class.get(STATE, 0) + added}
        peaks.append(
            (later.peak_bytes, later.peak_by_class)
            if later
            else (first.peak_bytes + added, classes)
        )
    peak, at_peak = max(peaks, key=lambda each: each[0])
    rows = (
        MemoryRow("parameters, buffers, inputs", given),
        MemoryRow("gradients", gradients),
        MemoryRow(STATE, state),
        MemoryRow(HELD, before.get("activations", 0)),
        MemoryRow(PEAK, peak),
    )
    return StepMemory(
        rows=rows,
        remarks=(LOWER_BOUND,) if held.is_lower_bound else (),
        is_peak_lower_bound=held.is_lower_bound,
        at_peak=at_peak,
        phase_peaks={},
    )
