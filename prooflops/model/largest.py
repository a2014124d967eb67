"""The largest batch (or length, or another size) whose training step fits into the memory.

It is predicted on fake tensors, and the found size is then measured once.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace

import torch

from prooflops.machine import device as machine
from prooflops.memory.search import largest_size
from prooflops.model.factory import ModelError, error_text
from prooflops.model.step_memory import (
    measured_peak,
    measured_steps,
    predicted_peak,
    prediction_of,
)
from prooflops.model.user_model import UserModel

# A step that is as large as a CPU's memory takes minutes, and starves others.
DEFAULT_CPU_LIMIT = 2**30
LARGEST_GAP = 0.01


@dataclass(frozen=True)
class Trial:
    """The peak of a training step of one size: predicted, measured, or both."""

    size: int
    predicted_bytes: int | None
    measured_bytes: int | None
    why_not: str = ""

    @property
    def peak_bytes(self) -> int | None:
        return self.predicted_bytes if self.measured_bytes is None else self.measured_bytes


@dataclass(frozen=True)
class Largest:
    """The sizes tried up to the largest that fits into `limit_bytes`, in ascending order.

    `limit_of` says whose limit it is. `found` is None where no size that was tried fits;
    `next_larger` is the smallest that does not, None where none was found. Both are None where
    nothing can be predicted.
    """

    argument: str
    limit_bytes: int
    limit_of: str
    trials: tuple[Trial, ...]
    found: int | None
    next_larger: int | None

    @property
    def is_predicted(self) -> bool:
        return any(each.predicted_bytes is not None for each in self.trials)


def largest_of(user_model: UserModel, argument: str, limit: int | None = None) -> Largest:
    """The largest value of the factory's argument whose step fits, to a hundredth."""
    limit_bytes, limit_of = memory_limit(user_model.device, limit)
    first = default_of(user_model, argument)
    trials: dict[int, Trial] = {}

    def tried(size: int) -> tuple[int | None, bool]:
        if size not in trials:
            trials[size] = predicted_trial(of_size(user_model, argument, size), size)
        peak = trials[size].predicted_bytes
        return peak, peak is not None and peak <= limit_bytes

    found, beyond = 0, 0
    if tried(first)[0] is not None:
        found, beyond = largest_size(tried, first, limit_bytes, close=LARGEST_GAP)
    if found:
        measured = measured_trial(of_size(user_model, argument, found), found)
        trials[found] = replace(measured, predicted_bytes=trials[found].predicted_bytes)
    rows = tuple(trials[size] for size in sorted(trials))
    larger = beyond if beyond in trials else None
    return Largest(argument, limit_bytes, limit_of, rows, found or None, larger)


def memory_limit(device: torch.device, limit: int | None) -> tuple[int, str]:
    """The bytes that a step may hold, and whose limit that is.

    It is at most half of a host's free memory.
    """
    free = machine.free_bytes(device)
    if device.type != "cpu":
        return (
            (limit, "--model-memory") if limit else (free or DEFAULT_CPU_LIMIT, f"free on {device}")
        )
    if free is not None and (limit or DEFAULT_CPU_LIMIT) > free // 2:
        return free // 2, "half of the host's free memory"
    if limit:
        return limit, "--model-memory"
    return DEFAULT_CPU_LIMIT, "the default of --model-memory on a CPU"


def default_of(user_model: UserModel, argument: str) -> int:
    """The size that the factory itself chooses.

    Raises ModelError if it takes no such argument.
    """
    arguments = inspect.signature(user_model.factory).parameters
    sizes = [
        name for name, each in arguments.items() if type(each.default) is int and each.default > 0
    ]
    if argument not in sizes:
        valid = "none: give it one, such as def factory(batch=8)"
        if sizes:
            valid = f"one of {', '.join(sizes)}"
        raise ModelError(
            f"--model-largest {argument}: must be an argument of {user_model.spec} with a number "
            f"as its default, {valid}"
        )
    return int(arguments[argument].default)


def of_size(user_model: UserModel, argument: str, size: int) -> UserModel:
    factory = functools.partial(user_model.factory, **{argument: size})
    return replace(user_model, factory=factory)


def predicted_trial(user_model: UserModel, size: int) -> Trial:
    try:
        instance = user_model.build_without_values()
    except Exception as error:
        # The user's code may do anything with a tensor without values.
        return Trial(size, None, None, f"not predicted: {error_text(error)}")
    held, why_not = prediction_of(instance, user_model.device, is_compiled=user_model.is_compiled)
    return Trial(size, predicted_peak(held) if held else None, None, why_not)


def measured_trial(user_model: UserModel, size: int) -> Trial:
    """The measured peak of two steps, or why there is none."""
    try:
        _, held = measured_steps(user_model)
    except Exception as error:
        # The user's code may have a largest size of its own, or the device too little memory.
        return Trial(size, None, None, why_not=error_text(error))
    return Trial(size, None, measured_peak(held))
