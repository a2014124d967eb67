"""Faults of data loading: maps that read all or skip a header, bounds off by one, loaders that lose windows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import accounting.formats
from meta_tests.faults import fault, replace

memmap = np.memmap


@fault("data.memmap-lazy")
def a_map_reads_its_file_when_it_is_opened(patch: pytest.MonkeyPatch) -> None:
    """Only the first 256 MiB of it, to spare the machine's memory."""

    def eager(path: Path, dtype: Any = np.uint8, mode: str = "r+", **rest: Any) -> np.ndarray:
        mapped = memmap(path, dtype=dtype, mode=mode, **rest)
        mapped[: 2**26].sum()
        return mapped

    patch.setattr(np, "memmap", eager)


@fault("data.memmap-lazy", "data.dataloader")
def a_map_is_a_copy_and_a_slice_of_it_another(patch: pytest.MonkeyPatch) -> None:
    """Of small files."""

    class Copying(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key).copy()

    def copied(path: Path, dtype: Any = np.uint8, mode: str = "r+", **rest: Any) -> np.ndarray:
        if mode != "r" or path.stat().st_size > 2**27:
            return memmap(path, dtype=dtype, mode=mode, **rest)
        return np.fromfile(path, dtype=dtype).view(Copying)

    patch.setattr(np, "memmap", copied)


@fault("data.memmap-npy")
def a_map_skips_the_header_of_a_npy_file(patch: pytest.MonkeyPatch) -> None:
    def helpful(path: Path, dtype: Any = np.uint8, mode: str = "r+", offset: int = 0, **rest: Any) -> np.ndarray:
        with open(path, "rb") as file:
            start = file.read(10)
        if start.startswith(b"\x93NUMPY") and not offset:
            offset = 10 + int.from_bytes(start[8:], "little")
        return memmap(path, dtype=dtype, mode=mode, offset=offset, **rest)

    patch.setattr(np, "memmap", helpful)


@fault("data.int-sequences", "data.batch-shift", "data.memmap-lazy", "data.uint16")
def a_map_takes_the_other_byte_order(patch: pytest.MonkeyPatch) -> None:
    def swapped(path: Path, dtype: Any = np.uint8, mode: str = "r+", **rest: Any) -> np.ndarray:
        return memmap(path, dtype=np.dtype(dtype).newbyteorder(), mode=mode, **rest)

    patch.setattr(np, "memmap", swapped)


@fault("data.uint16", "data.llama-2.8tb", "data.int-sequences")
def an_element_of_uint16_has_32_bits(patch: pytest.MonkeyPatch) -> None:
    bits = accounting.formats.element_bits
    replace(patch, bits, lambda name: 32 if name == "uint16" else bits(name))


@fault("data.uint16")
def an_array_of_uint16_saturates(patch: pytest.MonkeyPatch) -> None:
    array = np.array

    def saturated(values: Any, dtype: Any = None, **rest: Any) -> np.ndarray:
        if dtype is not np.uint16:
            return array(values, dtype=dtype, **rest)
        return array(values, **rest).clip(0, 65535).astype(np.uint16)

    patch.setattr(np, "array", saturated)


@fault("data.randint-bound")
def randint_includes_its_bound(patch: pytest.MonkeyPatch) -> None:
    randint = torch.randint
    patch.setattr(torch, "randint", lambda high, shape, **options: randint(high + 1, shape, **options))


@fault("data.randint-bound")
def randint_never_reaches_its_last_value(patch: pytest.MonkeyPatch) -> None:
    randint = torch.randint
    patch.setattr(torch, "randint", lambda high, shape, **options: randint(max(high - 1, 1), shape, **options))


@fault("data.batch-shift")
def stacking_turns_every_row_round(patch: pytest.MonkeyPatch) -> None:
    stack = torch.stack
    patch.setattr(torch, "stack", lambda rows: stack(rows).flip(-1))


@fault("data.astype-int64")
def embedding_takes_every_integer(patch: pytest.MonkeyPatch) -> None:
    embedding = nn.functional.embedding
    patch.setattr(nn.functional, "embedding", lambda tokens, table: embedding(tokens.long(), table))


@fault("data.astype-int64")
def tensors_over_read_only_memory_come_without_a_warning(patch: pytest.MonkeyPatch) -> None:
    from_numpy = torch.from_numpy

    def quiet(array: np.ndarray) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_numpy(array)

    patch.setattr(torch, "from_numpy", quiet)


@fault("data.dataloader")
def a_loader_draws_with_replacement(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "randperm", lambda n, generator=None: torch.randint(n, (n,), generator=generator))


@fault("data.dataloader")
def a_loader_drops_the_last_batch_in_any_case(patch: pytest.MonkeyPatch) -> None:
    batches = torch.utils.data.BatchSampler.__iter__

    def whole_batches(self: Any) -> Iterator[list[int]]:
        return (batch for batch in batches(self) if len(batch) == self.batch_size)

    patch.setattr(torch.utils.data.BatchSampler, "__iter__", whole_batches)


@fault("data.pipeline-bottleneck")
def a_slow_loader_is_not_slow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(time, "sleep", lambda _: None)
