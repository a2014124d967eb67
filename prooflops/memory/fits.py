"""On which cards a training step fits, with how much to spare, and the largest batch for each.

The step is predicted for each kind of card without a GPU. Its requests and frees run through a
model of torch's caching allocator with the memory of the card. A step fits if the allocator gets
through. `torch.cuda.max_memory_reserved` alone does not decide. When memory is used up, torch
returns unused segments to the driver and tries once more. So a step whose reserved bytes would
exceed the card may still run, but slower. What has to fit are the allocated blocks and the gaps
between them that no request fills.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from accounting.devices import ACCELERATORS, device_called, usable_bytes
from accounting.devices.peaks import Accelerator
from prooflops.memory.allocator import cublas_workspace_bytes
from prooflops.memory.cuda.choices import AttentionKernels, kernels_of
from prooflops.memory.prediction import PredictedMemory
from prooflops.memory.replay import Growth
from prooflops.memory.search import LARGEST_TRIED, largest_size

Capability = tuple[int, int]
# Predicts the step of a size, such as a batch, for cards of a compute capability.
Predict = Callable[[int, Capability], PredictedMemory]
# Cards of one size of cuBLAS's workspace and one choice of kernels share predictions.
Kind = tuple[int, AttentionKernels]


@dataclass(frozen=True)
class Fit:
    """The fit of a training step on one card."""

    card: str
    # The memory that torch sees, less the context.
    usable_bytes: int
    # `torch.cuda.max_memory_reserved` where memory is no limit.
    reserved_bytes: int
    fits: bool
    # Unknown workspaces by name: they may raise the peak, and then less fits than is said.
    unknown: Sequence[str]

    @property
    def spare_bytes(self) -> int:
        """Usable bytes beyond those reserved; negative where the step needs the cache emptied."""
        return self.usable_bytes - self.reserved_bytes


def known_cards() -> list[str]:
    """The labels of the CUDA cards whose memory is on record, the smallest first."""
    usable = {}
    for label, row in ACCELERATORS.items():
        offered = usable_bytes(row)
        if offered is not None and _is_cuda(row):
            usable[label] = offered
    return sorted(usable, key=lambda label: usable[label])


def cuda_card(name: str) -> Accelerator:
    """The row of a card by its name. Raises ValueError for a card without a prediction.

    >>> cuda_card("NVIDIA H100 80GB HBM3").label
    'H100 SXM5 80GB'
    """
    row = device_called(name)
    if row.label not in known_cards():
        valid = ", ".join(known_cards())
        raise ValueError(
            f"device must be a CUDA card with one size of memory on record, got {name!r}: {valid}"
        )
    return row


class Predictions:
    """The step predicted for kinds of cards and sizes, each once.

    Cards for which torch chooses the same kernels share predictions. Not modelled: other processes
    on the card, and memory that is not torch's.
    """

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._known: defaultdict[Kind, dict[int, PredictedMemory]] = defaultdict(dict)

    def grown(self, predict: Predict, first: int) -> Predictions:
        """Those of a size that may grow; the step as it is, known as 1 here, has the first one."""
        found = Predictions(predict)
        for kind, known in self._known.items():
            found._known[kind] = {first: known[1]}
        return found

    def of(self, card: Accelerator, size: int = 1) -> PredictedMemory:
        """The step of this size on the card."""
        known = self._of_kind(card)
        if size not in known:
            known[size] = self._predict(size, capability_of(card))
        return known[size]

    def _of_kind(self, card: Accelerator) -> dict[int, PredictedMemory]:
        """The sizes predicted so far for the cards for which torch chooses the same kernels."""
        capability = capability_of(card)
        return self._known[cublas_workspace_bytes(capability), kernels_of(capability)]

    def fit(self, card: Accelerator, size: int = 1) -> Fit:
        """The fit of a step of this size on the card."""
        held, usable = self.of(card, size), _usable(card)
        return Fit(
            card.label, usable, reserved_bytes_of(held), held.fits_into(usable), held.unknown
        )

    def largest(self, card: Accelerator, first: int, ceiling: int = LARGEST_TRIED) -> int:
        """The largest size up to `ceiling` that fits; 0 where not even one does.

        It and its successor are predicted. Trials begin with `first`.
        """
        usable = _usable(card)

        def does_fit(size: int) -> bool:
            return self.of(card, size).fits_into(usable)

        return largest_size(does_fit, partial(self._estimate, card, ceiling), first, ceiling)

    def _estimate(self, card: Accelerator, ceiling: int) -> int:
        """The largest size that fits if storages grow as between the two known sizes next to it."""
        usable, known = _usable(card), self._of_kind(card)
        near, *others = sorted(known, key=lambda size: abs(usable - reserved_bytes_of(known[size])))
        requests = known[near].requests()
        for size in others:
            other = known[size].requests()
            if other.events == requests.events:
                return Growth(near, requests, size, other).largest(usable, ceiling)
        doubled = known[near].requests_if_doubled()
        return Growth(near, requests, 2 * near, doubled).largest(usable, ceiling)


def reserved_bytes_of(held: PredictedMemory) -> int:
    """The most that a step predicted for CUDA reserves."""
    return held.reserved_peak_bytes or 0


def _is_cuda(card: Accelerator) -> bool:
    return re.fullmatch(r"\d+\.\d+", card.arch) is not None


def capability_of(card: Accelerator) -> Capability:
    """The compute capability of a card, as torch.cuda.get_device_capability has it."""
    major, minor = card.arch.split(".")
    return int(major), int(minor)


def _usable(card: Accelerator) -> int:
    usable = usable_bytes(card)
    assert usable is not None, f"{card.label} is no `cuda_card`"
    return usable
