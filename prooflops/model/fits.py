"""Which cards a training step of a user's model fits on, predicted for cards that are not here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from accounting.devices import ACCELERATORS
from accounting.devices.peaks import Accelerator
from prooflops.model.factory import error_text
from prooflops.model.largest import default_of, of_size
from prooflops.model.progress import Stages
from prooflops.model.user_model import Instance, UserModel, instance_of
from prooflops.predicted import Fit, PredictedMemory, TrainingStep
from prooflops.predicted.fits import Capability, fits_of_sizes

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
class Fits:
    """Whether a training step fits on each card; `argument` of the factory is the one that may
    grow.
    """

    cards: tuple[Fit, ...]
    argument: str
    remark: str = ""

    @property
    def is_lower_bound(self) -> bool:
        return any(each.is_lower_bound for each in self.cards)


def fits_of(
    user_model: UserModel,
    instance: Instance,
    argument: str = "",
    cards: tuple[Accelerator, ...] = (),
    stages: Stages | None = None,
) -> Fits:
    """Predicts the step for each card; with an `argument`, also its largest value that fits.

    Models of other sizes are built without values.
    """
    if user_model.is_compiled:
        return Fits((), argument, "not predicted: compiled")
    chosen = cards or tuple(ACCELERATORS[label] for label in USUAL_CARDS)
    first = default_of(user_model, argument) if argument else 1
    told = stages or Stages(lambda _: None)

    def predict(size: int, capability: Capability) -> PredictedMemory:
        of_what = f"{argument} {size:,}" if argument else "the step"
        major, minor = capability
        with told.stage(f"predicting {of_what} on compute capability {major}.{minor}"):
            if size == first:
                return predicted_on_cuda(instance, capability)
            resized = without_values(of_size(user_model, argument, size))
            return predicted_on_cuda(resized, capability)

    try:
        found = fits_of_sizes(predict, first, chosen, largest=bool(argument))
    except Exception as error:
        # The user's code may do anything with a tensor without values.
        return Fits((), argument, f"not predicted: {error_text(error)}")
    return Fits(tuple(found), argument)


def predicted_on_cuda(instance: Instance, capability: Capability) -> PredictedMemory:
    """Two training steps on a card of this compute capability, which need not be here."""
    step = TrainingStep(
        _CalledWith(instance.module),
        (instance.arguments, instance.keywords),
        loss=instance.loss,
        optimizer=_like(instance.optimizer),
        device="cuda",
    )
    return step.predict(compute_capability=capability)


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
