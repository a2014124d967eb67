"""The facts about a user's model: its bytes, its FLOPs, its memory, its time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from accounting.devices.peaks import Accelerator
from accounting.roofline import hfu, mfu, ridge_point
from prooflops import timing
from prooflops.counted.counter import uncompiled
from prooflops.model.breakdown import Breakdown, CountedStep, breakdown_of, counted_step
from prooflops.model.claims import Answer
from prooflops.model.fits import Fits, fits_of
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.largest import Largest, largest_of
from prooflops.model.progress import Stages
from prooflops.model.step_memory import StepMemory, bytes_of, memory_of, storage_bytes_of
from prooflops.model.user_model import Instance, UserModel
from prooflops.suite.page.measurement import CONTENDED, WIDEST_SPREAD
from prooflops_gate.console.tables import engineering


@dataclass(frozen=True)
class TensorGroup:
    """The tensors of one role and dtype."""

    role: str  # trained, frozen, buffer
    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """The parameters and buffers of a module, each tensor once.

    `tied` are further names of parameters that are counted already. Storages take more bytes than
    their tensors where one is a part of a larger one.
    """

    groups: tuple[TensorGroup, ...]
    tied: tuple[str, ...]
    storage_bytes: int

    @property
    def parameters(self) -> int:
        return sum(each.elements for each in self.groups if each.role != "buffer")

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.groups)


def inventory_of(module: torch.nn.Module) -> Inventory:
    """Parameters and buffers by role and dtype."""
    found: defaultdict[tuple[str, str], list[Tensor]] = defaultdict(list)
    roles = [("trained" if each.requires_grad else "frozen", each) for each in module.parameters()]
    for role, tensor in [*roles, *(("buffer", each) for each in module.buffers())]:
        found[role, str(tensor.dtype).removeprefix("torch.")].append(tensor)
    first = {name for name, _ in module.named_parameters()}
    return Inventory(
        groups=tuple(
            TensorGroup(
                role, dtype, len(tensors), sum(each.numel() for each in tensors), bytes_of(tensors)
            )
            for (role, dtype), tensors in found.items()
        ),
        tied=tuple(
            name for name, _ in module.named_parameters(remove_duplicate=False) if name not in first
        ),
        storage_bytes=storage_bytes_of([*module.parameters(), *module.buffers()]),
    )


OVERHEAD = "overhead"
CHAIN = 50  # operators, timed together


@dataclass(frozen=True)
class MeasuredStep:
    """One training step by the device's clock, and the least times of its FLOPs, its bytes and its
    operators.

    By rates of this machine, measured in this run and stated by its vendor, per dtype of the
    products. `spread` is the middle half of the rounds, as a share of the median; `overhead_s` that
    of one operator on a handful of elements, autograd included; `labels` say what disturbed it, see
    `prooflops.machine.conditions`.
    """

    flops: ExplainedFlops
    seconds: float
    spread: float
    rounds: int
    peak_flop_per_s: Mapping[str, float | None]
    ceiling_flop_per_s: Mapping[str, float | None]
    bytes_per_s: float
    overhead_s: float
    labels: tuple[str, ...] = ()

    @property
    def per_s(self) -> float:
        """Tokens or examples per second."""
        return self.flops.tokens / self.seconds

    @property
    def mfu(self) -> float | None:
        """The FLOPs that the mathematics needs, against the vendor's peak; None if none is on
        record.
        """
        return mfu(self.flops.model, self.seconds, self._rate(self.peak_flop_per_s))

    @property
    def hfu(self) -> float | None:
        """All FLOPs that were executed, against the vendor's peak."""
        return hfu(
            self.flops.model, self.flops.recomputed, self.seconds, self._rate(self.peak_flop_per_s)
        )

    @property
    def mfu_of_ceiling(self) -> float | None:
        """The FLOPs that the mathematics needs, against this machine's own best measured rate."""
        return mfu(self.flops.model, self.seconds, self._ceiling)

    @property
    def share_of_ceiling(self) -> float | None:
        """All FLOPs that were executed, against this machine's own best measured rate: the HFU of
        that rate.
        """
        return hfu(self.flops.model, self.flops.recomputed, self.seconds, self._ceiling)

    @property
    def _ceiling(self) -> float | None:
        return self._rate(self.ceiling_flop_per_s)

    def _rate(self, per_dtype: Mapping[str, float | None]) -> float | None:
        """The rate of products of several dtypes one after the other: the FLOPs over the sum of
        their times.
        """
        seconds = 0.0
        for dtype, flops in self.flops.by_dtype.items():
            rate = per_dtype.get(dtype)
            if rate is None:
                return None
            seconds += flops / rate
        return self.flops.executed / seconds if seconds else None

    @property
    def intensity(self) -> float:
        """FLOPs per byte, every tensor read and written by every operator: as if nothing were fused
        or cached.
        """
        return self.flops.executed / max(self.flops.moved_bytes, 1)

    @property
    def ridge(self) -> float | None:
        """The intensity at which this machine's own two ceilings meet."""
        return None if self._ceiling is None else ridge_point(self._ceiling, self.bytes_per_s)

    @property
    def least_times_s(self) -> dict[str, float]:
        """The times of arithmetic, memory traffic and launching, each alone."""
        return {
            **({"compute": self.flops.executed / self._ceiling} if self._ceiling else {}),
            "memory": self.flops.moved_bytes / self.bytes_per_s,
            "launch": self.flops.operators * self.overhead_s,
        }

    @property
    def unknown(self) -> str:
        """Why its figures allow no conclusion: disturbed, spread widely, or in contradiction; else
        empty.
        """
        if rivals := [
            each.removeprefix(f"{CONTENDED}: ")
            for each in self.labels
            if each.startswith(CONTENDED)
        ]:
            return rivals[0]
        if self.spread > WIDEST_SPREAD:
            return f"its times spread by {self.spread:.0%}"
        shares = {"the vendor's peak": self.hfu, "its own ceiling": self.share_of_ceiling}
        shares["the bandwidth of copies"] = self.least_times_s["memory"] / self.seconds
        shares["the time of its launches"] = self.least_times_s["launch"] / self.seconds
        over = [f"{share:.0%} of {what}" for what, share in shares.items() if share and share > 1]
        return f"it would be at {over[0]}" if over else ""

    @property
    def bound(self) -> str:
        """The longest of the three least times; OVERHEAD if it explains less than half of the
        step.
        """
        name, longest = max(self.least_times_s.items(), key=lambda item: item[1])
        return name if longest >= self.seconds / 2 else OVERHEAD


class Examination:
    """The fixture `user_model`: every fact about the model, computed when first asked for.

    `arguments` of the factory are those whose largest values are looked for, within `limit` bytes
    or within those free; `cards` are those that `fits` asks about, by default the usual ones, and
    `choices` has it ask about other trainings too. A factory may take seconds, so all checks that
    may share a model share one.
    """

    def __init__(
        self,
        user_model: UserModel,
        arguments: tuple[str, ...] = (),
        limit: int | None = None,
        stages: Stages | None = None,
        cards: tuple[Accelerator, ...] = (),
        *,
        choices: bool = False,
    ) -> None:
        self.user_model = user_model
        self.cards, self.choices = cards, choices
        self.arguments, self.limit = arguments, limit
        self.step: MeasuredStep | None = None
        self.answers: list[Answer] = []
        self._stages = stages or Stages(lambda _: None)

    def fresh(self) -> Instance:
        """A model that no check has touched yet."""
        return self.user_model.fresh()

    @cached_property
    def instance(self) -> Instance:
        """The model that the checks share, perhaps after some steps."""
        return self.user_model.built or self.fresh()

    @cached_property
    def tokens(self) -> tuple[int, str]:
        """D and its unit."""
        return self.instance.tokens

    @cached_property
    def about(self) -> dict[str, str]:
        """The head of the page."""
        instance = self.instance
        tokens, unit = instance.tokens
        name, tensor = instance.main_input
        module, optimizer = type(instance.module).__name__, type(instance.optimizer).__name__
        name_of_factory = "" if self.user_model.spec == module else f"{self.user_model.spec} = "
        return {
            "model": f"{name_of_factory}{module} with {optimizer}, on {self.user_model.device}",
            "D": f"{tokens:,} {unit} ({'as stated; ' if instance.stated_tokens else ''}"
            f"{name}: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)})",
            "notes": "; ".join(instance.notes),
            # Set where a run stopped early.
            "part": "",
        }

    @cached_property
    def inventory(self) -> Inventory:
        return inventory_of(self.instance.module)

    @cached_property
    def counted(self) -> CountedStep:
        with self._stages.stage("counting the FLOPs of a step"), uncompiled():
            return counted_step(self.instance)

    @cached_property
    def flops(self) -> ExplainedFlops:
        return self.counted.flops

    @cached_property
    def memory(self) -> StepMemory:
        with self._stages.stage("measuring and predicting the memory of two steps"):
            return memory_of(self.user_model)

    @cached_property
    def breakdown(self) -> Breakdown:
        counted = self.counted
        with self._stages.stage("timing each operator of a few steps"):
            of_step = (self.instance, counted, self.user_model.device, self.user_model.is_compiled)
            return breakdown_of(*of_step)

    @cached_property
    def fits(self) -> Fits:
        with self._stages.stage("predicting which cards it fits on"):
            return fits_of(
                self.user_model,
                self.instance,
                self.arguments,
                self.cards,
                choices=self.choices,
                stages=self._stages,
            )

    @cached_property
    def largest(self) -> tuple[Largest, ...]:
        found = []
        for argument in self.arguments:
            with self._stages.stage(f"looking for the largest {argument} that fits"):
                found.append(largest_of(self.user_model, argument, self.limit))
        return tuple(found)

    @property
    def unknown(self) -> str:
        """Why nothing is concluded of the step: its own figures, or an operator's, contradict the
        ceiling.
        """
        if self.step is None:
            return ""
        ceiling = max(filter(None, self.step.ceiling_flop_per_s.values()), default=math.inf)
        breakdown: Breakdown | None = vars(self).get("breakdown")
        for each in breakdown.operators if breakdown else ():
            if each.seconds and each.flops / each.seconds > ceiling:
                rates = (
                    engineering(rate, "FLOP/s") for rate in (each.flops / each.seconds, ceiling)
                )
                return "{} runs at {}, above the ceiling of {}".format(each.name, *rates)
        if self.is_apart and breakdown:
            phases = engineering(sum(breakdown.phases_s.values()), "s")
            return f"it takes {engineering(self.step.seconds, 's')}, but its phases {phases} in all"
        return self.step.unknown

    @property
    def is_apart(self) -> bool:
        """Whether the phases of the step, timed apart, do not add up to the step."""
        breakdown: Breakdown | None = vars(self).get("breakdown")
        if self.step is None or breakdown is None or breakdown.is_compiled:
            return False
        apart = abs(sum(breakdown.phases_s.values()) / self.step.seconds - 1)
        return apart > max(self.step.spread, WIDEST_SPREAD)

    def record_step(self, **figures: Any) -> MeasuredStep:
        """Keeps the measured time of a step, with the fields of `MeasuredStep` but the two that
        follow from the model.

        Measured again, a step replaces the one before.
        """
        self.step = MeasuredStep(self.flops, overhead_s=self._overhead_s, **figures)
        return self.step

    @property
    def _overhead_s(self) -> float:
        """Time of one operator on a few elements, forward or backward: the cost of launching it."""
        x = torch.randn(8, device=self.user_model.device, requires_grad=True)

        def chain() -> None:
            y = x
            for _ in range(CHAIN):
                y = y * 1.5
            y.sum().backward()  # type: ignore[no-untyped-call]

        return timing.time(chain, self.user_model.device, warmup=5, rounds=21).median_s / (
            2 * CHAIN
        )
