"""The memory of a user's model: measured in two training steps, and predicted by the same code with
fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from prooflops.memory import MeasuredMemory, PredictedMemory, measured_memory, predicted_memory
from prooflops.model.factory import error_text
from prooflops.model.user_model import Instance, UserModel, tensors_of

NOT_PREDICTED_COMPILED = (
    "not predicted: compiled, and only the compiler knows what its graphs keep and fuse"
)
HELD, PEAK = "held for the backward pass", "peak of a step"
STEP = ("forward", "backward", "update")
Memory = PredictedMemory | MeasuredMemory


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
    scratch: dict[str, int]  # temporary workspace per operator: the most that one call takes
    # The last two predictions are lower bounds where an operator's workspace is unknown.
    is_lower_bound: bool
    phase_peaks: dict[str, int]  # measured; the update is the optimizer's
    charged_peak_bytes: int | None  # set aside for the peak by CUDA's caching allocator

    def row(self, name: str) -> MemoryRow:
        return next(row for row in self.rows if row.name == name)


def memory_of(user_model: UserModel) -> StepMemory:
    """Builds the model and takes two steps within one measurement; the rows describe the second
    step.

    Attention on CUDA is flash or memory-efficient in both, never cuDNN's; the timed steps take what
    torch prefers.

    The same code is predicted with fake tensors, if the model can be built and run without values.
    """
    instance, held = measured_steps(user_model)
    live = {name: phase.live_bytes for name, phase in held.phases.items()}
    charged = [held.phases[name].charged_peak_bytes for name in STEP]
    prediction, why_not = prediction_of(user_model)
    inputs = {id(each): each for each in tensors_of((instance.arguments, instance.keywords))}
    own = bytes_of([*instance.module.parameters(), *instance.module.buffers(), *inputs.values()])
    gradients = [each.grad for each in instance.module.parameters() if each.grad is not None]
    on_device = [each for each in tensors_of(list(instance.optimizer.state.values()))
                 if each.device.type == user_model.device.type]  # fmt: skip
    return StepMemory(
        rows=(
            MemoryRow("parameters, buffers, inputs", own, live["model"]),
            MemoryRow("gradients", storage_bytes_of(gradients), live["backward"] - live["cleared"]),
            MemoryRow(
                "optimizer state",
                bytes_of(on_device),
                live["first update"] - live["first backward"],
            ),
            MemoryRow(HELD, held_bytes(prediction) if prediction else None, held_bytes(held)),
            MemoryRow(PEAK, peak_of(prediction) if prediction else None, peak_of(held)),
        ),
        remarks=tuple(filter(None, [_unexplained_bytes(live["model"] - own), why_not])),
        scratch=prediction.scratch if prediction else {},
        is_lower_bound=bool(prediction and prediction.unknown),
        phase_peaks={name: held.phases[name].peak_bytes for name in STEP},
        charged_peak_bytes=None
        if None in charged
        else max(each for each in charged if each is not None),
    )


def measured_steps(user_model: UserModel) -> tuple[Instance, MeasuredMemory]:
    """A model after two steps, and the bytes that building and stepping it took."""
    with _without_cudnn_attention(), measured_memory(user_model.device) as held:
        instance = marked_steps(user_model.fresh, held.mark)
    return instance, held


@contextmanager
def _without_cudnn_attention() -> Iterator[None]:
    """Attention by the kernels that the prediction assumes: cuDNN's, where torch prefers it, keeps
    more.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def marked_steps(fresh: Callable[[], Instance], mark: Callable[[str], None]) -> Instance:
    """Builds a model and takes two steps, marking each phase; measured and predicted, the code is
    the same.
    """
    instance = fresh()
    mark("model")
    instance.forward().backward()  # type: ignore[no-untyped-call]
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
        return None, NOT_PREDICTED_COMPILED
    try:
        with (
            # The steps before these have made the workspaces of cuBLAS.
            predicted_memory(user_model.device, scratch=True, workspaces=False) as held,
            user_model.device,
            _buildable_without_values(),
        ):
            marked_steps(user_model.fresh, held.mark)
    except Exception as error:  # the user's code may do anything with a fake tensor
        return None, f"not predicted: {error_text(error)}"
    return held, ""


def held_bytes(held: Memory) -> int:
    """The bytes that the second forward pass leaves for the backward pass."""
    return held.phases["forward"].live_bytes - held.phases["cleared"].live_bytes


def peak_of(held: Memory) -> int:
    """The peak of the second step, with the workspace of kernels as far as it is known."""
    phases = [held.phases[name] for name in STEP]
    return max(getattr(each, "peak_bytes_with_scratch", None) or each.peak_bytes for each in phases)


def _unexplained_bytes(difference: int) -> str:
    """The bytes that the allocator gave out for the model beyond its tensors, or did not see."""
    if difference < 0:
        return (
            f"{-difference:,} B of the model came from numpy or a file, "
            "which the allocator does not see"
        )
    return (
        f"besides parameters, buffers and inputs the factory keeps {difference:,} B"
        if difference
        else ""
    )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """numel × element_size, summed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each once: a gradient may be a part of a larger tensor and
    keep it.
    """
    return sum(
        {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors
        }.values()
    )


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
