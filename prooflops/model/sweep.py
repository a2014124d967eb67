"""The largest batch (or length, or another size) whose training step fits into the memory: predicted, and found."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from prooflops import measured
from prooflops.machine import device as machine
from prooflops.model.factory import ModelError, error_text
from prooflops.model.step_memory import measured_steps, peak_of, predicted_memory
from prooflops.model.user_model import UserModel

DEFAULT_CPU_LIMIT = (
    2**30
)  # a step that is as large as a CPU's memory takes minutes, and starves others
LONGEST_S = (
    60.0  # no further size is tried after a step of this, warm-up and memory's measurement included
)
CLOSE = (
    0.01  # the gap between the largest size that fits and the smallest that does not, as a share
)
MOST_TRIALS = 24


@dataclass(frozen=True)
class Trial:
    """A training step of one size; without `measured_bytes` it did not run."""

    size: int
    predicted_bytes: int | None
    measured_bytes: int | None
    seconds: float | None = None  # of a step; None where it did not fit
    tokens: int = 0
    unit: str = ""  # of the tokens
    why_not: str = ""


@dataclass(frozen=True)
class Sweep:
    """The sizes tried up to the largest that fits into `limit_bytes`, in ascending order."""

    argument: str
    limit_bytes: int
    limit_of: str  # whose limit it is
    unit: str
    trials: tuple[Trial, ...]
    found: int | None  # the largest that fits; None where not even the first one did
    next_larger: int | None  # the smallest that does not; None where the time ran out before
    predicted: int | None
    remark: str = ""


def sweep_of(user_model: UserModel, argument: str, limit: int | None = None) -> Sweep:
    """Multiplies the argument of the factory until a step does not fit, then closes in on the largest that does.

    The prediction is made first, on fake tensors; no step is taken of a size a quarter above the predicted one.
    """
    limit_bytes, limit_of = memory_limit(user_model.device, limit)
    first = default_of(user_model, argument)
    remarks: dict[str, None] = {}
    trials: dict[int, Trial] = {}

    @functools.cache
    def predicted_peak(size: int) -> int | None:
        prediction, why_not = predicted_memory(of_size(user_model, argument, size))
        if why_not:
            remarks[why_not] = None
        return peak_of(prediction) if prediction else None

    def measured_peak(size: int) -> int | None:
        if predicted is not None and size > 1.25 * predicted:
            return None
        expected = predicted_peak(size)
        if predicted is not None and expected is None:
            return None
        trials[size] = tried(user_model, argument, size, expected, limit_bytes)
        return trials[size].measured_bytes

    predicted, _ = largest(predicted_peak, first, limit_bytes, growth=64)
    ends = time.monotonic() + LONGEST_S
    growth = (
        2 if predicted is None else 8
    )  # a prediction keeps steps that are far too large from being tried
    found, larger = largest(
        measured_peak, first, limit_bytes, growth, lambda: time.monotonic() < ends
    )
    if larger is None:
        remarks[f"stopped after {LONGEST_S:.0f} s: a larger one may fit"] = None
    rows = tuple(trials[size] for size in sorted(trials))
    unit = next((trial.unit for trial in rows if trial.unit), "")  # none if not even the first fits
    return Sweep(
        argument, limit_bytes, limit_of, unit, rows, found, larger, predicted, "; ".join(remarks)
    )


def memory_limit(device: torch.device, limit: int | None) -> tuple[int, str]:
    """The bytes that a step may hold, and whose limit that is: at most half of a host's free memory."""
    free = machine.free_bytes(device)
    if device.type != "cpu":
        return (
            (limit, "--model-memory") if limit else (free or DEFAULT_CPU_LIMIT, f"free on {device}")
        )
    wanted, why = (
        (limit, "--model-memory")
        if limit
        else (DEFAULT_CPU_LIMIT, "the default of --model-memory on a CPU")
    )
    if free is not None and wanted > free // 2:
        return free // 2, "half of the host's free memory"
    return wanted, why


def default_of(user_model: UserModel, argument: str) -> int:
    """The size that the factory itself chooses. Raises ModelError where it takes no such argument."""
    arguments = inspect.signature(user_model.factory).parameters
    sizes = [
        name for name, each in arguments.items() if type(each.default) is int and each.default > 0
    ]
    if argument not in sizes:
        valid = (
            f"one of {', '.join(sizes)}"
            if sizes
            else "none: give it one, such as def factory(batch=8)"
        )
        raise ModelError(
            f"--model-sweep {argument}: must be an argument of {user_model.spec} with a number as its default, {valid}"
        )
    return int(arguments[argument].default)


def of_size(user_model: UserModel, argument: str, size: int) -> UserModel:
    return replace(user_model, factory=functools.partial(user_model.factory, **{argument: size}))


def tried(
    user_model: UserModel, argument: str, size: int, expected: int | None, limit: int
) -> Trial:
    """Measures the memory of two steps, then the time of the faster of two more."""
    model = of_size(user_model, argument, size)
    try:
        measured_bytes = peak_of(measured_steps(model)[1])
        if measured_bytes > limit:
            return Trial(size, expected, measured_bytes)
        instance = model.fresh()
        seconds = min(measured.time(instance.step, model.device, warmup=1, rounds=2).times_s)
        return Trial(size, expected, measured_bytes, seconds, *instance.tokens)
    except torch.OutOfMemoryError:
        return Trial(size, expected, None, why_not="out of memory")
    except Exception as error:  # the user's code may have a largest size of its own
        return Trial(size, expected, None, why_not=error_text(error))


def largest(
    peak: Callable[[int], int | None],
    first: int,
    limit: int,
    growth: int,
    more: Callable[[], bool] = lambda: True,
) -> tuple[int | None, int | None]:
    """The largest size found whose peak is within the limit, and the smallest found beyond it, CLOSE to one another.

    Each next size is where the line through two known peaks meets the limit, at most `growth` times the last one. A
    size without a peak does not fit.
    """
    fits: list[tuple[int, int]] = []  # (size, peak)
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
    return max(min(guess, growth * low, (beyond[0] if beyond else guess + 1) - 1), low + 1)
