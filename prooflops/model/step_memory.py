"""The memory of a user's model: measured in two training steps, and predicted by the same code with fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from accounting import measured, predicted
from prooflops.model.factory import error_text
from prooflops.model.user_model import Instance, UserModel, tensors_of


@dataclass(frozen=True)
class MemoryRow:
    """One row of the memory table: the predicted bytes, and those that the allocator was really asked for."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step after the first one."""

    rows: tuple[MemoryRow, ...]
    remarks: tuple[str, ...]
    scratch: dict[str, int]  # temporary workspace per operator: the most that one call takes
    is_lower_bound: bool  # whether the last two predictions are lower bounds: an operator's workspace is unknown
    phase_peaks: dict[str, int]  # measured; the update is the optimizer's
    charged_peak_bytes: int | None  # on CUDA: what the caching allocator set aside for the peak

    def row(self, name: str) -> MemoryRow:
        return next(row for row in self.rows if row.name == name)


NOT_PREDICTED_COMPILED = "not predicted: compiled, and only the compiler knows what its graphs keep and fuse"
HELD, PEAK = "held for the backward pass", "peak of a step"


def memory_of(user_model: UserModel) -> StepMemory:
    """Builds the model and takes two steps within one measurement; the rows describe the second step.

    The same code is predicted with fake tensors, where the model can be built and run without values.
    """
    instance, held = measured_steps(user_model)
    live = {name: phase.live_bytes for name, phase in held.phases.items()}
    charged = [held.phases[name].charged_peak_bytes for name in STEP]
    prediction, why_not = predicted_memory(user_model)
    inputs = {id(each): each for each in tensors_of((instance.arguments, instance.keywords))}
    own = bytes_of([*instance.module.parameters(), *instance.module.buffers(), *inputs.values()])
    gradients = [each.grad for each in instance.module.parameters() if each.grad is not None]
    state = [each for each in state_tensors(instance) if each.device.type == user_model.device.type]
    return StepMemory(
        rows=(
            MemoryRow("parameters, buffers, inputs", own, live["model"]),
            MemoryRow("gradients", storage_bytes_of(gradients), live["backward"] - live["cleared"]),
            MemoryRow("optimizer state", bytes_of(state), live["first update"] - live["first backward"]),
            MemoryRow(HELD, _held_bytes(prediction), live["forward"] - live["cleared"]),
            MemoryRow(PEAK, peak_of(prediction) if prediction else None, peak_of(held)),
        ),
        remarks=tuple(filter(None, [_unexplained_bytes(live["model"] - own), why_not])),
        scratch=prediction.scratch if prediction else {},
        is_lower_bound=bool(prediction and prediction.unknown),
        phase_peaks={name: held.phases[name].peak_bytes for name in STEP},
        charged_peak_bytes=None if None in charged else max(each for each in charged if each is not None),
    )


def measured_steps(user_model: UserModel) -> tuple[Instance, measured.MeasuredMemory]:
    """A model after two steps, and the bytes that building and stepping it took."""
    with measured.memory(user_model.device) as held:
        instance = marked_steps(user_model.fresh, held.mark)
    return instance, held


STEP = ("forward", "backward", "update")


def marked_steps(fresh: Callable[[], Instance], mark: Callable[[str], None]) -> Instance:
    """Builds a model and takes two steps, marking each phase; measured and predicted, the code is the same."""
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


def predicted_memory(user_model: UserModel) -> tuple[predicted.PredictedMemory | None, str]:
    """The prediction, or None and why there is none: a model that looks at values cannot run without them."""
    if user_model.is_compiled:
        return None, NOT_PREDICTED_COMPILED
    try:
        with (
            predicted.memory(user_model.device, scratch=True) as held,
            user_model.device,
            _fake_conversions(),
            _readable_initialisation(),
        ):
            marked_steps(user_model.fresh, held.mark)
    except Exception as error:  # the user's code may do anything with a fake tensor
        return None, f"not predicted: {error_text(error)}"
    return held, ""


def _held_bytes(prediction: predicted.PredictedMemory | None) -> int | None:
    if prediction is None:
        return None
    return prediction.phases["forward"].live_bytes - prediction.phases["cleared"].live_bytes


def peak_of(held: predicted.PredictedMemory | measured.MeasuredMemory) -> int:
    """The peak of the second step, with the workspace of kernels as far as it is known."""
    phases = [held.phases[name] for name in STEP]
    return max(getattr(each, "peak_bytes_with_scratch", None) or each.peak_bytes for each in phases)


def _unexplained_bytes(difference: int) -> str:
    """What the allocator gave out for the model beyond its tensors, or did not see of them."""
    if difference < 0:
        return f"{-difference:,} B of the model came from numpy or a file, which the allocator does not see"
    return f"besides parameters, buffers and inputs the factory keeps {difference:,} B" if difference else ""


def state_tensors(instance: Instance) -> list[Tensor]:
    """The tensors that the optimizer keeps from step to step."""
    return tensors_of(list(instance.optimizer.state.values()))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """numel × element_size, summed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of the storages that the tensors live in, each once: a gradient may be a part of a larger tensor and keep it."""
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


@contextmanager
def _fake_conversions() -> Iterator[None]:
    """Lets `module.to(...)` put converted parameters in the places of fake ones.

    Torch (2.13) would swap the two, which fails because a FakeTensorMode keeps references to them. A tied parameter
    stays tied. A parameter that an optimizer already has is replaced, and that optimizer is then refused as foreign.
    """
    converted: dict[int, tuple[weakref.ref[Any], nn.Parameter]] = {}

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            old, new = converted.get(id(parameter), (lambda: None, parameter))
            if old() is not parameter:
                with torch.no_grad():
                    value = fn(parameter)
                new = parameter if value is parameter else nn.Parameter(value, parameter.requires_grad)
                converted[id(parameter)] = weakref.ref(parameter), new
            self._parameters[name] = new
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    original = nn.Module._apply
    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]
        converted.clear()


@contextmanager
def _readable_initialisation() -> Iterator[None]:
    """Lets a factory build what torchvision, timm and Hugging Face build, where values are read before any step.

    The rates of stochastic depth are read off a `torch.linspace` or its pieces: FakeTensorMode can keep known values,
    but does so for literals only. Truncated normal weights are drawn again until none is outside (torch 2.13); a
    prediction does not depend on their values.
    """
    linspace, split, truncated = torch.linspace, Tensor.split, nn.init._no_grad_trunc_normal_

    def known_linspace(*args: Any, **kwargs: Any) -> Tensor:
        out = linspace(*args, **kwargs)
        if isinstance(out, FakeTensor):
            with unset_fake_temporarily():
                out.constant = linspace(*args, **{**kwargs, "device": "cpu"})
        return out

    def known_split(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        pieces = split(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        if isinstance(self, FakeTensor) and self.constant is not None:
            with unset_fake_temporarily():
                known = split(self.constant, *args, **kwargs)  # type: ignore[no-untyped-call]
            for piece, constant in zip(pieces, known, strict=True):
                piece.constant = constant
        return pieces

    def without_drawing(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else truncated(tensor, *args, **kwargs)

    torch.linspace, Tensor.split = known_linspace, known_split  # type: ignore[method-assign]
    nn.init._no_grad_trunc_normal_ = without_drawing
    try:
        yield
    finally:
        torch.linspace, Tensor.split = linspace, split  # type: ignore[method-assign]
        nn.init._no_grad_trunc_normal_ = truncated
