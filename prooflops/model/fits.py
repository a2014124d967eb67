"""Which cards a training step of a user's model fits on, predicted for cards that are not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from accounting.devices import ACCELERATORS
from accounting.devices.peaks import Accelerator
from prooflops.memory import Fit, PredictedMemory
from prooflops.memory.fits import Capability, Predictions, fits_of_sizes
from prooflops.memory.search import LARGEST_TRIED
from prooflops.model.factory import error_text
from prooflops.model.largest import default_of, of_size
from prooflops.model.progress import Stages
from prooflops.model.remedy import Remedy, remedy_of
from prooflops.model.training import Training, choices_of
from prooflops.model.user_model import Instance, UserModel

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
    """Whether one kind of training fits on one card, and the largest value of each argument that
    may grow; 0 where not even one fits.
    """

    training: str
    fit: Fit
    largest: Mapping[str, int]
    # The cheapest change with which it fits: None where it does, or where no change suffices.
    remedy: Remedy | None = None

    @property
    def answer(self) -> str:
        """Whether the step fits, the largest sizes that do, and else what makes it fit."""
        found = [f"largest {name} {size:,}" for name, size in self.largest.items() if size]
        if self.fit.fits:
            verdict = "fits" if self.fit.spare_bytes >= 0 else "fits, emptying the cache"
            return "; ".join([verdict, *found])
        why = "may fit" if self.fit.may_fit else "does not fit"
        return "; ".join([why, *found, str(self.remedy or "no change suffices")])

    @property
    def has_changes(self) -> bool:
        """Whether the training is another than the factory's."""
        return self.training != Training.name


@dataclass(frozen=True)
class Fits:
    """Which trainings fit on which cards, and remarks that say why some are missing.

    The `arguments` of the factory are those that may grow.
    """

    rows: tuple[FitRow, ...]
    arguments: Sequence[str]
    remarks: tuple[str, ...] = ()


def fits_of(
    user_model: UserModel,
    instance: Instance,
    arguments: Sequence[str],
    cards: Sequence[Accelerator],
    *,
    choices: bool = False,
    ceilings: Mapping[str, int] | None = None,
    stages: Stages | None = None,
) -> Fits:
    """Predicts the step for each card; with `arguments`, also the largest value of each that fits,
    up to its ceiling where it has one. `choices` are the trainings of `choices_of`.

    Models of other sizes are built without values.
    """
    if user_model.is_compiled:
        return Fits((), arguments, ("not predicted: compiled",))
    rows: list[FitRow] = []
    remarks = []
    stages = stages or Stages(lambda _: None)
    searches = [
        _Search(user_model, instance, training, stages) for training in choices_of(instance)
    ]
    for search in searches if choices else searches[:1]:
        try:
            rows += search.rows(arguments, cards, ceilings or {})
        except Exception as error:
            # The user's code may do anything with a tensor without values.
            of_what = f"{search.training.name}: " if choices else ""
            remarks.append(f"{of_what}not predicted: {error_text(error)}")
    as_it_is = [row for row in rows if not row.has_changes]
    for place, card in enumerate(cards[: len(as_it_is)]):
        if not rows[place].fit.fits:
            ways = {search.training: partial(search.ways, card) for search in searches}
            rows[place] = replace(rows[place], remedy=remedy_of(ways, rows[place].fit.usable_bytes))
    return Fits(tuple(rows), tuple(arguments), tuple(remarks))


@dataclass(frozen=True)
class _Search:
    """The predictions of one kind of training, in the sizes of one argument at a time."""

    user_model: UserModel
    instance: Instance
    training: Training
    stages: Stages
    as_built: dict[tuple[Any, ...], PredictedMemory] = field(default_factory=dict)

    def ways(self, card: Accelerator) -> tuple[PredictedMemory, ...]:
        """The step as the factory gives it, as each torch of `Predictions` runs it on the card."""
        return Predictions(partial(self.predict, "")).of(card, 1)

    def rows(
        self,
        arguments: Sequence[str],
        cards: Sequence[Accelerator],
        ceilings: Mapping[str, int],
    ) -> list[FitRow]:
        fits = fits_of_sizes(partial(self.predict, ""), 1, cards, largest=False)
        largest: dict[str, list[Fit]] = {}
        for name in arguments:
            first = default_of(self.user_model, name)
            ceiling = ceilings.get(name, LARGEST_TRIED)
            predict = partial(self.predict, name)
            largest[name] = fits_of_sizes(predict, first, cards, largest=True, ceiling=ceiling)
        found = []
        for place, fit in enumerate(fits):
            sizes = {name: of_cards[place].largest or 0 for name, of_cards in largest.items()}
            found.append(FitRow(self.training.name, fit, sizes))
        return found

    def predict(
        self, argument: str, size: int, capability: Capability, **options: bool
    ) -> PredictedMemory:
        of_what = f"{argument} {size:,}" if argument else "the step"
        how = "{}, {}, on compute capability {}.{}".format(of_what, self.training.name, *capability)
        with self.stages.stage(f"predicting {how}"):
            if not argument or size == default_of(self.user_model, argument):
                key = (capability, *options)
                if key not in self.as_built:
                    self.as_built[key] = self._predicted(self.instance, capability, options)
                return self.as_built[key]
            resized = of_size(self.user_model, argument, size).build_without_values()
            return self._predicted(resized, capability, options)

    def _predicted(
        self, instance: Instance, capability: Capability, options: Mapping[str, bool]
    ) -> PredictedMemory:
        return self.training.step(instance).predict(compute_capability=capability, **options)
