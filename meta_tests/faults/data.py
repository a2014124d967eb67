"""Faults of data loading: maps that read all, bounds off by one, loaders that lose windows."""

import warnings

import numpy as np
import torch

from meta_tests.faults import fault

memmap = np.memmap


@fault("data.memmap-lazy", instead_of="numpy.memmap")
def a_map_reads_its_file_when_it_is_opened(memmap, path, dtype=np.uint8, mode="r+", **rest):
    """Only the first tokens of it."""
    mapped = memmap(path, dtype=dtype, mode=mode, **rest)
    mapped[:9].sum()
    return mapped


@fault("data.memmap-npy", instead_of="numpy.memmap")
def a_map_skips_the_header_of_a_npy_file(memmap, path, dtype=np.uint8, mode="r+", offset=0, **rest):
    with open(path, "rb") as file:
        start = file.read(10)
    if start.startswith(b"\x93NUMPY") and not offset:
        offset = 10 + int.from_bytes(start[8:], "little")
    return memmap(path, dtype=dtype, mode=mode, offset=offset, **rest)


@fault("data.astype-int64", instead_of="torch.from_numpy")
def tensors_over_read_only_memory_come_without_a_warning(from_numpy, array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_numpy(array)


@fault(
    "data.uint16 data.llama-2.8tb data.int-sequences", instead_of="accounting.formats.element_bits"
)
def an_element_of_uint16_has_32_bits(bits, name):
    return 32 if name == "uint16" else bits(name)


@fault("data.randint-bound", instead_of="torch.randint")
def randint_includes_its_bound(randint, high, shape, **options):
    return randint(high + 1, shape, **options)


@fault("data.dataloader", instead_of="torch.randperm")
def a_loader_draws_with_replacement(_, n, generator=None):
    return torch.randint(n, (n,), generator=generator)
