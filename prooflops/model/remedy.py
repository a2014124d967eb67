"""The cheapest change with which a step fits on a card: another training, or several cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from accounting.units import with_unit
from prooflops.memory import PredictedMemory
from prooflops.memory.fits import reserved_bytes_of
from prooflops.memory.prediction import UNSHARDED
from prooflops.model.training import Training

MOST_DEVICES_LOG2 = 10


@dataclass(frozen=True)
class Remedy:
    """A change with which a step fits on a card: another training, or shards on several cards.

    Its bytes are a lower bound where a kernel's workspace is unknown. So are sharded ones: gathered
    layers and buffers of communication are not modelled.
    """

    training: str
    reserved_bytes: int
    is_lower_bound: bool
    devices: int = 1
    zero_stage: int = 0

    def __str__(self) -> str:
        how = [f"ZeRO stage {self.zero_stage} on {self.devices:,} cards"] if self.zero_stage else []
        if self.training != Training.name:
            how.append(self.training)
        fits, bound = ("may fit", "at least ") if self.is_lower_bound else ("fits", "")
        return f"{fits} with {', '.join(how)}: {bound}{with_unit(self.reserved_bytes, 'B')}"


def remedy_of(
    trainings: Mapping[Training, Callable[[], PredictedMemory]], usable_bytes: int
) -> Remedy | None:
    """The first change that makes the step fit, in the order of what it costs; each is predicted.

    The first training is the step as it is. The changes come next, then the fewest cards
    that share its state: without and then with layers recomputed, at the lowest stage of ZeRO.
    """
    shared = []
    for training, predict in trainings.items():
        try:
            held = predict()
        except Exception:
            # Not every model has layers to recompute, or accepts another dtype.
            continue
        if held.fits_into(usable_bytes):
            return Remedy(training.name, reserved_bytes_of(held), bool(held.unknown))
        if not training.is_8bit and training.dtype is None:
            shared.append((training, held))
    for exponent in range(1, MOST_DEVICES_LOG2 + 1):
        for training, held in shared:
            for stage in range(1, UNSHARDED):
                requests = held.requests(2**exponent, stage)
                if requests.fits_into(usable_bytes):
                    return Remedy(training.name, requests.reserved_bytes, True, 2**exponent, stage)
    return None
