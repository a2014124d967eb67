"""The largest batch (or length, or another size) whose training step fits into the memory.

It is predicted on fake tensors, and the found size is then measured once. A model that cannot be
predicted is measured instead, at growing sizes.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
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
LONGEST_MEASURING_S = 60.0
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
    `next_larger` is the smallest that does not, None where none was found.
    """

    argument: str
    limit_bytes: int
    limit_of: str
    trials: tuple[Trial, ...]
    found: int | None
    next_larger: int | None
    is_predicted: bool
    remark: str = ""


def largest_of(user_model: UserModel, argument: str, limit: int | None = None) -> Largest:
    """The largest value of the factory's argument whose step fits, to a hundredth."""
    limit_bytes, limit_of = memory_limit(user_model.device, limit)
    first = default_of(user_model, argument)
    trials: dict[int, Trial] = {}

    def tried(trial_of: Callable[[UserModel, int], Trial], size: int) -> tuple[int | None, bool]:
        if size not in trials:
            trials[size] = trial_of(of_size(user_model, argument, size), size)
        peak = trials[size].peak_bytes
        return peak, peak is not None and peak <= limit_bytes

    predicted = functools.partial(tried, predicted_trial)
    is_predicted = predicted(first)[0] is not None
    remark = trials[first].why_not
    if is_predicted:
        found, beyond = largest_size(predicted, first, limit_bytes, close=LARGEST_GAP)
        if found:
            measured = measured_trial(of_size(user_model, argument, found), found)
            trials[found] = replace(measured, predicted_bytes=trials[found].predicted_bytes)
    else:
        del trials[first]
        ends = time.monotonic() + LONGEST_MEASURING_S
        measured_sizes = functools.partial(tried, measured_trial)
        found, beyond = largest_size(
            measured_sizes,
            first,
            limit_bytes,
            growth=2,
            close=LARGEST_GAP,
            more=lambda: time.monotonic() < ends,
        )
        if beyond not in trials:
            remark += f"; stopped after {LONGEST_MEASURING_S:.0f} s: a larger one may fit"
    rows = tuple(trials[size] for size in sorted(trials))
    larger = beyond if beyond in trials else None
    return Largest(
        argument, limit_bytes, limit_of, rows, found or None, larger, is_predicted, remark
    )


def memory_limit(device: torch.device, limit: int | None) -> tuple[int, str]:
    """The bytes that a step may hold, and whose limit that is: at most half of a host's free
    memory.
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
    """The size that the factory itself chooses. Raises ModelError where it takes no such
    argument.
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
    except torch.OutOfMemoryError:
        return Trial(size, None, None, why_not="out of memory")
    except Exception as error:
        # The user's code may have a largest size of its own.
        return Trial(size, None, None, why_not=error_text(error))
    return Trial(size, None, measured_peak(held))
