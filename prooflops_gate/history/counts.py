"""Instructions of commits in the history.

They hardly depend on the machine, but on the interpreter and libraries.

    <history>/instructions/<builds>/<moment>-<unique>.json     the counts of one commit

Counts of two commits compare wherever the builds are the same, on another runner, too. No numpy or
scipy here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from prooflops_gate.history.records import new_file, write_atomically

FOLDER = "instructions"


class CountRecord(NamedTuple):
    """The counts of one commit."""

    commit: str
    # The name under which it was stored.
    baseline: str
    # By benchmark, one a hash seed.
    counts: Mapping[str, Sequence[int]]
    # Size of the file by compiled module: those that the benchmarks import.
    libraries: Mapping[str, int]
    moment: str = ""

    def compares_with(self, other: CountRecord) -> bool:
        """Whether the compiled modules that both import are the same."""
        return all(
            self.libraries[name] == other.libraries[name]
            for name in self.libraries.keys() & other.libraries
        )


def builds_id(builds: Mapping[str, Any]) -> str:
    """A folder name for builds of an interpreter and its C library."""
    return hashlib.sha256(json.dumps(builds, sort_keys=True).encode()).hexdigest()[:12]


def append_counts(folder: Path, builds: Mapping[str, Any], counted: CountRecord) -> Path:
    """Stores the counts of a commit."""
    path = new_file(folder / FOLDER / builds_id(builds))
    moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_atomically(
        path, json.dumps({**counted._asdict(), "moment": moment, "builds": builds}, indent=1) + "\n"
    )
    return path


def read_counts(folder: Path, builds: str) -> Iterator[CountRecord]:
    """The counts with these builds, oldest first. Truncated and foreign files are skipped."""
    for path in sorted((folder / FOLDER / builds).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            counts = {
                str(name): [int(each) for each in group]
                for name, group in content["counts"].items()
            }
            if all(each > 0 for group in counts.values() for each in group):
                commit, baseline, moment = (
                    str(content[key]) for key in ("commit", "baseline", "moment")
                )
                yield CountRecord(commit, baseline, counts, dict(content["libraries"]), moment)


def builds_in(folder: Path) -> list[str]:
    """The builds that the history has counts of."""
    return sorted(path.name for path in (folder / FOLDER).glob("*") if path.is_dir())
