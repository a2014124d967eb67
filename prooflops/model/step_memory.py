"""The memory of a user's model: measured in two training steps, and predicted by the same code with
fake tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from prooflops.memory import (
    MeasuredMemory,
    PredictedMemory,
    measured_memory,
    predicted_memory,
    why_uncounted,
)
from prooflops.memory.phases import highest
from prooflops.model.factory import error_text, naming, user_code
from prooflops.model.user_model import (
    Instance,
    UserModel,
    compiled_frames,
    has_compiled_parts,
    refuse_sparse_gradients,
    tensors_of,
)

HELD, PEAK = "held for the backward pass", "peak of a step"
STEP = ("forward", "backward", "update")
Memory = PredictedMemory | MeasuredMemory


@dataclass(frozen=True)
class Trial:
    """A model after its first two training steps, and the memory of these.

    The memory is None on a device that keeps no account of it.
    """

    user_model: UserModel
    instance: Instance
    memory: MeasuredMemory | None


@dataclass(frozen=True)
class MemoryRow:
    """One row of the memory table: predicted bytes, and bytes requested from the allocator."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step after the first one."""

    rows: tuple[MemoryRow, ...]
    remarks: tuple[str, ...]
    # Whether the predicted peak is one.
    is_lower_bound: bool
    # By phase, measured; the update is the optimizer's.
    phase_peaks: dict[str, int]
    # Freed where gradients are set to None.
    dropped_gradient_bytes: int

    def row(self, name: str) -> MemoryRow:
        return next(row for row in self.rows if row.name == name)


def tried(user_model: UserModel) -> Trial:
    """Builds a model and takes two training steps; raises ModelError if that is impossible."""
    # Or torch's profiler prints when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    compiled = compiled_frames()
    with naming(user_model.spec, user_model.option), user_code("a training step"):
        if why_uncounted(user_model.device):
            instance, memory = marked_steps(user_model.build, lambda _: None), None
        else:
            instance, memory = measured_steps(user_model)
    is_compiled = compiled_frames() > compiled or has_compiled_parts(instance.module)
    return Trial(replace(user_model, is_compiled=is_compiled), instance, memory)


def memory_of(trial: Trial) -> StepMemory | None:
    """The memory of the second step: measured, and predicted by the same code with fake tensors."""
    if trial.memory is None:
        return None
    instance, held = trial.instance, trial.memory
    prediction, why_not = prediction_of(trial.user_model)
    live = {name: phase.live_bytes for name, phase in held.phases.items()}
    inputs = {id(each): each for each in tensors_of((instance.arguments, instance.keywords))}
    own = bytes_of([*instance.module.parameters(), *instance.module.buffers(), *inputs.values()])
    gradients = [each.grad for each in instance.module.parameters() if each.grad is not None]
    remarks = [_unexplained_bytes(live["model"] - own), why_not]
    is_lower_bound = prediction is not None and prediction.is_lower_bound
    if is_lower_bound:
        remarks.append(
            "the workspace of some kernels is not known: the predicted peak is a lower bound"
        )
    charged = highest(held.phases[name].charged_peak_bytes for name in STEP)
    if charged is not None:
        remarks.append(f"the caching allocator set aside {charged:,} B at the peak")
    state = [
        each
        for each in tensors_of([*instance.optimizer.state.values()])
        if each.device.type == trial.user_model.device.type
    ]
    measured_state = live["first update"] - live["first backward"]
    return StepMemory(
        rows=(
            MemoryRow("parameters, buffers, inputs", own, live["model"]),
            MemoryRow("gradients", storage_bytes_of(gradients), live["backward"] - live["cleared"]),
            MemoryRow("optimizer state", bytes_of(state), measured_state),
            MemoryRow(HELD, held_bytes(prediction) if prediction else None, held_bytes(held)),
            MemoryRow(PEAK, peak_of(prediction) if prediction else None, peak_of(held)),
        ),
        remarks=tuple(filter(None, remarks)),
        is_lower_bound=is_lower_bound,
        phase_peaks={name: held.phases[name].peak_bytes for name in STEP},
        dropped_gradient_bytes=live["first update"] - live["cleared"],
    )


def measured_steps(user_model: UserModel) -> tuple[Instance, MeasuredMemory]:
    """A model after two steps, and the bytes of building and stepping it.

    Attention on CUDA is flash or memory-efficient, as predicted, never cuDNN's, which keeps more;
    the timed steps run whichever torch prefers.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with measured_memory(user_model.device) as held:
            instance = marked_steps(user_model.build, held.mark)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
    return instance, held


def marked_steps(build: Callable[[], Instance], mark: Callable[[str], None]) -> Instance:
    """Builds a model and takes two steps, marking each phase; measured and predicted, the code is
    the same.
    """
    instance = build()
    mark("model")
    instance.forward().backward()  # type: ignore[no-untyped-call]
    refuse_sparse_gradients(instance)
    mark("first backward")
    instance.optimizer.step()
    mark("first update")
    instance.optimizer.zero_grad(set_to_none=True)
    mark("cleared")
    loss = instance.forward()
    mark("forward")
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    mark("backward")
    instance.optimizer.step()
    mark("update")
    return instance


def prediction_of(user_model: UserModel) -> tuple[PredictedMemory | None, str]:
    """The prediction, or None and why there is none: a model that looks at values cannot run
    without them.
    """
    if user_model.is_compiled:
        return None, (
            "not predicted: compiled, and only the compiler knows what its graphs keep and fuse"
        )
    try:
        with (
            # The steps before these have made the workspaces of cuBLAS.
            predicted_memory(user_model.device, workspaces=False) as held,
            user_model.device,
            _buildable_without_values(),
        ):
            marked_steps(user_model.build, held.mark)
    except Exception as error:
        # The user's code may do anything with a fake tensor.
        return None, f"not predicted: {error_text(error)}"
    return held, ""


def held_bytes(held: Memory) -> int:
    """The bytes that the second forward pass leaves for the backward pass."""
    return held.phases["forward"].live_bytes - held.phases["cleared"].live_bytes


def peak_of(held: Memory) -> int:
    """The peak of the second step."""
    return max(held.phases[name].peak_bytes for name in STEP)


def _unexplained_bytes(difference: int) -> str:
    """What the allocator counts beyond the model's tensors, or does not see of them."""
    if difference < 0:
        return (
            f"{-difference:,} B of the model came from numpy or a file, "
            "which the allocator does not see"
        )
    if difference:
        return f"besides parameters, buffers and inputs the factory keeps {difference:,} B"
    return ""


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """numel × element_size, summed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each once: a gradient may be a part of a larger tensor and
    keep it.
    """
    storages = [each.untyped_storage() for each in tensors]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


class _ReadableRamps(TorchFunctionMode):
    """Lets a factory read a `torch.linspace` or its pieces: rates of stochastic depth in
    torchvision and timm.

    FakeTensorMode can keep known values, but does so for literals only.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, kwargs = func(*args, **(kwargs or {})), kwargs or {}
        if func is torch.linspace and isinstance(out, FakeTensor):
            with unset_fake_temporarily():
                out.constant = func(*args, **{**kwargs, "device": "cpu"})
        elif (
            func is Tensor.split
            and isinstance(args[0], FakeTensor)
            and args[0].constant is not None
        ):
            with unset_fake_temporarily():
                known = args[0].constant.split(*args[1:], **kwargs)  # type: ignore[no-untyped-call]
            for piece, constant in zip(out, known, strict=True):
                piece.constant = constant
        return out


@contextmanager
def _buildable_without_values() -> Iterator[None]:
    """Lets a factory convert and initialise fake parameters as torchvision, timm and Hugging Face
    do (torch 2.13).

    `module.to(...)` swaps a fake parameter with the converted one, which fails because
    FakeTensorMode keeps references to both: here the parameter takes the other's data. Truncated
    normal weights are drawn again until none is outside; a prediction does not depend on their
    values.
    """
    swap, draw = torch.utils.swap_tensors, nn.init._no_grad_trunc_normal_

    def take_data(old: Tensor, new: Tensor) -> None:
        if not isinstance(old, FakeTensor):
            swap(old, new)  # type: ignore[no-untyped-call]
        elif new is not old:
            old.data, old.fake_device = new.data, new.fake_device  # type: ignore[attr-defined]

    def without_drawing(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    torch.utils.swap_tensors, nn.init._no_grad_trunc_normal_ = take_data, without_drawing
    try:
        with _ReadableRamps():
            yield
    finally:
        torch.utils.swap_tensors, nn.init._no_grad_trunc_normal_ = swap, draw
