"""What a run with `--model` finds out about a user's model: its bytes, its FLOPs, its memory, its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from accounting import measured, predicted
from accounting.roofline import hfu, mfu, ridge_point
from proofline.explained import Flops, flops_of
from proofline.model import Instance, UserModel, tensors_of, told

# ---- bytes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holding:
    """The tensors of one role and dtype."""

    role: str  # trained, frozen, buffer
    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """What a module holds: each tensor once, under whatever names."""

    holdings: tuple[Holding, ...]
    tied: tuple[str, ...]  # further names of parameters that are counted already
    storage_bytes: int  # of the storages that the tensors live in; more where a tensor is a part of a larger one

    @property
    def parameters(self) -> int:
        return sum(each.elements for each in self.holdings if each.role != "buffer")

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.holdings)


def inventory_of(module: torch.nn.Module) -> Inventory:
    """Parameters and buffers by role and dtype."""
    found: defaultdict[tuple[str, str], list[Tensor]] = defaultdict(list)
    storages: dict[int, int] = {}
    roles: list[tuple[str, Tensor]]
    roles = [("trained" if each.requires_grad else "frozen", each) for each in module.parameters()]
    roles += [("buffer", each) for each in module.buffers()]
    for role, tensor in roles:
        found[role, str(tensor.dtype).removeprefix("torch.")].append(tensor)
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    first = {name for name, _ in module.named_parameters()}
    return Inventory(
        holdings=tuple(
            Holding(role, dtype, len(tensors), sum(each.numel() for each in tensors), bytes_of(tensors))
            for (role, dtype), tensors in found.items()
        ),
        tied=tuple(name for name, _ in module.named_parameters(remove_duplicate=False) if name not in first),
        storage_bytes=sum(storages.values()),
    )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """numel × element_size, summed."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class MemoryRow:
    """One line of the account of memory: what it should be, and what the allocator was really asked for."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int


@dataclass(frozen=True)
class Memory:
    """The memory of a training step after the first one."""

    rows: tuple[MemoryRow, ...]
    remarks: tuple[str, ...]
    scratch: dict[str, int]  # what kernels take for themselves, by operator, the most that one call takes
    is_lower_bound: bool  # of the two last predictions: an operator's scratch is not known
    charged_peak_bytes: int | None  # on CUDA: what the caching allocator set aside for the peak

    def row(self, name: str) -> MemoryRow:
        return next(row for row in self.rows if row.name == name)


HELD, PEAK = "held for the backward pass", "peak of a step"


def memory_of(user_model: UserModel) -> Memory:
    """Builds the model and takes two steps within one measurement; the second step is what the rows are about.

    The same code is predicted with fake tensors, where the model can be built and run without values.
    """
    with measured.memory(user_model.device) as held:
        instance = marked_steps(user_model.fresh, held.mark)
    live = {name: phase.live_bytes for name, phase in held.phases.items()}
    charged = [held.phases[name].charged_peak_bytes for name in STEP]
    prediction, why_not = predicted_memory(user_model)
    inputs = {id(each): each for each in tensors_of((instance.arguments, instance.keywords))}
    own = bytes_of([*instance.module.parameters(), *instance.module.buffers(), *inputs.values()])
    gradients = [each.grad for each in instance.module.parameters() if each.grad is not None]
    state = [each for each in state_tensors(instance) if each.device.type == user_model.device.type]
    return Memory(
        rows=(
            MemoryRow("parameters, buffers, inputs", own, live["model"]),
            MemoryRow("gradients", bytes_of(gradients), live["backward"] - live["cleared"]),
            MemoryRow("optimizer state", bytes_of(state), live["first update"] - live["first backward"]),
            MemoryRow(HELD, _held_bytes(prediction), live["forward"] - live["cleared"]),
            MemoryRow(PEAK, _peak_bytes(prediction), max(held.phases[name].peak_bytes for name in STEP)),
        ),
        remarks=tuple(filter(None, [_beside(live["model"] - own), why_not])),
        scratch=prediction.scratch if prediction else {},
        is_lower_bound=bool(prediction and prediction.unknown),
        charged_peak_bytes=None if None in charged else max(each for each in charged if each is not None),
    )


STEP = ("forward", "backward", "update")


def marked_steps(fresh: Callable[[], Instance], mark: Callable[[str], None]) -> Instance:
    """A model is built and takes two steps, each phase marked: measured or predicted, the code is the same."""
    instance = fresh()
    mark("model")
    instance.forward().backward()  # type: ignore[no-untyped-call]
    mark("first backward")
    instance.optimizer.step()
    mark("first update")
    instance.optimizer.zero_grad(set_to_none=True)
    mark("cleared")
    loss = instance.forward()
    mark("forward")
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    mark("backward")
    instance.optimizer.step()
    mark("update")
    return instance


def predicted_memory(user_model: UserModel) -> tuple[predicted.Memory | None, str]:
    """The prediction, or None and why there is none: a model that looks at values cannot run without them."""
    try:
        with predicted.memory(user_model.device, scratch=True) as held, user_model.device:
            marked_steps(user_model.fresh, held.mark)
    except Exception as error:  # whatever the user's code does with a fake tensor
        return None, f"not predicted: {told(error)}"
    return held, ""


def _held_bytes(prediction: predicted.Memory | None) -> int | None:
    if prediction is None:
        return None
    return prediction.phases["forward"].live_bytes - prediction.phases["cleared"].live_bytes


def _peak_bytes(prediction: predicted.Memory | None) -> int | None:
    if prediction is None:
        return None
    phases = [prediction.phases[name] for name in STEP]
    return max(each.peak_bytes_with_scratch or each.peak_bytes for each in phases)


def _beside(difference: int) -> str:
    """What the allocator gave out for the model beside, or did not see of, its tensors."""
    if difference < 0:
        return f"{-difference:,} B of the model came from numpy or a file, which the allocator does not see"
    return f"beside parameters, buffers and inputs the factory keeps {difference:,} B" if difference else ""


def state_tensors(instance: Instance) -> list[Tensor]:
    """The tensors that the optimizer keeps from step to step."""
    return tensors_of(list(instance.optimizer.state.values()))


# ---- time --------------------------------------------------------------------------------------------------------


OVERHEAD = "overhead"


@dataclass(frozen=True)
class Reach:
    """What the device was measured at in this run, and what its vendor states; rates per dtype of the products."""

    peak_flop_per_s: Mapping[str, float | None]
    ceiling_flop_per_s: Mapping[str, float | None]
    bytes_per_s: float
    overhead_s: float  # of one operator on a handful of elements, autograd included


@dataclass(frozen=True)
class Step:
    """One training step by the device's clock, beside what its FLOPs, its bytes and its operators take at least."""

    seconds: float
    spread: float  # the middle half of the rounds, as a share of the median
    rounds: int
    flops: Flops
    reach: Reach

    @property
    def per_s(self) -> float:
        """Tokens or examples per second."""
        return self.flops.tokens / self.seconds

    @property
    def mfu(self) -> float | None:
        return mfu(self.flops.model, self.seconds, self._rate(self.reach.peak_flop_per_s))

    @property
    def hfu(self) -> float | None:
        return hfu(self.flops.model, self.flops.recomputed, self.seconds, self._rate(self.reach.peak_flop_per_s))

    @property
    def share_of_ceiling(self) -> float | None:
        """The executed FLOPs against this machine's own best measured rate."""
        return mfu(self.flops.executed, self.seconds, self._rate(self.reach.ceiling_flop_per_s))

    def _rate(self, per_dtype: Mapping[str, float | None]) -> float | None:
        """The rate of products of several dtypes one after the other: the FLOPs over the sum of their times."""
        times = []
        for dtype, flops in self.flops.by_dtype.items():
            rate = per_dtype.get(dtype)
            if rate is None:
                return None
            times.append(flops / rate)
        return self.flops.executed / sum(times) if sum(times) else None

    @property
    def intensity(self) -> float:
        """FLOPs per byte, every tensor read and written by every operator: as if nothing were fused or cached."""
        return self.flops.executed / max(self.flops.moved_bytes, 1)

    @property
    def ridge(self) -> float | None:
        """The intensity at which this machine's own two ceilings meet."""
        rate = self._rate(self.reach.ceiling_flop_per_s)
        return None if rate is None else ridge_point(rate, self.reach.bytes_per_s)

    @property
    def least_times_s(self) -> dict[str, float]:
        """What arithmetic, memory traffic and launching would each take alone."""
        rate = self._rate(self.reach.ceiling_flop_per_s)
        times = {"compute": self.flops.executed / rate} if rate else {}
        return {
            **times,
            "memory": self.flops.moved_bytes / self.reach.bytes_per_s,
            "launch": self.flops.operators * self.reach.overhead_s,
        }

    @property
    def bound(self) -> str:
        """The one of the three that takes longest; OVERHEAD where it explains less than half of the step."""
        name, longest = max(self.least_times_s.items(), key=lambda item: item[1])
        return name if longest >= self.seconds / 2 else OVERHEAD


# ---- all of it ---------------------------------------------------------------------------------------------------


class Examination:
    """The fixture `user_model`: fresh instances, and every fact about the model, found out when first asked for."""

    def __init__(self, user_model: UserModel) -> None:
        self.user_model = user_model
        self.step: Step | None = None

    def fresh(self) -> Instance:
        """A model that no check has touched yet."""
        return self.user_model.fresh()

    @cached_property
    def about(self) -> dict[str, str]:
        """What the page says at its top."""
        instance = self.fresh()
        tokens, unit = instance.tokens
        name, tensor = instance.main_input
        module, optimizer = type(instance.module).__name__, type(instance.optimizer).__name__
        return {
            "model": f"{self.user_model.spec} = {module} with {optimizer}, on {self.user_model.device}",
            "D": f"{tokens:,} {unit} ({name}: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)})",
            "notes": "; ".join(instance.notes),
        }

    @cached_property
    def inventory(self) -> Inventory:
        return inventory_of(self.fresh().module)

    @cached_property
    def flops(self) -> Flops:
        return flops_of(self.fresh())

    @cached_property
    def memory(self) -> Memory:
        return memory_of(self.user_model)

    def found(self, name: str) -> bool:
        """Whether a fact is known already."""
        return name in vars(self)

    def timed(self, seconds: float, spread: float, rounds: int, **reach: object) -> Step:
        """Takes down the measured time of a step, with what the device can reach (see `Reach`)."""
        self.step = Step(seconds, spread, rounds, self.flops, Reach(**reach))  # type: ignore[arg-type]
        return self.step
