"""Run records: pytest-benchmark's JSON with the claims' verdicts and the machine's fingerprint beside it.

Records are appended, written atomically, and never edited. No torch here: reading a history must be cheap.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SCHEMA = 1


class UnreadableRecord(ValueError):
    """A file of the history that is no complete record: the message names it and says why."""


def fingerprint_id(fingerprint: Mapping[str, Any]) -> str:
    """A folder name for one fingerprint: the device's name, then a digest of everything in it."""
    digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(fingerprint.get("name", "unknown"))).strip("-")[:40]
    return f"{slug}-{digest}"


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` so that a reader sees the old file or the whole new one, never a part, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is unique to this writer: two of them may aim at one path. It does not end in .json: no reader takes it.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def append(folder: Path, record: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Path:
    """Adds one record under the folder of its fingerprint and returns its path; no record is ever overwritten."""
    moment = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / fingerprint_id(fingerprint) / f"{moment}-{uuid.uuid4().hex[:8]}.json"
    write_atomically(path, json.dumps(record, indent=1, default=str) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """The record in `path`. Raises UnreadableRecord for a truncated or foreign file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnreadableRecord(f"{path}: {error}") from error
    if not isinstance(record, dict) or "benchmarks" not in record or "proofline" not in record:
        raise UnreadableRecord(f"{path}: not a record of this suite (no 'benchmarks' or no 'proofline' in it)")
    return record


def records(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | UnreadableRecord]]:
    """Every record under `folder`, oldest first; an unreadable file comes as the error that names it."""
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.name):
        try:
            yield path, read(path)
        except UnreadableRecord as error:
            yield path, error
