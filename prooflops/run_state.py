"""What the parts of one pytest run share: the keys of config.stash, and whether this process is a replicate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

REPLICATE = "PROOFLOPS_RECORD_TO"  # variable of a process that others started: the one file it writes its record to

RECORD_PATH = pytest.StashKey[Path]()  # where the record of this run was written
STORAGE_ERROR = pytest.StashKey[str]()  # why the record or a baseline could not be written
WATCH = pytest.StashKey[Any]()  # during a benchmark's call: the machine.contention.Watch that began with it
CONTENTION = pytest.StashKey[dict[str, dict[str, Any]]]()  # per benchmark, see machine.contention
PARTIAL = pytest.StashKey[str]()  # why the run ended before all of its tests had run; empty where they did
MARKERS = pytest.StashKey[dict[str, dict[str, Any]]]()  # per benchmark, the arguments of its marker `gate`


def is_replicate() -> bool:
    """Whether the gate, or a validation of several cards, started this process."""
    return bool(os.environ.get(REPLICATE))
