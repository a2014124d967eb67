"""Run records.

Pytest-benchmark's JSON with the claims' verdicts and the machine's fingerprint beside it.

    <history>/<fingerprint>/<moment>-<unique>.json     one run; written atomically, never edited
    <history>/baselines/<name>.txt                     the commit that a name stands for

No torch, numpy or scipy here: reading a history must be cheap.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prooflops_gate.identity import folded
from prooflops_gate.run_state import plain_figure

SCHEMA = 1
# A time or figure beyond these is a slip of its writer, and has no ratio to another.
SMALLEST, LARGEST = 1e-18, 1e18
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")


class UnreadableRecord(ValueError):
    """A file of the history that is no complete record: the message names it and says why."""


class UnknownBaseline(ValueError):
    """No such baseline: the message names the ones there are."""


def fingerprint_id(fingerprint: Mapping[str, Any]) -> str:
    """A folder name for one fingerprint: the device's name, then a digest of all of it."""
    digest = hashlib.sha256(
        json.dumps(fingerprint, sort_keys=True, default=str).encode()
    ).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(fingerprint.get("name", "unknown"))).strip("-")[:40]
    return f"{slug}-{digest}"


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` so that a reader sees the old file or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is unique to this writer: two of them may aim at one path. It does not end in .json,
    # so no reader opens it.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        # Windows opens no folders, and some network file systems don't sync them.
        with suppress(OSError):
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                # A renamed file is safe from a power cut only with its new name.
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        unfinished.unlink(missing_ok=True)


def new_file(folder: Path) -> Path:
    """A path for a new record: by its moment, and unique."""
    return folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:8]}.json"


def append_record(folder: Path, record: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Path:
    """Adds one record under the folder of its fingerprint and returns its path.

    No record is ever overwritten.
    """
    path = new_file(folder / fingerprint_id(fingerprint))
    write_atomically(path, as_text(record))
    return path


def as_text(record: Mapping[str, Any]) -> str:
    """A record as it is written.

    JSON, one line a value, so that a difference of two can be read.
    """
    return json.dumps(record, indent=1, default=plain_figure) + "\n"


def read(path: Path) -> Any:
    """The content of a record's file. Raises UnreadableRecord for a truncated one."""
    # ValueError: no JSON, no UTF-8, or a number beyond Python's.
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{path}: {error}") from error


def record_files(folder: Path) -> list[Path]:
    """The files of all records under `folder`, oldest first."""
    return sorted(folder.glob("*/*.json"), key=lambda path: path.name)


@dataclass(frozen=True)
class Timed:
    """One benchmark of a record, as far as comparisons use it.

    `time_s` is its fastest round: interruptions only ever lengthen rounds. `contended` is the
    competing work, in words. `resources` are those of a call, such as memory. `slowness` is its
    core's: how many times longer fixed work took; inf where it was contended otherwise. `test` is
    the test that measured it. A launch ends before the GPU has finished. `cycles` are the fewest of
    a round on a GPU, 0 where they are unknown, and `clocks_hz` the lowest and the highest clock.
    """

    time_s: float
    exact: Mapping[str, Any]
    method: Any = None
    contended: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    slowness: float = 1.0
    test: str = ""
    is_launch: bool = False
    cycles: float = 0.0
    clocks_hz: tuple[float, ...] = ()


@dataclass(frozen=True)
class Summary:
    """One record, as far as comparisons use it.

    `name` is the device's. `partial`: why the run ended before all of its tests had run. A `dirty`
    one had files that differed from the commit. `pace`: how it was recorded, where that was not a
    plain run. `facts` are those of its fingerprint.
    """

    path: Path
    moment: str
    fingerprint_id: str
    name: str
    torch: str
    commit: str
    benchmarks: Mapping[str, Timed]
    partial: str = ""
    dirty: bool = False
    pace: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """The device and its software in words."""
        return ", torch ".join(filter(None, [self.name, self.torch]))

    @property
    def short_commit(self) -> str:
        """A short name of the commit; of edited files, as `git describe --dirty` names them."""
        return self.commit[:7] + "-dirty" * self.dirty

    @property
    def contended(self) -> bool:
        return any(timed.contended for timed in self.benchmarks.values())


def summary_of(record: Mapping[str, Any], path: Path, exact: Sequence[str]) -> Summary:
    """The summary of a record. Raises UnreadableRecord for a field of a wrong type or value."""
    try:
        ours = record["prooflops"]
        fingerprint, commit = ours.get("fingerprint", {}), record.get("commit_info") or {}
        packages = fingerprint.get("packages") or {}
        return Summary(
            path=path,
            moment=str(record.get("datetime", "")),
            fingerprint_id=fingerprint_id(fingerprint),
            name=str(fingerprint.get("name")),
            torch=str(fingerprint.get("torch") or packages.get("torch") or ""),
            # pytest-benchmark calls the commit of a folder without version control so.
            commit=str(commit.get("id") or "").removeprefix("unversioned"),
            benchmarks=_benchmarks(record["benchmarks"], exact),
            partial=str(ours.get("partial") or ""),
            dirty=bool(commit.get("dirty")),
            pace=_pace(ours.get("pace")),
            facts=dict(_facts(fingerprint)),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableRecord(f"{path}: not a record of this suite ({why})") from error


def _benchmarks(given: Sequence[Mapping[str, Any]], exact: Sequence[str]) -> dict[str, Timed]:
    """The benchmarks by name; those equal after folding are told apart by their position."""
    found: dict[str, Timed] = {}
    seen = Counter[str]()
    for bench in given:
        fullname = str(bench["fullname"])
        name = folded(fullname)
        seen[name] += 1
        if name != fullname and seen[name] > 1:
            name = f"{name}#{seen[name]}"
        timed = _timed(bench, exact, name)
        # A round may have taken no time by a coarse clock, or be no number.
        if not is_ignored(bench) and SMALLEST < timed.time_s < LARGEST:
            found[name] = timed
    return found


def _facts(fingerprint: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name and value of each fact, those in a group without its name."""
    for name, fact in fingerprint.items():
        if isinstance(fact, Mapping):
            yield from _facts(fact)
        else:
            yield str(name), str(fact)


def _pace(given: Mapping[str, Any] | str | None) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return json.dumps(given, sort_keys=True)


def is_ignored(bench: Mapping[str, Any]) -> bool:
    """True if its marker `gate` says that it is not compared."""
    return bool(((bench.get("extra_info") or {}).get("gate") or {}).get("ignore"))


def _timed(bench: Mapping[str, Any], exact: Sequence[str], name: str) -> Timed:
    extra = bench.get("extra_info") or {}
    contention = extra.get("contention") or {}
    contended, slowness = "", 1.0
    if contention.get("contended"):
        contended = str(contention.get("why") or "other work")
        slowness = float(contention.get("slowness", math.inf))
    resources = {key: float(value) for key, value in (extra.get("gate_resources") or {}).items()}
    gpu = extra.get("gate_gpu") or {}
    return Timed(
        time_s=float(bench["stats"]["min"]),
        exact={key: extra[key] for key in exact if key in extra},
        method=extra.get("method"),
        contended=contended,
        resources={key: value for key, value in resources.items() if 0 <= value < LARGEST},
        slowness=slowness,
        test=str(bench.get("test", name)),
        is_launch=bool(extra.get("gate_launches")),
        cycles=float(gpu.get("cycles", 0.0)),
        clocks_hz=tuple(float(gpu[key]) for key in ("lowest_hz", "highest_hz") if key in gpu),
    )


def summaries(folder: Path, exact: Sequence[str]) -> list[Summary | UnreadableRecord]:
    """Summaries of the records under `folder`, oldest first; an unreadable one as its error."""
    found: list[Summary | UnreadableRecord] = []
    for path in record_files(folder):
        try:
            found.append(read_summary(path, exact))
        except UnreadableRecord as error:
            found.append(error)
    return found


def read_summary(path: Path, exact: Sequence[str]) -> Summary:
    """The summary of the record in `path`. Raises UnreadableRecord."""
    return summary_of(read(path), path, exact)


def check_name(name: str) -> str:
    """Validates a baseline's name, and returns it. Raises ValueError."""
    if not _NAME.fullmatch(name) or name == "latest" or name.endswith(".json"):
        raise ValueError(
            "a baseline's name must have only letters, digits and . _ + - "
            "(up to 80, not 'latest', no '.json'), "
            f"got {name!r}"
        )
    return name


def store_baseline(folder: Path, name: str, commit: str) -> Path:
    """Has `name` stand for this commit, and returns the file that says so."""
    path = folder / "baselines" / f"{check_name(name)}.txt"
    write_atomically(path, f"{commit}\n")
    return path


def baselines(folder: Path) -> dict[str, str]:
    """The commits of the named baselines under `folder`."""
    files = sorted((folder / "baselines").glob("*.txt"))
    return {path.stem: path.read_text("utf-8", errors="replace").strip() for path in files}


def baseline(folder: Path, wanted: str) -> str:
    """The commit that a name stands for; "latest" is the commit of the newest record.

    "latest" skips interrupted runs, and runs of files that no commit has. Raises UnknownBaseline,
    which names the baselines there are.
    """
    if wanted == "latest":
        for path in reversed(record_files(folder)):
            with suppress(UnreadableRecord):
                found = read_summary(path, ())
                if found.commit and not (found.dirty or found.partial):
                    return found.commit
        raise UnknownBaseline(
            f"--gate-baseline latest: no record in {folder} is of a whole run of a commit"
        )
    known = baselines(folder)
    if wanted not in known:
        there = ", ".join(known) or "none"
        raise UnknownBaseline(
            f"--gate-baseline {wanted}: no baseline of that name in {folder}; valid: latest, or a "
            f"stored name ({there}); --gate-record NAME stores one"
        )
    return known[wanted]
