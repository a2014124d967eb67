"""What the parts of one pytest run share. A process of the gate imports this file, too."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

# The variable of a process that others started: the one file it writes its record to.
REPLICATE = "PROOFLOPS_RECORD_TO"

# The record of this run, in a process of the gate, which writes it once.
RECORD = pytest.StashKey[dict[str, Any]]()
# Where the record of this run is written.
RECORD_PATH = pytest.StashKey[Path]()
# Why the record or a baseline could not be written.
STORAGE_ERROR = pytest.StashKey[str]()
# During a benchmark's call: the machine.contention.Watch that began with it.
WATCH = pytest.StashKey[Any]()
# Per test, see machine.contention.
CONTENTION = pytest.StashKey[dict[str, dict[str, Any]]]()
# Why the run ended before all of its tests had run; empty where they did.
PARTIAL = pytest.StashKey[str]()
# Per test, the arguments of its marker `gate`.
MARKERS = pytest.StashKey[dict[str, dict[str, Any]]]()


def is_replicate() -> bool:
    """Whether the gate, or a validation of several cards, started this process."""
    return bool(os.environ.get(REPLICATE))


def is_benchmark(item: pytest.Item) -> bool:
    """Whether this test is measured: it uses pytest-benchmark's fixture, or has its marker."""
    return "benchmark" in getattr(item, "fixturenames", ()) or is_whole_benchmark(item)


def is_whole_benchmark(item: pytest.Item) -> bool:
    """Whether all of this test is measured: it has the marker, and does not use the fixture."""
    if "benchmark" in getattr(item, "fixturenames", ()):
        return False
    if not isinstance(item, pytest.Function) or item.get_closest_marker("benchmark") is None:
        return False
    return not inspect.iscoroutinefunction(item.obj)


def plain_figure(value: object) -> object:
    """For the argument `default` of `json.dumps`.

    A scalar of numpy or torch as its number, anything else as text.

    >>> plain_figure(b"a")
    "b'a'"
    """
    try:
        figure = value.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):
        # RuntimeError: a tensor of several elements.
        return str(value)
    return figure if isinstance(figure, (bool, int, float, str)) else str(value)
