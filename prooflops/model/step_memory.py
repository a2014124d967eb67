"""The memory of a user's model: measured in two training steps, and predicted on fake tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from prooflops.memory import MeasuredMemory, measured_memory, why_uncounted
from prooflops.memory.phases import PhaseBytes, highest
from prooflops.memory.repetition import SECOND, Steps, take_two_steps
from prooflops.model.factory import naming, user_code
from prooflops.model.user_model import (
    Instance,
    UserModel,
    compiled_frames,
    has_compiled_parts,
    refuse_sparse_gradients,
)

GIVEN, GRADIENTS, STATE = "parameters, buffers, inputs", "gradients", "optimizer state"
HELD, PEAK = "kept for the backward pass", "peak of a step"
STEP = ("forward", "backward", "step")
LOWER_BOUND = "the workspace of some kernels is not known: the predicted peak is a lower bound"
CPU_KERNELS = "the CPU's kernels"


@dataclass(frozen=True)
class Trial:
    """A model after its first two training steps, and the memory of these steps.

    `memory` is None on a device that does not count its bytes.
    """

    user_model: UserModel
    instance: Instance
    memory: MeasuredMemory | None


@dataclass(frozen=True)
class MemoryRow:
    """One row of the memory table: predicted bytes, and bytes requested from the allocator."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None = None

    @property
    def known_bytes(self) -> int | None:
        """The measured bytes, else the predicted ones."""
        return self.predicted_bytes if self.measured_bytes is None else self.measured_bytes


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step after the first one.

    `at_peak` has the predicted bytes of each class at the peak; it is empty where nothing is
    predicted. `unknown` are the kernels whose workspace is not known and may raise it. `peak_phase`
    is the one of STEP with the peak.
    """

    rows: tuple[MemoryRow, ...]
    remarks: tuple[str, ...]
    unknown: tuple[str, ...]
    at_peak: Mapping[str, int]
    peak_phase: str

    def row(self, name: str) -> MemoryRow:
        return next(row for row in self.rows if row.name == name)


def tried(user_model: UserModel) -> Trial:
    """Builds a model and takes two training steps; raises ModelError if that is impossible."""
    # Torch's profiler prints by default when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    compiled = compiled_frames()
    with naming(user_model.spec, user_model.option), user_code("a training step"):
        if why_uncounted(user_model.device):
            instance, memory = marked_steps(user_model.build, lambda _: None), None
        else:
            instance, memory = measured_steps(user_model)
    is_compiled = compiled_frames() > compiled or has_compiled_parts(instance.module)
    return Trial(replace(user_model, is_compiled=is_compiled), instance, memory)


def memory_of(trial: Trial, predicted: StepMemory | None, why_not: str) -> StepMemory | None:
    """The memory of the second step, measured beside what is predicted, or why that is not."""
    if trial.memory is None:
        return None
    phases = trial.memory.phases
    second = {name: phases[f"{SECOND}{name}"] for name in STEP}
    live = {name: phase.live_bytes for name, phase in phases.items()}
    measured = {
        GIVEN: live["built"],
        GRADIENTS: second["backward"].live_bytes - live["zero_grad"],
        # Gradients of the first step are still there, and no activations are.
        STATE: live["step"] - live["backward"],
        HELD: second["forward"].live_bytes - live["zero_grad"],
        PEAK: second[highest_phase(second)].peak_bytes,
    }
    remarks = [why_not]
    rows = [MemoryRow(name, None, size) for name, size in measured.items()]
    if predicted:
        rows = [replace(row, measured_bytes=measured[row.name]) for row in predicted.rows]
        remarks += predicted.remarks
    charged = highest(phase.charged_peak_bytes for phase in second.values())
    if charged is not None:
        remarks.append(f"the caching allocator set aside {charged:,} B at the peak")
    return StepMemory(
        rows=tuple(rows),
        remarks=tuple(filter(None, remarks)),
        unknown=predicted.unknown if predicted else (),
        at_peak=predicted.at_peak if predicted else {},
        peak_phase=predicted.peak_phase if predicted else highest_phase(second),
    )


def highest_phase(phases: Mapping[str, PhaseBytes]) -> str:
    """The phase with the highest peak."""
    return max(phases, key=lambda name: phases[name].peak_bytes)


def measured_steps(user_model: UserModel) -> tuple[Instance, MeasuredMemory]:
    """A model after two steps, and the bytes of building and stepping it.

    On CUDA, cuDNN's attention is disabled here: it keeps more than flash or memory-efficient
    attention, which are predicted. The timed steps run whichever torch prefers.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with measured_memory(user_model.device) as held:
            instance = marked_steps(user_model.build, held.mark)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
    return instance, held


def marked_steps(build: Callable[[], Instance], mark: Callable[[str], object]) -> Instance:
    """Builds a model and takes two steps, marking each phase."""
    instance = build()
    mark("built")
    take_two_steps(InstanceSteps(instance, mark))
    return instance


class InstanceSteps(Steps):
    """The parts of a step of an instance, whose gradients are dense."""

    def __init__(self, instance: Instance, mark: Callable[[str], object]) -> None:
        super().__init__(instance.module, [instance.forward], instance.optimizer, mark)
        self.instance = instance

    def passes(self, prefix: str) -> None:
        super().passes(prefix)
        refuse_sparse_gradients(self.instance)
