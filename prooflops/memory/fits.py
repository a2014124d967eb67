"""On which cards a training step fits, with how much to spare, and the largest batch for each.

The step is predicted for each kind of card without a GPU, and its requests and frees are run
through torch's caching allocator with the memory of the card. A step fits if the allocator gets
through. `torch.cuda.max_memory_reserved` alone does not decide: where the memory is used up, torch
returns unused segments to the driver and tries once more, so a step whose reserved bytes would
exceed the card may still run, slower. What has to fit are the allocated blocks and the gaps between
them that no request fills.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from accounting.checks import at_least_one
from accounting.devices import ACCELERATORS, device_called, usable_bytes
from accounting.devices.peaks import Accelerator
from prooflops.memory.allocator import cublas_workspace_bytes
from prooflops.memory.cuda.choices import AttentionKernels, kernels_of
from prooflops.memory.prediction import PredictedMemory
from prooflops.memory.replay import Growth
from prooflops.memory.search import LARGEST_TRIED, largest_size
from prooflops.memory.training import TrainingStep

Capability = tuple[int, int]
# Predicts the step of a size, such as a batch, for cards of a compute capability; with options of
# `predicted_memory`.
Predict = Callable[..., PredictedMemory]


@dataclass(frozen=True)
class Fit:
    """Whether a training step fits on one card."""

    card: str
    # What torch sees, less the context.
    usable_bytes: int
    # `torch.cuda.max_memory_reserved` where memory is no limit.
    reserved_bytes: int
    fits: bool
    # The largest size that fits: None where it was not wanted; 0 where not even one fits.
    largest: int | None
    # What may raise the peak and is not known, by name: then less may fit than is said.
    unknown: dict[str, int]
    # Reserved bytes, and whether they fit, where torch has one kernel for what is composed.
    least_bytes: int | None = None
    may_fit: bool = False

    @property
    def spare_bytes(self) -> int:
        """Usable bytes beyond those reserved; negative where the step needs the cache emptied."""
        return self.usable_bytes - self.reserved_bytes

    @property
    def is_lower_bound(self) -> bool:
        """Whether the step needs at least `reserved_bytes`."""
        return bool(self.unknown)


def known_cards() -> list[str]:
    """The labels of the CUDA cards whose memory is on record, the smallest first.

    >>> "H100 SXM5 80GB" in known_cards()
    True
    """
    usable = {}
    for label, row in ACCELERATORS.items():
        offered = usable_bytes(row)
        if offered is not None and _is_cuda(row):
            usable[label] = offered
    return sorted(usable, key=lambda label: usable[label])


def cuda_card(name: str) -> Accelerator:
    """The row of a card by its name. Raises ValueError for one of which nothing can be predicted.

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


def fits(
    step: TrainingStep,
    cards: Iterable[str] | None = None,
    *,
    largest_batch: bool = True,
    progress: Callable[[str], object] = lambda _: None,
) -> list[Fit]:
    """Whether the step fits on each card, by default on all `known_cards`.

    The batch is the first dimension of every tensor of `inputs` and `targets`. `largest_batch`
    looks for the largest one that fits. `progress` is told of each prediction.
    Not modelled: other processes on the card, and memory that is not torch's.
    Raises ValueError for an unknown card, and for tensors without a batch in common.
    """
    rows = [cuda_card(name) for name in (known_cards() if cards is None else cards)]
    sizes = _batches(step)
    if len(sizes) != 1:
        raise ValueError(f"inputs and targets must have one batch in common, got {sorted(sizes)}")

    def predict(batch: int, capability: Capability, **options: Any) -> PredictedMemory:
        progress(f"batch {batch:,} on compute capability {capability[0]}.{capability[1]}")
        return _with_batch(step, batch).predict(compute_capability=capability, **options)

    return fits_of_sizes(predict, at_least_one("batch", sizes.pop()), rows, largest=largest_batch)


def fits_of_sizes(
    predict: Predict,
    size: int,
    cards: Iterable[Accelerator],
    *,
    largest: bool,
    ceiling: int = LARGEST_TRIED,
) -> list[Fit]:
    """Whether a step of this size fits on each card, and the `largest` size that does.

    Sizes up to `ceiling` are tried. Cards for which torch chooses the same kernels share
    predictions.
    """
    predictions = Predictions(predict)
    found = []
    for card in cards:
        ways = predictions.of(card, size)
        usable = _usable(card)
        most = _largest(predictions, card, size, ceiling) if largest else None
        reserved = sorted(held.reserved_peak_bytes or 0 for held in ways)
        does_fit = [held.fits_into(usable) for held in ways]
        unknown = ways[0].unknown
        fit = Fit(card.label, usable, reserved[-1], all(does_fit), most, unknown)
        if len(ways) > 1:
            fit = replace(fit, least_bytes=reserved[0], may_fit=any(does_fit))
        found.append(fit)
    return found


class Predictions:
    """The step predicted for kinds of cards and sizes, each once."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._known: dict[tuple[int, AttentionKernels], dict[int, tuple[PredictedMemory, ...]]] = {}

    def of(self, card: Accelerator, size: int) -> tuple[PredictedMemory, ...]:
        """The step as this torch runs it, and as one runs it that composes nothing."""
        known = self._of_kind(card)
        if size not in known:
            capability = _capability(card)
            held = self._predict(size, capability)
            known[size] = (held,)
            if held.composed:
                known[size] = (held, self._predict(size, capability, groups_in_kernel=True))
        return known[size]

    def _of_kind(self, card: Accelerator) -> dict[int, tuple[PredictedMemory, ...]]:
        """The sizes predicted so far for the cards for which torch chooses the same kernels."""
        capability = _capability(card)
        kind = cublas_workspace_bytes(capability), kernels_of(capability)
        return self._known.setdefault(kind, {})

    def largest(self, card: Accelerator, ceiling: int) -> int:
        """The largest size that fits if storages grow as between the two known sizes next to it."""
        usable, known = _usable(card), self._of_kind(card)
        near, *others = sorted(known, key=lambda size: abs(usable - _reserved(known[size])))
        held = _largest_way(known[near])
        requests = held.requests()
        for size in others:
            other = _largest_way(known[size]).requests()
            if other.events == requests.events:
                return Growth(near, requests, size, other).largest(usable, ceiling)
        doubled = held.requests_if_doubled()
        return Growth(near, requests, 2 * near, doubled).largest(usable, ceiling)


def _reserved(ways: Iterable[PredictedMemory]) -> int:
    return max(held.reserved_peak_bytes or 0 for held in ways)


def _largest_way(ways: Iterable[PredictedMemory]) -> PredictedMemory:
    return max(ways, key=lambda held: held.reserved_peak_bytes or 0)


def _largest(predictions: Predictions, card: Accelerator, size: int, ceiling: int) -> int:
    """The largest size that fits, which and whose successor are predicted."""
    usable = _usable(card)

    def tried(size: int) -> tuple[int | None, bool]:
        ways = predictions.of(card, size)
        return _reserved(ways), all(held.fits_into(usable) for held in ways)

    estimate = partial(predictions.largest, card, ceiling)
    return largest_size(tried, size, usable, estimate=estimate, ceiling=ceiling)[0]


def _with_batch(step: TrainingStep, batch: int) -> TrainingStep:
    def resized(tensor: Tensor) -> Tensor:
        return torch.empty(batch, *tensor.shape[1:], dtype=tensor.dtype, device="meta")

    given: Any = step.inputs, step.targets
    if _batches(step) != {batch}:
        given = tree_map_only(Tensor, resized, given)
    return replace(step, inputs=given[0], targets=given[1], device="cuda")


def _batches(step: TrainingStep) -> set[int]:
    leaves = tree_leaves((step.inputs, step.targets))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return {len(tensor) if tensor.dim() else 0 for tensor in tensors}


def _is_cuda(card: Accelerator) -> bool:
    return re.fullmatch(r"\d+\.\d+", card.arch) is not None


def _capability(card: Accelerator) -> Capability:
    major, minor = card.arch.split(".")
    return int(major), int(minor)


def _usable(card: Accelerator) -> int:
    usable = usable_bytes(card)
    assert usable is not None, f"{card.label} is no `cuda_card`"
    return usable
