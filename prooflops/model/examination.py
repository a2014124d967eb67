"""Every fact about a user's model: its bytes, its FLOPs, its memory, its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from accounting.devices.peaks import Accelerator
from prooflops.memory.copies import Copies
from prooflops.memory.fits import capability_of
from prooflops.model.breakdown import Breakdown, breakdown_of, breakdown_of_trace
from prooflops.model.factory import ModelError, error_text, naming
from prooflops.model.fake_step import FakeStep, fake_step
from prooflops.model.fits import Fits, Growing, fits_of
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.progress import Stages
from prooflops.model.step_memory import StepMemory, Trial, memory_of
from prooflops.model.step_time import MeasuredStep, overhead_s
from prooflops.model.training import optimizer_like
from prooflops.model.user_model import Instance, UserModel

COMPILED = (
    "counted as it is written; compiled, and only the compiler knows what its graphs keep and fuse"
)


@dataclass
class Examination:
    """The facts about a model; the time of a step comes last, from a benchmark."""

    user_model: UserModel
    instance: Instance
    memory: StepMemory | None
    flops: ExplainedFlops
    breakdown: Breakdown
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
    def tied(self) -> list[str]:
        """Further names of parameters that are counted once."""
        named = self.instance.module.named_parameters(remove_duplicate=False)
        return [name for name, _ in named if name not in self.instance.parameters]

    @property
    def is_measured(self) -> bool:
        """True if steps were run."""
        return self.breakdown.is_timed

    @property
    def unknown(self) -> str:
        """Why nothing is concluded of the step's time; empty where something is."""
        return self.step.why_unknown(self.breakdown) if self.step else ""

    @property
    def unanswered(self) -> list[str]:
        """Requested figures about memory that cannot be predicted, with the reason."""
        return [*self.fits.not_predicted] if self.fits else []

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
    growing: Mapping[str, Growing] | None = None,
    cards: Sequence[Accelerator] = (),
    notes: Sequence[str] = (),
) -> Examination:
    """Computes all facts but the time of a step.

    `cards` are those that a step may fit on, where the largest values of `growing` are searched.
    """
    user_model, instance = trial.user_model, trial.instance
    with stages.stage("predicting the memory of two steps"):
        predicted, why_not = _predicted(instance, user_model)
    with stages.stage("counting and timing each operator of a few steps"):
        breakdown, flops = breakdown_of(instance, user_model.device)
    return Examination(
        user_model,
        instance,
        memory_of(trial, predicted, why_not),
        flops,
        breakdown,
        _fits(user_model, instance, cards, growing or {}, stages),
        (*instance.notes, *notes),
    )


def examine_unrun(
    user_model: UserModel,
    made: Callable[[Copies], Instance],
    stages: Stages,
    cards: Sequence[Accelerator] = (),
) -> Examination:
    """The facts about the model that `made` copies, without running it.

    If a card is asked about, the step is predicted on it if possible.
    Raises ModelError where a step needs values.
    """
    is_compiled = user_model.is_compiled
    with naming(user_model.spec, user_model.option):
        try:
            with stages.stage("counting and predicting a step"):
                user_model, step, why_not = _step_on(cards, user_model, made)
        except ModelError:
            raise
        except Exception as error:
            # The user's code may read values, which a fake tensor lacks, or do anything else.
            raise ModelError(
                f"a step cannot be counted without running it: {error_text(error)}; measure=True "
                "runs a copy"
            ) from error
    instance = step.instance
    fits = Fits((), (why_not,)) if why_not else _fits(user_model, instance, cards, {}, stages)
    return Examination(
        user_model,
        instance,
        None if is_compiled else step.memory,
        step.trace.flops,
        breakdown_of_trace(instance, step.trace),
        fits,
        (*instance.notes, *([COMPILED] if is_compiled else [])),
    )


def _step_on(
    cards: Sequence[Accelerator], user_model: UserModel, made: Callable[[Copies], Instance]
) -> tuple[UserModel, FakeStep, str]:
    """The model on the card, or on its own device, its step there, and why not on the card."""
    why_not = ""
    if cards:
        on_card = replace(user_model, device=torch.device("cuda"))
        capability = capability_of(cards[0])
        try:
            return on_card, fake_step(made, on_card.device, capability=capability), ""
        except Exception as error:
            # A card lacks what only its kernels know, and refuses what the code leaves on the CPU.
            if user_model.device.type == "cuda":
                raise
            why_not = f"{cards[0].label}: not predicted: {error_text(error)}"
    return user_model, fake_step(made, user_model.device), why_not


def _predicted(instance: Instance, user_model: UserModel) -> tuple[StepMemory | None, str]:
    """The memory of a later step on fake copies, or None and why there is none."""
    if user_model.is_compiled:
        return None, "not predicted: compiled, and only the compiler knows what its graphs keep"

    def copied(copies: Copies) -> Instance:
        module = copies.module(instance.module)
        arguments, keywords = copies.tree((instance.arguments, instance.keywords))
        optimizer = optimizer_like(instance.optimizer, instance.module)(module.parameters())
        return replace(
            instance, module=module, arguments=arguments, keywords=keywords, optimizer=optimizer
        )

    try:
        return fake_step(copied, user_model.device, workspaces=False).memory, ""
    except Exception as error:
        # The user's code may read values, which a fake tensor lacks, or do anything else.
        return None, f"not predicted: {error_text(error)}"


def _fits(
    user_model: UserModel,
    instance: Instance,
    cards: Sequence[Accelerator],
    growing: Mapping[str, Growing],
    stages: Stages,
) -> Fits | None:
    if not cards:
        return None
    if user_model.is_compiled:
        return Fits((), ("not predicted: compiled",))
    with stages.stage("predicting which cards it fits on"):
        return fits_of(instance, cards, growing, stages)
