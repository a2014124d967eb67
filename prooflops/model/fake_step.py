"""A training step counted and predicted on fake tensors: neither copied nor run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prooflops.memory import PREDICTED_DEVICES, PredictedMemory, predicted_memory
from prooflops.memory.captured import CapturedTensors
from prooflops.memory.copies import Copies
from prooflops.model.alike import kinds_of_parameters
from prooflops.model.breakdown import StepTrace
from prooflops.model.step_memory import (
    GIVEN,
    GRADIENTS,
    HELD,
    LOWER_BOUND,
    PEAK,
    STATE,
    MemoryRow,
    StepMemory,
    bytes_of,
    storage_bytes_of,
)
from prooflops.model.user_model import Instance, tensors_of

CLASSES = {
    "built": "parameters",
    "forward": "activations",
    "backward": GRADIENTS,
    "state": STATE,
    "second forward": "activations",
    "second backward": GRADIENTS,
}


@dataclass(frozen=True)
class FakeStep:
    """A step on fake tensors, and its memory; None on a device whose kernels are not known."""

    instance: Instance
    trace: StepTrace
    memory: StepMemory | None


def fake_step(
    make: Callable[[Copies], Instance], device: torch.device, *, workspaces: bool = True
) -> FakeStep:
    """The step of what `make` returns when it is given how to copy.

    `workspaces` are those of cuBLAS, which earlier steps of a process make. Raises any error of a
    step that cannot go on without values.
    """
    # Its operations are those of the CPU where another device cannot be faked.
    is_known = device.type in PREDICTED_DEVICES
    device = device if is_known else torch.device("cpu")
    copies = Copies(device)
    captured: list[Tensor] = []
    live: dict[str, int] = {}
    with predicted_memory(device, classes=CLASSES, copies=copies, workspaces=workspaces) as held:
        instance = make(copies)
        held.name("buffers", instance.module.buffers())
        held.name("inputs", tensors_of((instance.arguments, instance.keywords)))
        first_state = _state_of(instance.optimizer, device)
        held.name(STATE, first_state)

        def mark(name: str) -> None:
            live[name] = held.mark(name)

        def note(tensor: Tensor) -> None:
            captured.append(tensor)
            held.name("inputs", [tensor])

        mark("built")
        with CapturedTensors(copies, note):
            trace = StepTrace(instance, mark=mark, captured=captured, traced=held.traced)
            not_updated_bytes = _updated(trace, instance.optimizer, held, mark)
            made = storage_bytes_of(_state_of(instance.optimizer, device))
            state = made + not_updated_bytes - storage_bytes_of(first_state)
            if live["cleared"] != live["built"] + state + storage_bytes_of(captured):
                # The first step left something more, which a later one begins with.
                loss = instance.forward()
                mark("second forward")
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
                mark("second backward")
    return FakeStep(instance, trace, _memory_of(held) if is_known else None)


def _updated(
    trace: StepTrace,
    optimizer: torch.optim.Optimizer,
    held: PredictedMemory,
    mark: Callable[[str], None],
) -> int:
    """Takes the update of the first step, which makes the state, and of a later one.

    Returns the bytes of the state of parameters that another one stood for.
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
    for _ in kinds.neighbours() if kinds else ():
        optimizer.step()
    if kinds:
        mark("second step")
    trace.update()
    if not kinds:
        mark("second step")
    optimizer.zero_grad(set_to_none=True)
    mark("cleared")
    return not_updated_bytes


def _state_of(optimizer: torch.optim.Optimizer, device: torch.device) -> list[Tensor]:
    """The state on the device; step counts may be on the CPU."""
    state = tensors_of([*optimizer.state.values()])
    return [each for each in state if each.device.type == device.type]


def _memory_of(held: PredictedMemory) -> StepMemory:
    """The memory of a step after the first one."""
    phases = held.phases
    before = phases["forward"].live_by_class
    given = sum(before.get(name, 0) for name in ("parameters", "buffers", "inputs"))
    gradients = phases["backward"].live_by_class.get(GRADIENTS, 0)
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
        MemoryRow(GIVEN, given),
        MemoryRow(GRADIENTS, gradients),
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
