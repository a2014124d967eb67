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
from prooflops.model.factory import ModelError, error_text
from prooflops.model.step_memory import measured_steps, peak_of, predicted_memory
from prooflops.model.user_model import UserModel

# A step that is as large as a CPU's memory takes minutes, and starves others.
DEFAULT_CPU_LIMIT = 2**30
# Without a prediction no further size is tried after so long.
LONGEST_S = 60.0
# The gap between the largest size that fits and the smallest that does not, as a share.
CLOSE = 0.01
MOST_TRIALS = 24


@dataclass(frozen=True)
class Trial:
    """The peak of a training step of one size: predicted, measured, or both."""

    size: int
    predicted_bytes: int | None
    measured_bytes: int | None
    why_not: str = ""


@dataclass(frozen=True)
class Largest:
    """The sizes tried up to the largest that fits into `limit_bytes`, in ascending order.

    `limit_of` says whose limit it is. `found` is None where not even the first size fits;
    `next_larger` is the smallest that does not, None where the time ran out before.
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
    """Multiplies the argument of the factory until a step does not fit, then closes in."""
    limit_bytes, limit_of = memory_limit(user_model.device, limit)
    first = default_of(user_model, argument)
    trials: dict[int, Trial] = {}

    def predicted_peak(size: int) -> int | None:
        prediction, why_not = predicted_memory(of_size(user_model, argument, size))
        peak = peak_of(prediction) if prediction else None
        trials[size] = Trial(size, peak, None, why_not)
        return peak

    def measured_peak(size: int) -> int | None:
        trials[size] = measured_trial(user_model, argument, size)
        return trials[size].measured_bytes

    is_predicted = predicted_peak(first) is not None
    why_not = trials[first].why_not
    remark = ""
    if is_predicted:
        peak = functools.cache(predicted_peak)
        found, larger = largest(peak, first, limit_bytes, growth=64)
        if found is not None:
            measured = measured_trial(user_model, argument, found)
            trials[found] = replace(measured, predicted_bytes=trials[found].predicted_bytes)
    else:
        ends = time.monotonic() + LONGEST_S
        has_time = functools.partial(_is_before, ends)
        found, larger = largest(measured_peak, first, limit_bytes, 2, has_time)
        remark = why_not
        if larger is None:
            remark += f"; stopped after {LONGEST_S:.0f} s: a larger one may fit"
    rows = tuple(trials[size] for size in sorted(trials))
    return Largest(argument, limit_bytes, limit_of, rows, found, larger, is_predicted, remark)


def _is_before(moment: float) -> bool:
    return time.monotonic() < moment


def memory_limit(device: torch.device, limit: int | None) -> tuple[int, str]:
    """The bytes that a step may hold, and whose limit that is: at most half of a host's free
    memory.
    """
    free = machine.free_bytes(device)
    if device.type != "cpu":
        if limit:
            return limit, "--model-memory"
        return free or DEFAULT_CPU_LIMIT, f"free on {device}"
    wanted, why = DEFAULT_CPU_LIMIT, "the default of --model-memory on a CPU"
    if limit:
        wanted, why = limit, "--model-memory"
    if free is not None and wanted > free // 2:
        return free // 2, "half of the host's free memory"
    return wanted, why


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
    return replace(user_model, factory=factory, built=None)


def measured_trial(user_model: UserModel, argument: str, size: int) -> Trial:
    """The measured peak of two steps, or why there is none."""
    try:
        _, held = measured_steps(of_size(user_model, argument, size))
    except torch.OutOfMemoryError:
        return Trial(size, None, None, why_not="out of memory")
    except Exception as error:
        # The user's code may have a largest size of its own.
        return Trial(size, None, None, why_not=error_text(error))
    return Trial(size, None, peak_of(held))


def largest(
    peak: Callable[[int], int | None],
    first: int,
    limit: int,
    growth: int,
    more: Callable[[], bool] = lambda: True,
) -> tuple[int | None, int | None]:
    """The largest size found whose peak is within the limit, and the smallest found beyond it,
    CLOSE to one another.

    Each next size is where the line through two known peaks meets the limit, at most `growth` times
    the last one. A size without a peak does not fit.
    """
    # Sizes with their peaks.
    fits: list[tuple[int, int]] = []
    beyond: tuple[int, int | None] | None = None
    size = first
    for _ in range(MOST_TRIALS):
        found = peak(size)
        if found is not None and found <= limit:
            fits = [*fits, (size, found)][-2:]
        else:
            beyond = size, found
        if not fits:
            return None, size
        gap = None if beyond is None else beyond[0] - fits[-1][0]
        if (gap is not None and gap <= max(1, CLOSE * fits[-1][0])) or not more():
            break
        size = _next_size(fits, beyond, limit, growth)
    return fits[-1][0], beyond[0] if beyond else None


def _next_size(
    fits: list[tuple[int, int]], beyond: tuple[int, int | None] | None, limit: int, growth: int
) -> int:
    low, low_peak = fits[-1]
    end, end_peak = beyond or fits[0]
    if end_peak is None:
        return (low + end) // 2
    if end == low or end_peak == low_peak:
        return growth * low if len(fits) == 2 else 2 * low
    guess = low + int((limit - low_peak) * (end - low) / (end_peak - low_peak))
    below = beyond[0] - 1 if beyond else guess
    return max(min(guess, growth * low, below), low + 1)
