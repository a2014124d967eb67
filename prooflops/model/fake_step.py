"""A training step counted and predicted on fake tensors: neither copied nor run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prooflops.memory import CLASSES, PREDICTED_DEVICES, PredictedMemory, predicted_memory
from prooflops.memory.captured import CapturedTensors
from prooflops.memory.copies import Copies
from prooflops.memory.fits import Capability
from prooflops.memory.repetition import SECOND
from prooflops.model.alike import kinds_of_parameters
from prooflops.model.breakdown import StepTrace
from prooflops.model.step_memory import (
    CPU_KERNELS,
    GIVEN,
    GRADIENTS,
    HELD,
    LOWER_BOUND,
    PEAK,
    STATE,
    STEP,
    InstanceSteps,
    MemoryRow,
    StepMemory,
    highest_phase,
)
from prooflops.model.user_model import Instance, tensors_of


@dataclass(frozen=True)
class FakeStep:
    """A step on fake tensors, and its memory; None on a device whose kernels are not known."""

    instance: Instance
    trace: StepTrace
    memory: StepMemory | None


def fake_step(
    make: Callable[[Copies], Instance],
    device: torch.device,
    *,
    workspaces: bool = True,
    capability: Capability | None = None,
) -> FakeStep:
    """The step of the model that `make` copies.

    `workspaces` are those of cuBLAS, which earlier steps of a process make. `capability` is that of
    an absent card. Raises any error of a step that cannot go on without values.
    """
    # Its operations are those of the CPU where another device cannot be faked.
    is_known = device.type in PREDICTED_DEVICES
    device = device if is_known else torch.device("cpu")
    copies = Copies(device)
    with predicted_memory(
        device,
        compute_capability=capability,
        classes=CLASSES,
        copies=copies,
        workspaces=workspaces,
    ) as held:
        instance = make(copies)
        copies.release()
        held.name("buffers", instance.module.buffers())
        held.name("inputs", tensors_of((instance.arguments, instance.keywords)))
        held.name(STATE, tensors_of([*instance.optimizer.state.values()]))
        held.mark("built")
        steps = _FakeSteps(instance, held)
        with CapturedTensors(copies, steps.note_captured):
            held.enter_two_steps(steps)
    return FakeStep(instance, steps.trace, _memory_of(held) if is_known else None)


class _FakeSteps(InstanceSteps):
    """The parts of a step, traced in its first passes and in its second update."""

    trace: StepTrace

    def __init__(self, instance: Instance, held: PredictedMemory) -> None:
        super().__init__(instance, held.mark)
        self._held = held
        self._captured: list[Tensor] = []
        self._kinds = kinds_of_parameters(instance.optimizer)

    def note_captured(self, tensor: Tensor) -> None:
        self._captured.append(tensor)
        self._held.name("inputs", [tensor])

    def passes(self, prefix: str) -> None:
        if prefix:
            super().passes(prefix)
            return
        self.trace = StepTrace(
            self.instance, mark=self.mark, captured=self._captured, traced=self._held.traced
        )

    def update(self, prefix: str) -> None:
        optimizer, kinds = self.instance.optimizer, self._kinds
        if kinds and prefix:
            for _ in kinds.neighbours():
                optimizer.step()
        elif kinds:
            for alike in kinds.each():
                optimizer.step()
                self._hold_state_of(alike)
        elif prefix:
            self.trace.update()
        else:
            optimizer.step()
        self.mark(f"{prefix}step")
        if kinds and prefix:
            self.trace.update()

    def _hold_state_of(self, alike: list[Tensor]) -> None:
        """Enters the state of the parameters that the first of them stands for."""
        states = self.instance.optimizer.state
        sizes = [each.nbytes for each in tensors_of(states[alike[0]])]
        for each in alike:
            if each not in states:
                self._held.hold(STATE, sizes)


def _memory_of(held: PredictedMemory) -> StepMemory:
    """The memory of the second step."""
    phases = {name: held.phases[f"{SECOND}{name}"] for name in STEP}
    forward, backward, step = phases.values()
    peak_phase = highest_phase(phases)
    highest = phases[peak_phase]
    unknown = (*held.unknown,)
    if held.is_lower_bound and not unknown:
        unknown = (CPU_KERNELS,)
    left, before = forward.live_by_class, held.phases["zero_grad"].live_by_class
    # A module may keep an output for its next pass.
    activations = left.get("activations", 0) - before.get("activations", 0)
    rows = (
        MemoryRow(GIVEN, sum(left.get(name, 0) for name in ("parameters", "buffers", "inputs"))),
        MemoryRow(GRADIENTS, backward.live_by_class.get(GRADIENTS, 0)),
        MemoryRow(STATE, step.live_by_class.get(STATE, 0)),
        MemoryRow(HELD, activations),
        MemoryRow(PEAK, highest.peak_bytes),
    )
    return StepMemory(
        rows=rows,
        remarks=(LOWER_BOUND,) if unknown else (),
        unknown=unknown,
        at_peak=highest.peak_by_class,
        peak_phase=peak_phase,
    )
