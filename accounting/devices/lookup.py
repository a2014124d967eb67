"""Finds the row of a device, by the exact name from torch or by a name that people write."""

from __future__ import annotations

import re
from difflib import get_close_matches

from accounting.checks import validated_instance, validated_int
from accounting.devices.peaks import ROWS, Accelerator

ACCELERATORS: dict[str, Accelerator] = {row.label: row for row in ROWS}


def device_named(
    name: str, arch: str | None = None, units: int | None = None, memory_bytes: int | None = None
) -> Accelerator | None:
    """The row of the device that torch calls `name`, or None if it is not on record or not certain.

    Names are compared exactly: `NVIDIA L4` is part of `NVIDIA L40S`, and a MIG slice is its card's
    name with a suffix. `arch` is the compute capability ("9.0") or `gcnArchName`, `units` is
    `multi_processor_count` (XPU: `max_compute_units`); a row with another one is not this device.
    AMD's names come from a file of the host, so arch and units find AMD's rows without the name,
    and `memory_bytes` separates MI300X from MI325X.

    >>> device_named("NVIDIA A100-SXM4-80GB").label
    'A100 SXM4 80GB'
    >>> slice_of_it = device_named("NVIDIA A100-SXM4-80GB MIG 1g.10gb")
    >>> slice_of_it, device_named("NVIDIA A100-SXM4-80GB", units=14)
    (None, None)
    >>> device_named("AMD Radeon Graphics", "gfx942:sramecc+:xnack-", 304, 274_877_906_944).label
    'MI325X'
    """
    validated_instance("name", name, str)
    arch = None if arch is None else validated_instance("arch", arch, str).partition(":")[0] or None
    units = None if units is None else validated_int("units", units)
    memory_bytes = None if memory_bytes is None else validated_int("memory_bytes", memory_bytes)
    named = [row for row in ROWS if name in row.names]
    if arch and arch.startswith("gfx") and units is not None:
        rows = [row for row in ROWS if (row.arch, row.units) == (arch, units)]
        rows = [row for row in rows if row in named] or rows
    else:
        rows = [
            row
            for row in named
            if arch in {None, row.arch} and (units is None or row.units in {None, units})
        ]
    if len(rows) > 1 and memory_bytes is not None:
        rows = [row for row in rows if _has_memory(row, memory_bytes)]
    return rows[0] if len(rows) == 1 else None


def device_called(name: str) -> Accelerator:
    """The row that a person means by `name`.

    A device is found by its label, by torch's name, or by words that match only one row. Case,
    punctuation and the vendor's name do not matter: "A100-SXM4-80GB", "h100 pcie", "MI300X OAM",
    "TPU v5e". The row must have all words, so "RTX 4090 D" or a MIG slice finds none. Use this
    function for planning, and `device_named` for a running device.
    Raises ValueError if no row fits, naming the nearest, or if several do, naming them; TypeError
    for other than a string.

    >>> device_called("H100 SXM").label, device_called("nvidia a100-sxm4-80gb").label
    ('H100 SXM5 80GB', 'A100 SXM4 80GB')
    >>> device_called("H100")
    Traceback (most recent call last):
    ValueError: device must be one of H100 SXM5 80GB, H100 PCIe 80GB, H100 NVL 94GB, got 'H100'
    """
    rows = _rows_called(name)
    if len(rows) != 1:
        labels = {label.lower(): label for label in ACCELERATORS}
        near = [labels[each] for each in get_close_matches(name.lower(), labels, n=5, cutoff=0.3)]
        options = ", ".join([row.label for row in rows] or near or list(ACCELERATORS))
        raise ValueError(
            f"device must be {'one of' if rows else 'on record, such as'} {options}, got {name!r}"
        )
    return rows[0]


def _rows_called(name: str) -> list[Accelerator]:
    """The rows that a person's name fits: those with this label or name, else those with all its
    words.
    """
    wanted = _words(
        validated_instance("device", name, str).partition(":")[0]
    )  # gfx942:sramecc+:xnack-
    same = [
        row
        for row in ROWS
        if "".join(wanted) in {"".join(_words(each)) for each in (row.label, *row.names)}
    ]
    if same or not wanted:
        return same
    words = {
        row.label: _words(" ".join((row.label, *row.names, row.unit, row.arch))) for row in ROWS
    }
    return [
        row
        for row in ROWS
        if all(any(_fits(word, each) for each in words[row.label]) for word in wanted)
    ]


def _fits(word: str, whole: str) -> bool:
    """True if two words are equal up to digits at the end: "sxm" fits SXM5."""
    return word == whole or (
        len(word) > 1 and word.isalpha() and bool(re.fullmatch(rf"{word}\d+", whole))
    )


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return [
        word
        for word in words
        if word not in {"nvidia", "amd", "intel", "r", "google", "cloud", "aws", "apple"}
    ]


def _has_memory(row: Accelerator, memory_bytes: int) -> bool:
    """True if the label's GB (in effect GiB) are within 5 % of the driver's bytes."""
    return any(abs(memory_bytes / size - 1) < 0.05 for size in row.memory_sizes)


def device_of(device: str | Accelerator | None) -> Accelerator | None:
    """`device` itself if it is a row, else the row that this name finds, or None.

    Raises ValueError for a name that fits several devices, naming them.

    >>> device_of("H100 PCIe").label, device_of("NVIDIA GeForce RTX 4090 D")
    ('H100 PCIe 80GB', None)
    """
    if device is None or isinstance(device, Accelerator):
        return device
    validated_instance("device", device, str)
    return device_called(device) if _rows_called(device) else None
