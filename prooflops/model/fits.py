"""Which cards a training step of a user's model fits on, predicted for cards that are not here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from accounting.devices import ROWS, device_called, memory_bytes
from accounting.devices.peaks import Accelerator
from prooflops import predicted
from prooflops.model.factory import error_text
from prooflops.model.largest import default_of, largest, of_size
from prooflops.model.user_model import Instance, UserModel, instance_of
from prooflops.predicted.fits import usable_bytes as offered_bytes

# Cards that people ask about; any other of the tables is asked for by its name.
USUAL_CARDS = (
    "RTX 3090",
    "RTX 4090",
    "RTX 5090",
    "L4",
    "L40S",
    "A100 SXM4 40GB",
    "A100 SXM4 80GB",
    "H100 SXM5 80GB",
    "H200 SXM 141GB",
    "B200",
)


@dataclass(frozen=True)
class CardFit:
    """A card, the bytes that the allocator will reserve there at the peak, and the largest size
    that fits.

    `largest` is None where no argument of the factory was named, 0 where not even one fits.
    """

    card: str
    usable_bytes: int
    reserved_bytes: int
    largest: int | None

    @property
    def spare_bytes(self) -> int:
        return self.usable_bytes - self.reserved_bytes


@dataclass(frozen=True)
class Fits:
    """Whether a training step fits on each card; `argument` of the factory is the one that may
    grow.
    """

    cards: tuple[CardFit, ...]
    argument: str
    is_lower_bound: bool
    remark: str = ""


def fits_of(
    user_model: UserModel,
    instance: Instance,
    argument: str = "",
    cards: tuple[Accelerator, ...] = (),
) -> Fits:
    """Predicts the step for each card; equal compute capabilities share a prediction.

    With an `argument`, its largest value is looked for, by models built without values.
    """
    if user_model.is_compiled:
        return Fits((), argument, False, "not predicted: compiled")
    by_label = {row.label: row for row in ROWS}
    chosen = cards or tuple(by_label[label] for label in USUAL_CARDS)
    bounds: set[bool] = set()

    @functools.cache
    def reserved(size: int | None, arch: str) -> int:
        of = instance if size is None else without_values(of_size(user_model, argument, size))
        held = predicted_on_cuda(of, arch)
        bounds.add(held.is_lower_bound)
        return held.reserved_peak_bytes or 0

    rows = []
    try:
        for card in chosen:
            usable = usable_bytes(card)
            found = None
            if argument:
                peak = functools.partial(reserved, arch=card.arch)
                found = _largest(peak, default_of(user_model, argument), usable)
            rows.append(CardFit(card.label, usable, reserved(None, card.arch), found))
    except Exception as error:
        # The user's code may do anything with a tensor without values.
        return Fits((), argument, False, f"not predicted: {error_text(error)}")
    return Fits(tuple(rows), argument, True in bounds)


def _largest(peak: Callable[[int], int], first: int, usable: int) -> int:
    """The largest size that fits, from 1 on where the factory's own is too large; 0 where none
    does.
    """
    start = first if peak(first) <= usable else 1
    found, _ = largest(peak, start, usable, growth=64)
    return found or 0


def cuda_card(device: str) -> Accelerator:
    """The card of this name. Raises ValueError for one of which nothing can be predicted."""
    card = device_called(device)
    if not card.arch.partition(".")[0].isdigit():
        known = ", ".join(USUAL_CARDS)
        raise ValueError(
            f"device must be of CUDA, whose kernels are modelled, such as {known}, got {card.label}"
        )
    usable_bytes(card)
    return card


def usable_bytes(card: Accelerator) -> int:
    """What a process can allocate: the card's memory as torch sees it, less the context."""
    if memory_bytes(card) is None:
        raise ValueError(f"device must have one size of memory on record, got {card.label}")
    return offered_bytes(card.label)


def predicted_on_cuda(instance: Instance, arch: str) -> predicted.PredictedMemory:
    """Two training steps on a card of this compute capability, which need not be here."""
    major, minor = map(int, arch.split("."))
    step = predicted.TrainingStep(
        _CalledWith(instance.module),
        (instance.arguments, instance.keywords),
        loss=instance.loss,
        optimizer=_like(instance.optimizer),
        device="cuda",
    )
    return step.predict(compute_capability=(major, minor))


class _CalledWith(nn.Module):
    """The module, called with positional and keyword arguments given as two inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.module(*arguments, **keywords)


def _like(optimizer: torch.optim.Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """Makes an optimizer of the same class and defaults over other parameters."""
    kind = type(optimizer)
    known = signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in known}
    return functools.partial(kind, **options)


def without_values(user_model: UserModel) -> Instance:
    """A model on the meta device, which takes neither memory nor time."""
    with torch.device("meta"):
        return instance_of(replace(user_model, device=torch.device("meta")))
