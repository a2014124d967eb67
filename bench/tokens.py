"""Batches of tokens from a file on disk, as a training loop reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = tuple[Tensor, Tensor]

VOCABULARY = 50_257
ITEM_BYTES = 2
TOKENS_WRITTEN_AT_ONCE = 2**22
# Parameters of a sequence in place of text: each token follows from its position.
MULTIPLIER, INCREMENT = 40_503, 12_289


def text(positions: np.ndarray) -> np.ndarray:
    """The token at each position of the file, by a formula: so loaded batches can be checked."""
    positions = positions.astype(np.int64)
    return (positions * MULTIPLIER + positions // 97 * INCREMENT) % VOCABULARY


def write_tokens(path: Path, tokens: int) -> None:
    """A file of `tokens` tokens as uint16, two bytes each and nothing else."""
    with open(path, "wb") as file:
        for start in range(0, tokens, TOKENS_WRITTEN_AT_ONCE):
            positions = np.arange(start, min(start + TOKENS_WRITTEN_AT_ONCE, tokens))
            file.write(text(positions).astype(np.uint16).tobytes())


class Batches(IterableDataset[Batch]):
    """Endless batches (inputs, targets one token later) of windows of a memory-mapped file.

    Each worker maps the file itself and draws its own random windows.
    """

    def __init__(self, path: Path, batch: int, sequence: int) -> None:
        self.path, self.batch, self.sequence = path, batch, sequence

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        for starts in self.starts(worker.id if worker else 0):
            yield self.load(starts)

    def starts(self, worker: int = 0) -> Iterator[np.ndarray]:
        """Window starts of a worker's batches."""
        tokens = self.path.stat().st_size // ITEM_BYTES
        random = np.random.default_rng(worker)
        while True:
            yield random.integers(0, tokens - self.sequence, self.batch)

    def load(self, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        """The windows that begin at `starts`, as int64."""
        # Mapped anew for each batch: a mapping that lives on keeps every page it touched.
        data = np.memmap(self.path, dtype=np.uint16, mode="r")
        windows = np.stack([data[start : start + self.sequence + 1] for start in starts]).astype(
            np.int64
        )
        rows = torch.from_numpy(windows)
        return rows[:, :-1], rows[:, 1:]


def assert_from_file(inputs: Tensor, targets: Tensor, starts: np.ndarray) -> None:
    """Raises AssertionError if a batch differs from the file at `starts`."""
    __tracebackhide__ = True
    positions = starts[:, None] + np.arange(inputs.shape[1] + 1)
    expected = torch.from_numpy(text(positions))
    assert torch.equal(inputs, expected[:, :-1]), (
        f"inputs {inputs[0, :4].tolist()}… are not those at {starts[0]}"
    )
    assert torch.equal(targets, expected[:, 1:]), (
        "targets should be the inputs one token later, but are not"
    )


@contextmanager
def loader(batches: Batches, workers: int, *, pin_memory: bool) -> Iterator[Iterator[Batch]]:
    """The batches, made by this process (0 workers) or by others, which end with the block."""
    if not workers:
        yield iter(batches)
        return
    made = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4,
        persistent_workers=True,
        pin_memory=pin_memory,
    )
    arriving: Any = iter(made)
    try:
        yield arriving
    finally:
        arriving._shutdown_workers()
