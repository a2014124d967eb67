"""Keys of the state that the parts of one pytest run share, and questions about its tests.

Processes that the gate starts import this file, too.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate.unpatched import os

# This variable names the file to which a process of the gate writes its record.
RECORD_TO = "PROOFLOPS_RECORD_TO"

# A process of the gate keeps its record here, and writes it once.
RECORD = pytest.StashKey[dict[str, Any]]()
RECORD_PATH = pytest.StashKey[Path]()
# This says why the record or a baseline could not be written.
STORAGE_ERROR = pytest.StashKey[str]()
# The `machine.contention.Watch` of the benchmark that is called now.
WATCH = pytest.StashKey[Any]()
# The contention that was seen beside each test, by its id.
CONTENTION = pytest.StashKey[dict[str, dict[str, Any]]]()
# This says why the run ended before all of its tests had run; it is empty where they did.
PARTIAL = pytest.StashKey[str]()
# The arguments of the marker `gate` of each test, by its id.
MARKERS = pytest.StashKey[dict[str, dict[str, Any]]]()


def is_replicate() -> bool:
    """True if the gate, or a validation of several cards, started this process."""
    return bool(os.environ.get(RECORD_TO))


def is_benchmark(item: pytest.Item) -> bool:
    """True if this test is measured: it uses pytest-benchmark's fixture, or has its marker."""
    return "benchmark" in getattr(item, "fixturenames", ()) or is_whole_benchmark(item)


def benchmark_marker(item: pytest.Item) -> pytest.Mark | None:
    """The test's marker `benchmark`, or pytest-codspeed's other name for it."""
    return item.get_closest_marker("codspeed_benchmark") or item.get_closest_marker("benchmark")


def is_whole_benchmark(item: pytest.Item) -> bool:
    """True if all of this test is measured: it has the marker, and does not use the fixture."""
    if "benchmark" in getattr(item, "fixturenames", ()):
        return False
    if not isinstance(item, pytest.Function) or benchmark_marker(item) is None:
        return False
    return not inspect.iscoroutinefunction(item.obj)


def plain_figure(value: object) -> object:
    """A scalar of numpy or torch as its number, anything else as text.

    `json.dumps` calls this as its `default`.

    >>> plain_figure(b"a")
    "b'a'"
    """
    try:
        figure = value.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):
        # A tensor of several elements raises RuntimeError.
        return str(value)
    return figure if isinstance(figure, (bool, int, float, str)) else str(value)
