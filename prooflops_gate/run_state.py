"""What the parts of one pytest run share. A process of the gate imports this file under another name, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

REPLICATE = "PROOFLOPS_RECORD_TO"  # variable of a process that others started: the one file it writes its record to

RECORD_PATH = pytest.StashKey[Path]()  # where the record of this run was written
STORAGE_ERROR = pytest.StashKey[str]()  # why the record or a baseline could not be written
WATCH = pytest.StashKey[
    Any
]()  # during a benchmark's call: the machine.contention.Watch that began with it
CONTENTION = pytest.StashKey[dict[str, dict[str, Any]]]()  # per benchmark, see machine.contention
PARTIAL = pytest.StashKey[
    str
]()  # why the run ended before all of its tests had run; empty where they did
MARKERS = pytest.StashKey[
    dict[str, dict[str, Any]]
]()  # per benchmark, the arguments of its marker `gate`


def is_replicate() -> bool:
    """Whether the gate, or a validation of several cards, started this process."""
    return bool(os.environ.get(REPLICATE))


def is_benchmark(item: pytest.Item) -> bool:
    """Whether pytest-benchmark measures in this test."""
    return "benchmark" in getattr(item, "fixturenames", ())


def plain_figure(value: object) -> object:
    """For `json.dumps(default=...)`: a scalar of numpy or torch as its number, anything else as text.

    >>> plain_figure(b"a")
    "b'a'"
    """
    try:
        figure = value.item()  # type: ignore[attr-defined]
    except (
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
    ):  # RuntimeError: a tensor of several elements
        return str(value)
    return figure if isinstance(figure, (bool, int, float, str)) else str(value)
