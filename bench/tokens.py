"""Batches of tokens from a file on disk, as a training loop reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCABULARY = 50_257
DTYPES = {"uint16": np.uint16, "int32": np.int32}
ORDERS = ("random", "sequential")
TOKENS_WRITTEN_AT_ONCE = 2**22
# Of the sequence that stands for text: every token says where it is from.
MULTIPLIER, INCREMENT = 40_503, 12_289
# In steps: a worker's batch takes a moment to be handed over, however early it was made.
NOTICED = 0.1


def text(positions: np.ndarray) -> np.ndarray:
    """The token at each position of the file, by a formula: so loaded batches can be checked."""
    positions = positions.astype(np.int64)
    return (positions * MULTIPLIER + positions // 97 * INCREMENT) % VOCABULARY


def write_tokens(path: Path, tokens: int, dtype: str) -> None:
    """A file of `tokens` tokens, two or four bytes each and nothing else."""
    with open(path, "wb") as file:
        for start in range(0, tokens, TOKENS_WRITTEN_AT_ONCE):
            positions = np.arange(start, min(start + TOKENS_WRITTEN_AT_ONCE, tokens))
            file.write(text(positions).astype(DTYPES[dtype]).tobytes())


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless batches (inputs, targets one token later) of windows of a memory-mapped file.

    Each worker maps the file itself and draws its own random windows, or takes every n-th batch of
    the sequence.
    """

    def __init__(
        self, path: Path, dtype: str, order: str, batch: int, sequence: int, seed: int = 0
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.path, self.dtype, self.order = path, dtype, order
        self.batch, self.sequence, self.seed = batch, sequence, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        for starts in self.starts(*((worker.id, worker.num_workers) if worker else ())):
            yield self.load(starts)

    def starts(self, number: int = 0, workers: int = 1) -> Iterator[np.ndarray]:
        """Window starts of worker `number`'s batches."""
        tokens = self.path.stat().st_size // np.dtype(DTYPES[self.dtype]).itemsize
        random = np.random.default_rng((self.seed, number))
        windows = (tokens - 1) // self.sequence
        turn = number
        while True:
            if self.order == "random":
                yield random.integers(0, tokens - self.sequence, self.batch)
            else:
                yield (turn * self.batch + np.arange(self.batch)) % windows * self.sequence
                turn += workers

    def load(self, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        """The windows that begin at `starts`, as int64."""
        # Mapped anew for each batch: a mapping that lives on keeps every page it touched.
        data = np.memmap(self.path, dtype=DTYPES[self.dtype], mode="r")
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


def loader(
    batches: Batches, workers: int, *, pin_memory: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches, made by this process (0 workers) or by others ahead of it."""
    if not workers:
        return iter(batches)
    made = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4,
        persistent_workers=True,
        pin_memory=pin_memory,
    )
    return iter(made)


def sent(tokens: Tensor, device: torch.device, vocabulary: int) -> Tensor:
    """The tokens on `device`, copied from where the loader has put them, then brought below
    `vocabulary`.
    """
    return tokens.to(device, non_blocking=True) % vocabulary


def bottleneck(wait_s: float, step_s: float, *, overlapped: bool) -> str:
    """The slower part of a training loop: "loader" or "step".

    Loading and stepping in turn, it is the loader where that takes the longer of both. Where
    workers load meanwhile (`overlapped`), the step hides part of the loading: then it is the loader
    if a step waits by more than a tenth of its own time.
    """
    return "loader" if wait_s > (NOTICED if overlapped else 1.0) * step_s else "step"
