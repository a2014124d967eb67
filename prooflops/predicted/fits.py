"""On which cards a training step fits, with how much to spare, and the largest batch for each.

The step is predicted for each kind of card without a GPU, and its requests and frees are run
through torch's caching allocator with the memory of the card: a step fits if the allocator gets
through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from accounting.checks import at_least_one
from accounting.devices import ACCELERATORS, device_called
from accounting.devices.peaks import Accelerator
from prooflops.predicted.prediction import PredictedMemory
from prooflops.predicted.training import TrainingStep

# What a process takes of a card before its first tensor: read on one H200 (driver 580, torch 2.11).
CONTEXT_BYTES = 543_162_368
# torch sees less than the memory on the label, whose GB are GiB: 150,109,880,320 bytes of an H200's
# 141 "GB" are 99.1 %. Cards with error correction in their memory show less, so this is lower.
SHARE_SEEN = 0.985
SEEN_BYTES = {"H200 SXM 141GB": 150_109_880_320}
LARGEST_BATCH_TRIED = 2**20


@dataclass(frozen=True)
class Fit:
    """Whether a training step fits on one card."""

    card: str
    # As torch sees it, less the context.
    usable_bytes: int
    # `torch.cuda.memory_reserved` at the peak, where memory is no limit.
    reserved_bytes: int
    fits: bool
    batch: int
    # None where it was not asked for; 0 where not even one fits.
    largest_batch: int | None
    # What may raise the peak and is not known, by name: then less may fit than is said.
    unknown: dict[str, int]

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
    rows = [row for row in ACCELERATORS.values() if _capability(row) and _memory_bytes(row)]
    return [row.label for row in sorted(rows, key=_memory_bytes)]


def usable_bytes(card: str) -> int:
    """Bytes that torch can reserve on a card: what it sees of the memory, less the CUDA context.

    Raises ValueError for a card that is not on record, with those that are.

    >>> usable_bytes("NVIDIA H200")
    149566717952
    """
    row = _row(card)
    seen = SEEN_BYTES.get(row.label, int(SHARE_SEEN * _memory_bytes(row)))
    return seen - CONTEXT_BYTES


def fits(
    step: TrainingStep,
    cards: Iterable[str] | None = None,
    *,
    largest_batch: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fit]:
    """Whether the step fits on each card, by default on all `known_cards`.

    The batch is the first dimension of every tensor of `inputs` and `targets`. `largest_batch`
    looks for the largest one that fits: memory is close to a line in the batch, so that few batches
    are predicted; the answer and its successor always are. `progress` is told of each.
    Not modelled: other processes on the card, and memory that is not torch's.
    Raises ValueError for an unknown card, and for tensors without a batch in common.
    """
    labels = known_cards() if cards is None else list(cards)
    rows = [_row(label) for label in labels]
    sizes = _batches(step)
    if len(sizes) != 1:
        raise ValueError(f"inputs and targets must have one batch in common, got {sorted(sizes)}")
    batch = at_least_one("batch", sizes.pop())
    predictions = _Predictions(step, progress)
    found = []
    for row in rows:
        held = predictions.of(row, batch)
        usable = usable_bytes(row.label)
        largest = _largest(predictions, row, batch) if largest_batch else None
        reserved = held.reserved_peak_bytes or 0
        fit = held.fits_into(usable)
        found.append(Fit(row.label, usable, reserved, fit, batch, largest, held.unknown))
    return found


class _Predictions:
    """The step predicted for compute capabilities and batches, each once."""

    def __init__(self, step: TrainingStep, progress: Callable[[str], None]) -> None:
        self._step = step
        self._progress = progress
        self._known: dict[tuple[tuple[int, int], int], PredictedMemory] = {}

    def of(self, row: Accelerator, batch: int) -> PredictedMemory:
        capability = _capability(row)
        assert capability is not None
        key = capability, batch
        if key not in self._known:
            self._progress(f"batch {batch} on compute capability {row.arch}")
            step = _with_batch(self._step, batch)
            self._known[key] = step.predict(compute_capability=capability)
        return self._known[key]

    def reserved(self, row: Accelerator) -> list[tuple[int, int]]:
        """The batches predicted so far for this kind of card, with the bytes that they reserve."""
        capability = _capability(row)
        batches = sorted(batch for each, batch in self._known if each == capability)
        return [(batch, self.of(row, batch).reserved_peak_bytes or 0) for batch in batches]

    def fit(self, row: Accelerator, batch: int) -> bool:
        return self.of(row, batch).fits_into(usable_bytes(row.label))


def _largest(predictions: _Predictions, row: Accelerator, batch: int) -> int:
    """The largest batch that fits, between one that does and its successor, which does not."""
    most, least, guess, step = 0, LARGEST_BATCH_TRIED + 1, batch, 1
    while least - most > 1:
        guess = min(max(guess, most + step), least - 1)
        if predictions.fit(row, guess):
            # Near the end an estimate may stand still: then steps grow.
            step = 2 * step if guess <= most + step else 1
            most = guess
        else:
            least, step = guess, 1
        guess = _estimate(predictions, row)
        if not most < guess < least:
            is_open = least > LARGEST_BATCH_TRIED
            guess = most + step if is_open else (most + least) // 2
    return most


def _estimate(predictions: _Predictions, row: Accelerator) -> int:
    """Where a line through the two largest predicted batches reaches the card's memory."""
    (low, at_low), (high, at_high) = ([(0, 0), *predictions.reserved(row)])[-2:]
    slope = max(1, (at_high - at_low) // max(1, high - low))
    return high + (usable_bytes(row.label) - at_high) // slope


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


def _row(card: str) -> Accelerator:
    row = device_called(card)
    if _capability(row) is None or not _memory_bytes(row):
        valid = ", ".join(known_cards())
        raise ValueError(
            f"card must be a CUDA card whose memory is on record, got {card!r}: {valid}"
        )
    return row


def _capability(row: Accelerator) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA card; None for others."""
    if not re.fullmatch(r"\d+\.\d+", row.arch):
        return None
    major, minor = row.arch.split(".")
    return int(major), int(minor)


def _memory_bytes(row: Accelerator) -> int:
    """Of a card that is sold with several sizes, the smallest."""
    return min(row.memory_sizes, default=0)
