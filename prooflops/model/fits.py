"""The cards that a training step of a user's model fits on, predicted without the cards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from accounting.devices import ACCELERATORS
from accounting.devices.peaks import Accelerator
from accounting.units import with_unit
from prooflops.memory import Fit, PredictedMemory
from prooflops.memory.fits import Capability, Predictions
from prooflops.memory.search import LARGEST_TRIED
from prooflops.model.factory import ModelError, error_text
from prooflops.model.progress import Stages
from prooflops.model.remedy import Remedy, remedy_of
from prooflops.model.training import Training, trainings_of
from prooflops.model.user_model import Instance, UserModel, default_loss, tensors_of

USUAL_CARDS = tuple(
    ACCELERATORS[name]
    for name in (
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
)


@dataclass(frozen=True)
class FitRow:
    """The fit of a training on one card, and the largest value of each size that may grow.

    The value is 0 if not even one fits.
    """

    fit: Fit
    largest: Mapping[str, int]
    # The cheapest change with which it fits: None where it does, or where no change suffices.
    remedy: Remedy | None = None

    @property
    def reserves(self) -> str:
        """The bytes that the step reserves on the card, in words."""
        text = with_unit(self.fit.reserved_bytes, "B")
        return f"at least {text}" if self.fit.unknown else text

    @property
    def offers(self) -> str:
        """The memory that the card offers, in words."""
        return with_unit(self.fit.usable_bytes, "B")

    @property
    def answer(self) -> str:
        """The largest sizes that fit on the card, or else the change that makes the step fit."""
        bound = "at most " if self.fit.unknown else ""
        found = [
            f"largest {name} {'over ' if size == LARGEST_TRIED else bound}{size:,}"
            for name, size in self.largest.items()
            if size
        ]
        if self.fit.fits:
            verdict = "fits"
            if self.fit.spare_bytes < 0:
                verdict = f"{'may fit' if self.fit.unknown else 'fits'} if torch empties its cache"
            elif self.fit.unknown:
                left = with_unit(self.fit.spare_bytes, "B")
                verdict = f"fits if unknown workspace takes at most {left}"
            return "; ".join([verdict, *found])
        return "; ".join(["does not fit", *found, str(self.remedy or "no change suffices")])


@dataclass(frozen=True)
class Fits:
    """On which cards a training fits; what was asked and not predicted, and notes on the rest."""

    rows: tuple[FitRow, ...]
    not_predicted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Growing:
    """A size of a step that may grow up to a ceiling, and how a step of another size is made."""

    first: int
    of_size: Callable[[int], Instance]
    ceiling: int = LARGEST_TRIED


def growing_argument(user_model: UserModel, name: str, ceiling: int = LARGEST_TRIED) -> Growing:
    """An argument of the factory, whose default is a number. Raises ModelError for another one."""
    arguments = inspect.signature(user_model.factory).parameters
    sizes = {
        name: each.default
        for name, each in arguments.items()
        if type(each.default) is int and each.default > 0
    }
    if name not in sizes:
        valid = f"one of {', '.join(sizes)}" if sizes else "none: give it one, such as batch=8"
        raise ModelError(
            f"--model-largest {name}: must be an argument of {user_model.spec} with a number "
            f"as its default, {valid}"
        )

    def of_size(size: int) -> Instance:
        factory = partial(user_model.factory, **{name: size})
        return replace(user_model, factory=factory).build_without_values()

    return Growing(sizes[name], of_size, ceiling)


def growing_batch(instance: Instance) -> Growing | str:
    """The first dimension of the inputs, if all their tensors share it; else why it is unknown."""
    if instance.loss is not default_loss:
        return "largest batch not searched: a loss of your own may hold targets of this batch"
    given: Any = instance.arguments, instance.keywords
    batches = {len(each) if each.dim() else 0 for each in tensors_of(given)}
    if len(batches) > 1 or 0 in batches:
        return "largest batch not searched: the inputs have no first dimension in common"

    def resized(size: int, tensor: Tensor) -> Tensor:
        return torch.empty(size, *tensor.shape[1:], dtype=tensor.dtype, device="meta")

    def of_size(size: int) -> Instance:
        arguments, keywords = tree_map_only(Tensor, partial(resized, size), given)
        return replace(instance, arguments=arguments, keywords=keywords)

    return Growing(batches.pop(), of_size)


def fits_of(
    instance: Instance,
    cards: Sequence[Accelerator],
    growing: Mapping[str, Growing],
    stages: Stages | None = None,
) -> Fits:
    """Predicts the step for each card, and the largest value that fits of each size that may grow.

    Without such sizes it is the batch, unless the loss is the user's own and may hold targets.
    Where the step does not fit, the cheapest change that suffices is searched.
    """
    stages = stages or Stages(lambda _: None)

    def predictions(training: Training) -> Predictions:
        return Predictions(partial(_predicted, training, stages, "", lambda _: instance))

    by_training = {each: predictions(each) for each in trainings_of(instance)}
    as_it_is = by_training[Training()]
    try:
        fits = [as_it_is.fit(card) for card in cards]
    except Exception as error:
        # The user's code may do anything with a tensor without values.
        return Fits((), (f"not predicted: {error_text(error)}",))
    largest: list[dict[str, int]] = [{} for _ in cards]
    not_predicted: list[str] = []
    notes: list[str] = []
    sizes = dict(growing)
    if not growing:
        batch = growing_batch(instance)
        if isinstance(batch, Growing):
            sizes["batch"] = batch
        else:
            notes.append(batch)
    for name, size in sizes.items():
        grown = as_it_is.grown(
            partial(_predicted, Training(), stages, name, size.of_size), size.first
        )
        try:
            for card, found in zip(cards, largest, strict=True):
                found[name] = grown.largest(card, size.first, size.ceiling)
        except Exception as error:
            why_not = f"the largest {name} is not predicted: {error_text(error)}"
            (not_predicted if growing else notes).append(why_not)
    rows = []
    for card, fit, found in zip(cards, fits, largest, strict=True):
        remedy = None
        if not fit.fits:
            steps = {each: partial(known.of, card) for each, known in by_training.items()}
            remedy = remedy_of(steps, fit.usable_bytes)
        rows.append(FitRow(fit, found, remedy))
    return Fits(tuple(rows), tuple(not_predicted), tuple(notes))


def _predicted(
    training: Training,
    stages: Stages,
    name: str,
    of_size: Callable[[int], Instance],
    size: int,
    capability: Capability,
) -> PredictedMemory:
    step = f"{name} {size:,}" if name else "the step"
    how = "{}, {}, on compute capability {}.{}".format(step, training.name, *capability)
    with stages.stage(f"predicting {how}"):
        return training.step(of_size(size)).predict(compute_capability=capability)
