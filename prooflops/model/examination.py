"""Every fact about a user's model: its bytes, its FLOPs, its memory, its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accounting.devices.peaks import Accelerator
from prooflops.model.breakdown import Breakdown, breakdown_of
from prooflops.model.claims import Answer, answers_of
from prooflops.model.fits import Fits, fits_of
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.inventory import Inventory, inventory_of
from prooflops.model.largest import Largest, largest_of
from prooflops.model.progress import Stages
from prooflops.model.step_memory import StepMemory, Trial, memory_of
from prooflops.model.step_time import MeasuredStep, overhead_s
from prooflops.model.user_model import Instance, UserModel


@dataclass
class Examination:
    """The facts about a model; the time of a step comes last, from a benchmark."""

    user_model: UserModel
    instance: Instance
    inventory: Inventory
    memory: StepMemory | None
    flops: ExplainedFlops
    breakdown: Breakdown
    largest: tuple[Largest, ...] = ()
    fits: Fits | None = None
    notes: tuple[str, ...] = ()
    step: MeasuredStep | None = None

    @property
    def model(self) -> str:
        """The model in a line."""
        kind, optimizer = (
            type(self.instance.module).__name__,
            type(self.instance.optimizer).__name__,
        )
        spec = self.user_model.spec
        name = kind if spec == kind else f"{spec} = {kind}"
        return f"{name} with {optimizer}, on {self.user_model.device}"

    @property
    def is_measured(self) -> bool:
        """Whether steps were run."""
        return bool(self.breakdown.phases_s)

    @property
    def unknown(self) -> str:
        """Why nothing is concluded of the step's time; empty where something is."""
        return self.step.why_unknown(self.breakdown) if self.step else ""

    @property
    def unanswered(self) -> list[str]:
        """Requested figures about memory that cannot be predicted, with the reason."""
        found = [
            f"the largest {each.argument} that fits, {each.trials[0].why_not}"
            for each in self.largest
            if not each.is_predicted
        ]
        if self.fits and not self.fits.rows:
            found.append(f"the cards that it fits on, {'; '.join(self.fits.remarks)}")
        return found

    @property
    def is_apart(self) -> bool:
        """Whether the phases of the step, timed apart, do not add up to it."""
        return bool(self.step and self.step.is_apart(self.breakdown))

    @property
    def answers(self) -> list[Answer]:
        """The answers of claims of the registry for this model."""
        step = None if self.unknown else self.step
        instance = self.instance if self.is_measured else None
        return answers_of(instance, self.inventory, self.memory, self.flops, step)

    def record_step(self, **figures: Any) -> MeasuredStep:
        """Keeps the time of a step, with the fields of `MeasuredStep` that a benchmark knows.

        Measured again, a step replaces the one before.
        """
        overhead = overhead_s(self.user_model.device)
        self.step = MeasuredStep(self.flops, overhead_s=overhead, **figures)
        return self.step


def examine(
    trial: Trial,
    stages: Stages,
    *,
    arguments: Sequence[str] = (),
    limit: int | None = None,
    cards: Sequence[Accelerator] = (),
    choices: bool = False,
    notes: Sequence[str] = (),
) -> Examination:
    """Computes all facts but the time of a step.

    `arguments` of the factory are those whose largest values are searched, within `limit` bytes or
    those free. `cards` are those that a step may fit on, `choices` adds other trainings there.
    """
    user_model, instance = trial.user_model, trial.instance
    with stages.stage("predicting the memory of two steps"):
        memory = memory_of(trial)
    with stages.stage("counting and timing each operator of a few steps"):
        breakdown, flops = breakdown_of(
            instance, user_model.device, is_compiled=user_model.is_compiled
        )
    largest = []
    for argument in arguments:
        with stages.stage(f"searching the largest {argument} that fits"):
            largest.append(largest_of(user_model, argument, limit))
    fits = None
    if cards:
        with stages.stage("predicting which cards it fits on"):
            fits = fits_of(user_model, instance, arguments, cards, choices=choices, stages=stages)
    return Examination(
        user_model,
        instance,
        inventory_of(instance.module),
        memory,
        flops,
        breakdown,
        tuple(largest),
        fits,
        (*instance.notes, *notes),
    )
