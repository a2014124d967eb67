"""A language model's data: token files, windows, batches, and the memory that reading takes."""

import os

import numpy as np
import pytest
import torch


def window(tokens, start, length):
    """Inputs and targets of one example in int64: tokens from `start` on, and those after each."""
    x, y = (tokens[begin : begin + length].astype(np.int64) for begin in (start, start + 1))
    return torch.from_numpy(x), torch.from_numpy(y)


def batch(tokens, size, length, generator=None):
    """Inputs and targets, each (size, length), of windows that start at random places."""
    starts = torch.randint(len(tokens) - length, (size,), generator=generator).tolist()
    x, y = zip(*(window(tokens, start, length) for start in starts), strict=True)
    return torch.stack(x), torch.stack(y)


def fresh(path):
    """The path, of no file now.

    An earlier file that is still mapped is left as it is: truncating it would crash.
    """
    path.unlink(missing_ok=True)
    return path


def sparse_file(path, nbytes):
    """A file of `nbytes` zeros, which takes almost no space on the disk."""
    fresh(path).touch()
    os.truncate(path, nbytes)
    return path


def resident_bytes(array):
    """The bytes in memory of the mappings that hold `array`: a file's own, or the heap's around it.

    Not of all the process, from which the system takes other pages away while a test runs. Skips
    where the system does not list them.
    """
    start = array.__array_interface__["data"][0]
    resident = 0
    inside = False
    try:
        with open("/proc/self/smaps", encoding="utf-8") as file:
            for line in file:
                first = line.split(maxsplit=1)[0]
                if "-" in first and not first.endswith(":"):
                    low, high = (int(bound, 16) for bound in first.split("-"))
                    inside = low < start + array.nbytes and start < high
                elif inside and first == "Rss:":
                    resident += int(line.split()[1]) * 1024
    except OSError:
        pytest.skip("needs Linux, which lists the pages of each mapping that are in memory")

    return resident
